// Package claim races runs for nodes on a real API server: the claims of internal/claim rest on its commit order and on
// lists at an exact resourceVersion. It holds tests only.
package claim

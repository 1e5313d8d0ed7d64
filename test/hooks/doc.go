// Package hooks runs the contract of hooks against a real API server: real kinds, real credentials that get lost, and
// where a hook asks a port, kube-proxy's own code behind it. It holds tests only.
package hooks

// Package e2e runs the built safedrain, as a user does, against a real control plane. It holds tests only.
package e2e

// Package gate runs the built safedrain gate, as it is installed, against a real control plane. It holds tests only.
package gate

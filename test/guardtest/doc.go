// Package guardtest compares the rules of pkg/guard with Kubernetes' own code: kube-proxy's choice of endpoints and the
// API server's answer to an eviction. It holds tests only.
package guardtest

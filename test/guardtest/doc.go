// Package guardtest compares the rules of pkg/guard with Kubernetes' own code: kube-proxy's choice of endpoints, the API
// server's answer to an eviction, and the choice of pods of the ReplicaSet and the Deployment controller. It holds tests only.
package guardtest

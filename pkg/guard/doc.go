// Package guard holds the rules of safedrain: facts about a cluster go in, a verdict comes out.
//
// It answers one question in several shapes: would a node that receives traffic for a Service of policy Local be left
// without a usable local endpoint, so that kube-proxy drops what arrives? The unit of work is one Service; an [Index]
// only finds things. The flow is Index -> [Cover] -> [JudgeService] -> [Plan], and Index -> [Audit].
//
// The package has no client, no clock, no log and no state. The rules of usable endpoints are kube-proxy's own
// (k8s.io/kubernetes/pkg/proxy/topology.go) and the rules of budgets are the eviction API's
// (k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go); the module in test/ compares both with that code.
package guard

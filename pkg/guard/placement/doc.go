// Package placement says on which nodes a pod could run: the rules of kube-scheduler's filters, applied to facts.
//
// A [State] holds nodes and the pods that are on them. Pods can be taken away, nodes can leave, and pods can be placed one
// after the other, each taking its room. [State.Candidates] answers for one pod: the nodes it can go to, and for every
// other node the first rule that stops it, in the order in which the scheduler asks. Where of those it lands is decided by
// scores that depend on much besides, so [State.PlaceAll] only predicts it.
//
// The rules are those of the default profile of Kubernetes 1.37 with default feature gates, file by file those of
// k8s.io/kubernetes/pkg/scheduler/framework/plugins; the module in test/ compares them with that code and with a running
// scheduler. The package has no client, no clock and no log.
package placement

// Package experiments measures what a drain costs: the same action by kubectl and by safedrain, in turn, on the same
// cluster, with real kube-proxy, real balancers and a steady load.
//
// [Rounds] is the table of everything that is measured. A round is one action; its subjects are the Services that are
// watched meanwhile, each behind one balancer. [Runner] carries rounds out, and leaves a record for each subject, tool and
// run.
package experiments

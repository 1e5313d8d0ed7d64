package drain

import (
	"time"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Event is a progress value. The command line turns events into lines; nothing else depends on them.
type Event interface{ event() }

// Planned is emitted once, before anything changes.
type Planned struct{ Plan *guard.DrainPlan }

// Cordoned says that a node is unschedulable now; Already that it was before this run.
type Cordoned struct {
	Node    string
	Already bool
}

// Uncordoned says that a node is schedulable again.
type Uncordoned struct {
	Node    string
	Already bool
}

// Resumed says that the claim of an earlier run was taken up.
type Resumed struct{ Node, Run, Holder, Phase string }

// Withdrawing starts the withdrawal of one Service from one node.
type Withdrawing struct {
	Node, Service, Hook string
	Timeout             time.Duration
}

// ProofPending is an observation that the node is still in rotation.
type ProofPending struct {
	Node, Service, Hook string
	Elapsed, Timeout    time.Duration
	Evidence            string
}

// Proven says that a node left the rotation of a Service, and how long the run settles after it.
type Proven struct {
	Node, Service, Hook string
	By, Evidence        string // By is the node that took over, if the balancer names one
	After, Settle       time.Duration
}

// NotProven says that a Service goes on without proof, because it was accepted.
type NotProven struct {
	Node, Service, Hook string
	Accepted            string // "by flag", "by annotation safedrain.dev/settle"
	Settle              time.Duration
}

// Relied says that the balancer's own health check takes the node out while the pods of a Service terminate.
type Relied struct{ Node, Service, Hook, Evidence string }

// Held says that the pods of a Service on a node are held: they serve on, and the health check of its balancer is to fail.
type Held struct {
	Node, Service, Hook string
	Label               string // the key that was changed
	Exact               bool   // the change can be undone exactly
	Pods                int
}

// Wave starts a group of evictions on a node.
type Wave struct {
	Node    string
	Pods    int
	Waiting int      // pods that wait for a withdrawal
	After   []string // the Services whose proof let these pods go; empty for pods that need not wait
}

// PodEvicted says that the API accepted an eviction, or a deletion that bypasses budgets.
type PodEvicted struct {
	Node    string
	Pod     guard.Key
	Deleted bool
}

// PodGone says that a pod has left the node, by its UID.
type PodGone struct {
	Node string
	Pod  guard.Key
	Took time.Duration
}

// PodBlocked is emitted when a pod starts to wait, and again only when what blocks it changes.
type PodBlocked struct {
	Node string
	Pod  guard.Key
	By   string
}

// Waiting is a heartbeat of a run that waits for pods, at most once a minute.
type Waiting struct {
	Node             string
	Gone, Total      int
	Terminating      int
	Longest          guard.Key
	LongestRemaining time.Duration
	Blocked          []Blocked
	Elapsed          time.Duration
	Timeout          time.Duration // 0: none
}

// Verified says that a drained node was looked at once more.
type Verified struct{ Node string }

// Drained ends the drain of a node.
type Drained struct {
	Node    string
	Took    time.Duration
	Evicted int
	Stay    int
	Deleted bool // the node object was deleted meanwhile
}

// RolledBack says that what the run had set on a node is undone.
type RolledBack struct {
	Node    string
	Removed []string
}

// Returned says that a node is back in the rotation of a Service, after uncordon.
type Returned struct {
	Node, Service, Hook, Detail string
	After                       time.Duration
}

// Rebalanced says that a pod was evicted elsewhere so that a node gets an endpoint again, and where its replacement went.
type Rebalanced struct {
	Node string
	Moved
}

// ReturnPending says for what a node waits before it may be back in the rotation of a Service.
type ReturnPending struct {
	Node, Service, Hook string // Service and Hook are empty when the node waits for itself
	For                 string
	Elapsed, Timeout    time.Duration
}

// Surging says that one more replica of a workload was started, or taken over from an earlier run.
type Surging struct {
	Node, Workload, What string // What: "replicas 1 -> 2"
	Taken                bool
}

// SurgePending says for what the replica of a workload waits.
type SurgePending struct {
	Node, Workload, For string
	Elapsed, Timeout    time.Duration
}

// Surged says that the replica of a workload is Ready, and on which nodes that stay its pods are.
type Surged struct {
	Node, Workload string
	On             []string
	After          time.Duration
}

// Unsurged says that the number of replicas of a workload is what it was before.
type Unsurged struct{ Node, Workload string }

// Warned is a warning that ends nothing.
type Warned struct{ Text string }

func (Planned) event()       {}
func (Cordoned) event()      {}
func (Uncordoned) event()    {}
func (Resumed) event()       {}
func (Withdrawing) event()   {}
func (ProofPending) event()  {}
func (Proven) event()        {}
func (NotProven) event()     {}
func (Relied) event()        {}
func (Held) event()          {}
func (Wave) event()          {}
func (PodEvicted) event()    {}
func (PodGone) event()       {}
func (PodBlocked) event()    {}
func (Waiting) event()       {}
func (Verified) event()      {}
func (Drained) event()       {}
func (RolledBack) event()    {}
func (Returned) event()      {}
func (ReturnPending) event() {}
func (Rebalanced) event()    {}
func (Warned) event()        {}
func (Surging) event()       {}
func (SurgePending) event()  {}
func (Surged) event()        {}
func (Unsurged) event()      {}

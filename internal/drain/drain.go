// Package drain is the run: plan, claim, withdraw, prove, settle, evict, wait, verify; and its undoing.
// It never prints: it emits typed progress values (events.go) and returns a report.
package drain

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Hooks is what a run needs of internal/hookset.
type Hooks interface {
	cluster.Matcher
	// Hook returns the hook of that name.
	Hook(name string) (lbhooks.Hook, bool)
}

// DryRun says how much of a run is real.
type DryRun string

// The values of --dry-run.
const (
	DryRunNone   DryRun = "none"
	DryRunClient DryRun = "client" // nothing is sent: the plan
	DryRunServer DryRun = "server" // cordon, label and evictions are sent with dryRun=All; no hook is called
)

// Options are one run of `safedrain NODE...`.
type Options struct {
	Nodes                    []string
	Flags                    guard.Flags
	PodSelector              labels.Selector // nil: all pods
	StayUp                   bool
	Timeout                  time.Duration  // of the whole drain of a node; 0: none
	GracePeriod              int64          // seconds; negative: each pod's own
	SkipWaitForDeleteTimeout time.Duration  // pods whose deletion is older are not waited for; 0: all are
	HookTimeout              time.Duration  // of each proof
	HookTimeoutTyped         bool           // HookTimeout wins over what the configuration says of a Service
	Settle                   *time.Duration // overrides each hook's own settle time; nil: the hook's
	Parallel                 bool           // several nodes side by side
	WaitReplacements         bool
	Rollback                 bool // undo on every outcome but success
	TakeOver                 bool // take over another run's claim at once
	DryRun                   DryRun
	Deadline                 time.Duration // after which the nodes are gone whatever happens; 0: none
	Surge                    surge.Scope   // workloads of which one more replica is started before their pods go
}

// Outcome is how a run ended; its number is the exit code.
type Outcome int

// The outcomes, design: 5 before 4 before 3 when several nodes differ.
const (
	Done        Outcome = 0
	Failed      Outcome = 1
	Refused     Outcome = 3
	Unfinished  Outcome = 4
	HookFailed  Outcome = 5
	Interrupted Outcome = 130
)

// NodeState is what stands on a node when a run ends, for the last lines of its output.
type NodeState struct {
	Name     string
	Deleted  bool
	Cordoned bool
	Labelled bool
	Claimed  bool
	OutOf    []string // hooks the node is proven out of
	// Covered are the endpoints that were left elsewhere, at the end, of each Service that was served from the node; nil
	// when the run did not come that far.
	Covered   map[guard.Key]int
	PodsTotal int // that were to go
	PodsGone  int
	Evicted   int             // evictions that were granted; their pods may not be gone yet
	Remaining []guard.PodPlan // that were to go and are still there
	Blocked   []Blocked       // why pods are still there, grouped
}

// Changed reports whether the run left something of the node otherwise than it was: what was set, or a pod less.
func (s *NodeState) Changed() bool {
	return s.Deleted || s.Cordoned || s.Labelled || s.Claimed || s.PodsGone > 0 || s.Evicted > 0
}

// Blocked is a group of pods that are held by the same thing.
type Blocked struct {
	By      string   // "budget pay/ledger (0 of 1 allowed)", "webhook x", ...
	Pods    []string // namespace/name, sorted
	Details []string // what was answered for them last, each text once
}

// Result is what a run returns. Err is nil exactly when Outcome is Done.
type Result struct {
	Report  *guard.DrainReport
	Outcome Outcome
	Err     error
	Nodes   []NodeState
	Took    time.Duration
}

// Runner carries out runs. Its fields are set once, before the first call.
type Runner struct {
	Client kubernetes.Interface
	// Dynamic changes the objects that own a number of replicas; nil: none is changed.
	Dynamic dynamic.Interface
	Hooks   Hooks
	// Load builds a fresh snapshot for these nodes.
	Load func(ctx context.Context, nodes []string) (*cluster.Snapshot, error)
	// Places is Load that says, too, where pods can be placed; nil: nobody looks.
	Places func(ctx context.Context, nodes []string) (*cluster.Snapshot, error)
	// Emit receives progress; it must not block for long. It may be called from several goroutines at once.
	Emit   func(Event)
	Clock  clock.WithTicker
	RunID  string // identity of this run
	Holder string // user@host, for other people's messages
	// Soft is closed at the first signal: finish the call in flight, start nothing new. The ctx of a method ends at the second.
	Soft <-chan struct{}
}

// RestoreOptions are one run of `safedrain uncordon`.
type RestoreOptions struct {
	Nodes       []string
	Strays      bool          // replicas too that runs have started whose nodes are gone
	WaitTimeout time.Duration // for pods that are coming
	// Rebalance are the Services, as namespace/name, for which a pod may be evicted elsewhere so that the node gets an
	// endpoint again; "all": those that want one here.
	Rebalance []string
	DryRun    DryRun
}

// Restored is what uncordon did to a node.
type Restored struct {
	Node     string
	Services []RestoredService
	Moved    []Moved // pods that were evicted elsewhere for this node
	Warnings []string
	StaysOut []string // what could not be put back, and why, for people; empty when everything is
}

// RestoredService is one Service that a node was put back for.
type RestoredService struct {
	Service string // namespace/name
	Hook    string
	Back    bool
	Detail  string
}

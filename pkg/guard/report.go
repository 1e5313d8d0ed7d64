package guard

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// APIVersion of every document that safedrain prints.
const APIVersion = "safedrain.dev/v1alpha1"

// Kinds of the documents.
const (
	KindDrainPlan      = "DrainPlan"
	KindDrainReport    = "DrainReport"
	KindCoverageReport = "CoverageReport"
	KindScalePlan      = "ScalePlan"
)

// Verdict is the answer of a plan; the worst of a plan's parts is the plan's.
type Verdict string

// Safe < Withdraw < Unproven < Unsafe.
const (
	Safe     Verdict = "Safe"
	Withdraw Verdict = "Withdraw"
	Unproven Verdict = "Unproven"
	Unsafe   Verdict = "Unsafe"
)

var verdictRank = map[Verdict]int{Safe: 0, Withdraw: 1, Unproven: 2, Unsafe: 3}

// Worse returns the worse of two verdicts.
func (v Verdict) Worse(o Verdict) Verdict {
	if verdictRank[o] > verdictRank[v] {
		return o
	}
	return v
}

// Policy says which traffic policies of a Service are Local.
type Policy string

// The values of ServicePlan.Policy.
const (
	PolicyExternal Policy = "External"
	PolicyInternal Policy = "Internal"
	PolicyBoth     Policy = "Both"
)

// State is what a node has of a Service.
type State string

// Serving: a Ready local endpoint. Terminating: none, but local ones that serve while they terminate. Empty: neither.
const (
	StateServing     State = "Serving"
	StateTerminating State = "Terminating"
	StateEmpty       State = "Empty"
)

// Balancer is who fronts a Service and how a node leaves it.
type Balancer struct {
	Hook     string  `json:"hook"` // "none" when no balancer is known
	Removal  Removal `json:"removal"`
	Evidence string  `json:"evidence,omitempty"`
	Moves    []Move  `json:"-"`
	// Settle and Timeout are what the Service or the configuration states; nil and 0: nothing.
	Settle  *time.Duration `json:"-"`
	Timeout time.Duration  `json:"-"`
}

// Count is a number before and after.
type Count struct {
	Before int `json:"before"`
	After  int `json:"after"`
}

// NodeRow is one node of one Service.
type NodeRow struct {
	Name       string     `json:"name"`
	Before     State      `json:"before"`
	After      State      `json:"after"`
	InRotation InRotation `json:"inRotation,omitempty"`
	May        bool       `json:"may,omitempty"`       // of a scaling: the node may go to After, which is not certain
	Ports      []string   `json:"ports,omitempty"`     // "name/protocol", where only some ports are affected
	Families   []string   `json:"families,omitempty"`  // where only one of two families is
	Endpoints  int        `json:"endpoints,omitempty"` // Ready ones on the node, in the audit
	Probe      *NodeProbe `json:"probe,omitempty"`     // only where the audit probed
}

// ServicePlan is the judgement of one Local Service.
type ServicePlan struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Policy    Policy    `json:"policy"`
	Verdict   Verdict   `json:"verdict"`
	Balancer  Balancer  `json:"balancer"`
	Endpoints Count     `json:"endpoints"`
	Nodes     []NodeRow `json:"nodes"`
	Findings  []Finding `json:"findings"`
	NodePorts []int32   `json:"nodePorts,omitempty"`
	Hold      *HoldPlan `json:"hold,omitempty"` // how its pods are held, where that is the means of removal
	// Replacements is where the pods that go may run again; nil where that was not judged or none goes.
	Replacements *Replacements `json:"replacements,omitempty"`
}

// Key returns the Service's key.
func (s *ServicePlan) Key() Key { return Key{s.Namespace, s.Name} }

// Entry is a Service of policy Cluster whose balancer also uses a drained node as a way in.
type Entry struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Nodes     []string  `json:"nodes"`
	Balancer  Balancer  `json:"balancer"`
	Provable  bool      `json:"provable"`
	Left      int       `json:"left"` // nodes that stay as an entry
	Findings  []Finding `json:"findings,omitempty"`
}

// Key returns the Service's key.
func (e *Entry) Key() Key { return Key{e.Namespace, e.Name} }

// Action is what becomes of a pod.
type Action string

// Evict asks the eviction API, Delete bypasses budgets, Skip leaves the pod, Refuse stops the drain before it starts.
const (
	ActionEvict  Action = "Evict"
	ActionDelete Action = "Delete"
	ActionSkip   Action = "Skip"
	ActionRefuse Action = "Refuse"
)

// PodPlan is one pod on a drained node.
type PodPlan struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Node      string    `json:"node"`
	Action    Action    `json:"action"`
	After     []string  `json:"after,omitempty"` // Services, namespace/name, whose withdrawal it waits for
	Reason    string    `json:"reason,omitempty"`
	// Waiting says that the pod is already terminating: it is not evicted, but waited for.
	Waiting bool `json:"-"`
	// Held says that a budget does not allow the eviction now.
	Held  bool          `json:"-"`
	Grace time.Duration `json:"-"`
}

// Key returns the pod's key.
func (p *PodPlan) Key() Key { return Key{p.Namespace, p.Name} }

// DrainPlan is the contract of `safedrain plan`; sorted throughout.
type DrainPlan struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Nodes      []string      `json:"nodes"`
	Verdict    Verdict       `json:"verdict"`
	Accepted   []string      `json:"accepted"`
	Services   []ServicePlan `json:"services"`
	Withdraw   []Entry       `json:"withdraw"`
	Pods       []PodPlan     `json:"pods"`
	Findings   []Finding     `json:"findings"`
	Surges     []Surge       `json:"surges,omitempty"` // what --surge starts first, and what it cannot; sorted
}

// Refused reports whether the plan may not be carried out.
func (p *DrainPlan) Refused() bool { return verdictRank[p.Verdict] >= verdictRank[Unproven] }

// CoverageReport is the contract of `safedrain audit`.
type CoverageReport struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Services   []ServicePlan `json:"services"`
	Findings   []Finding     `json:"findings"`
	Skipped    Skipped       `json:"skipped"`
	Probe      *ProbeSummary `json:"probe,omitempty"` // only where the audit probed
	Hazards    []Hazard      `json:"-"`               // the findings again, as what mends them wants to know them; sorted
}

// Skipped counts what an audit did not look at, with the reason as the field's name.
type Skipped struct {
	ClusterPolicy int `json:"clusterPolicy"`
	OtherProxy    int `json:"otherProxy"` // labelled service.kubernetes.io/service-proxy-name
	Headless      int `json:"headless"`
	ExternalName  int `json:"externalName"`
}

// Request is what a drain is asked to do.
type Request struct {
	Nodes   []string // sorted, known to the Index
	Run     string   // identity of the run at hand; claims of this run do not count as another's
	StayUp  bool     // the nodes go on running: only evicted endpoints are lost
	Flags   Flags
	SkipPod func(labels map[string]string) bool // pods that --pod-selector leaves out; nil for none
	Cluster *placement.Cluster                  // where pods can be placed; nil: nothing is said of replacements
	Surges  []Surge                             // replicas that are started before the pods of the nodes go
}

// Flags are the options of kubectl drain that decide about pods, and ours that accept findings.
type Flags struct {
	IgnoreDaemonSets   bool
	DeleteEmptyDirData bool
	Force              bool
	DisableEviction    bool
	RespectDoNotEvict  bool
	AcceptUnproven     []string      // "namespace/name", globs of it, or "all"
	ForceUnsafe        []string      // "service/ns/name", "pod/ns/name", "ns/name" of a Service, or "all"
	WaitBudget         []string      // "namespace/name" or "all"
	Hold               []string      // Services whose pods may be held: "namespace/name" or "all"
	Deadline           bool          // the nodes go at a time that is near: what nobody can prove refuses nothing
	Together           bool          // the nodes are drained side by side
	GracePeriod        time.Duration // negative: each pod's own
}

// Step is one thing that a run did.
type Step struct {
	Name     string    `json:"name"` // claim, withdraw, prove, hold, settle, evict, verify, replacements, rollback
	Node     string    `json:"node,omitempty"`
	Service  string    `json:"service,omitempty"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	Outcome  string    `json:"outcome"` // done, failed, timedOut, blocked, skipped, interrupted
	Evidence string    `json:"evidence,omitempty"`
}

// DrainReport is the contract of `safedrain NODE`: the plan as it was carried out, and what was done.
type DrainReport struct {
	DrainPlan `json:",inline"`
	Steps     []Step `json:"steps"`
}

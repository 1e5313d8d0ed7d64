// Package lbhooks defines how safedrain talks to load balancers: the [Hook] interface, what it sees, its results and its
// errors. Each sub-package is one balancer and has the same files: hook.go, match.go, prove.go and their tests.
package lbhooks

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/guard"
)

// The vocabulary of rotation is guard's; hooks use it under these names and import guard nowhere.
type (
	// Rotation is what a hook knows of a Service's balancer from objects alone.
	Rotation = guard.Rotation
	// Seat is one node's place in a rotation.
	Seat = guard.Seat
	// Move is an address that is predicted to change nodes.
	Move = guard.Move
	// HealthCheck is how a balancer probes healthCheckNodePort.
	HealthCheck = guard.HealthCheck
)

// Values of Seat.In and Rotation.Removal.
const (
	Yes                = guard.Yes
	No                 = guard.No
	Unknown            = guard.Unknown
	RemovalLabel       = guard.RemovalLabel
	RemovalHook        = guard.RemovalHook
	RemovalHealthCheck = guard.RemovalHealthCheck
	RemovalNone        = guard.RemovalNone
)

// Names in the API that several hooks read.
const (
	// ExcludeLabel on a Node asks balancers to leave it out. safedrain always writes the value "true".
	ExcludeLabel = corev1.LabelNodeExcludeBalancers
	// AnnotationDrain on a Node is the claim of the run that drains it.
	AnnotationDrain = "safedrain.dev/drain"
	// AnnotationHook on a Service names the hook that fronts it.
	AnnotationHook = "safedrain.dev/hook"
	// AnnotationNodes on a Service is a label selector of the nodes an outside balancer uses, or "none".
	AnnotationNodes = "safedrain.dev/nodes"
	// AnnotationSettle on a Service accepts a time in place of a proof.
	AnnotationSettle = "safedrain.dev/settle"
	// AnnotationHealthCheck on a Service states the balancer's check: "interval=10s,unhealthy=3,timeout=5s".
	AnnotationHealthCheck = "safedrain.dev/health-check"
)

// Objects is what matching may look at: objects that were listed before, live or from files.
type Objects interface {
	// Nodes lists the nodes, sorted by name. Matching may read their labels, spec, addresses and the status of conditions, and
	// whether they are [Claimed] or being deleted: rotations are not derived anew when anything else of a node changes.
	Nodes() []*corev1.Node
	// Slices lists the EndpointSlices of a Service.
	Slices(namespace, service string) []*discoveryv1.EndpointSlice
	// Custom lists objects of a kind that a hook named in Needs; empty when the kind is not served or not in the files.
	Custom(schema.GroupKind) []*unstructured.Unstructured
	// Agents lists the pods that a hook named in Needs, with their node and conditions.
	Agents(hook string) []*corev1.Pod
	// DaemonSet returns a DaemonSet, where DaemonSets could be read: how its template is placed, not what it runs.
	DaemonSet(namespace, name string) (*appsv1.DaemonSet, bool)
	// Leaving reports whether a node is named in the run or is leaving: such a node cannot take over.
	Leaving(node string) bool
}

// Hook is one kind of balancer. All methods are idempotent; those with a context obey it and its deadline.
type Hook interface {
	// Describe names the hook and what it needs.
	Describe() Description
	// Match tells from objects alone whether this hook fronts the Service, and if so what it knows of its rotation.
	Match(svc *corev1.Service, objects Objects) (Rotation, bool)
	// Withdraw takes the node out of the rotation of the Service. Hooks whose removal is Label or HealthCheck do nothing:
	// the label is set once, by the drain.
	Withdraw(ctx context.Context, t Target) error
	// Prove makes one observation. It returns a Proof with Out false, not an error, while the node is still in.
	Prove(ctx context.Context, t Target) (Proof, error)
	// Restore puts the node back; the counterpart of Withdraw.
	Restore(ctx context.Context, t Target) error
}

// Target is one Service on one node.
type Target struct {
	Service *corev1.Service
	Node    *corev1.Node
}

// Proof is one observation of a Service's rotation.
type Proof struct {
	Out      bool
	Evidence string // one line: what was seen, for people
	By       string // who took over, when the balancer names one; else ""
	// Idle says that nothing is sent to the node now although it is not out: the balancer's own check of it fails, say, and
	// may pass again at any time. Hooks that cannot tell leave it out.
	Idle bool
	// Settle replaces Description.Settle when it is not nil: this observation was weaker or stronger than the usual one.
	Settle *time.Duration
}

// Assertable is a hook that can front a Service to which nothing in the objects ties it, when a user names it.
type Assertable interface {
	Hook
	// Assert returns the rotation of a Service that the user says this hook fronts.
	Assert(svc *corev1.Service, objects Objects) Rotation
}

// Paced is a hook with its own pace of observation, such as one that stands in for a balancer's health check.
type Paced interface {
	Hook
	// Pace returns the time between two observations and how many in a row make a proof.
	Pace(t Target) (poll time.Duration, stable int)
}

// NeighboursUnseen ends the evidence of an address that moved: switches and clients keep the old place for a while, which
// nothing in the cluster shows. The settle time is for them.
const NeighboursUnseen = "; what neighbours have cached is not seen"

// Description is the static side of a hook.
type Description struct {
	Name string
	// Generic hooks match by default; a specific one that matches the same Service wins.
	Generic bool
	// Witness says in a few words what proves a removal; "" when nothing does.
	Witness string
	// Settle is the time to wait after the proof, because the balancer's data plane lags behind its API.
	Settle time.Duration
	Needs  []Need
}

// Need is a kind of object that a hook reads.
type Need struct {
	Group, Version, Resource, Kind string
	Namespaced                     bool
	// Labels, when set, narrows a LIST of pods to the hook's agents.
	Labels string
	Verbs  []string
	// Optional needs make the proof better; without them the hook still works. Why says what is lost.
	Optional bool
	Why      string
}

// Preflight is implemented by hooks whose balancer takes a node out by a check of its own, which has to be seen working
// before it is relied on.
type Preflight interface {
	// Before looks at the node and at others that are to carry the Service, before anything of it is evicted. It returns
	// one line of evidence, or an error that matches [ErrNotProven] when the check cannot be relied on.
	Before(ctx context.Context, t Target, others []*corev1.Node) (evidence string, err error)
}

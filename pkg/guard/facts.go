package guard

import (
	"cmp"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Key names a namespaced object.
type Key struct {
	Namespace string
	Name      string
}

// String returns "namespace/name".
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Compare orders keys by namespace, then by name.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// Leaving says why the endpoints of a node no longer count as ones that stay. The zero value means that the node stays.
type Leaving string

// Reasons for which a node is leaving, apart from being named in the run at hand.
const (
	Stays            Leaving = ""
	LeavingClaimed   Leaving = "claimed by another drain"
	LeavingScaleDown Leaving = "tainted ToBeDeletedByClusterAutoscaler"
	LeavingDisrupted Leaving = "tainted karpenter.sh/disrupted"
	LeavingOutOfSvc  Leaving = "tainted node.kubernetes.io/out-of-service"
	LeavingDeleted   Leaving = "being deleted"
)

// Claim is what guard needs to know of the annotation safedrain.dev/drain on a node; internal/claim owns its format.
type Claim struct {
	Run      string   // identity of the run that holds it
	Holder   string   // who, for messages
	Nodes    []string // every node of that run
	Phase    string   // claimed, granted, withdrawn, proven or closing
	Labelled bool     // the run set the exclude label
	Ended    bool     // the run is over and kept its claim
	Services map[Key]ClaimedService
}

// ClaimedService is what a claim says of one Service that the node is to leave.
type ClaimedService struct {
	Hook     string
	Since    *time.Time // the node has been leaving since then; nil in claims of versions that did not say
	Until    *time.Time // the proof is given up, or, where none is to come or it has come, the pods may go
	ProofAt  *time.Time // nil while it is not proven
	Unproven bool       // no proof is to come: accepted, the pods go after a time
	Released bool       // the pods of the Service may go
}

// NodeFacts is what the rules need of one Node.
type NodeFacts struct {
	Name         string
	Zone         string    // label topology.kubernetes.io/zone
	Ready        bool      // condition Ready is True
	ReadySince   time.Time // of that condition; zero while the node is not Ready, or where nobody says
	Unreachable  bool      // condition Ready is Unknown: the kubelet is silent
	Cordoned     bool      // spec.unschedulable
	ControlPlane bool      // label node-role.kubernetes.io/control-plane or master
	Virtual      bool      // a virtual-kubelet node: no machine that a balancer could reach
	Leaving      Leaving
	Excluded     *string // value of the label node.kubernetes.io/exclude-from-external-load-balancers, nil when absent
	Labels       map[string]string
	Taints       []corev1.Taint
	Addresses    []string // status.addresses of types InternalIP and ExternalIP
	Claim        *Claim   // nil when no claim stands on the node
}

// Endpoint is one address of one Service port in one family, as its EndpointSlice states it.
type Endpoint struct {
	Addr        netip.Addr
	Port        uint16    // the target port; copies of one endpoint agree in address and port
	Node        string    // nodeName; "" when the slice names none, and then no node treats it as local
	Pod         types.UID // "" when no Pod stands behind it
	PodKey      Key       // zero when no Pod stands behind it
	Ready       bool      // conditions as kube-proxy reads them: nil ready and nil serving are true, nil terminating is false
	Serving     bool
	Terminating bool
}

// Port is one Service port in one IP family: kube-proxy decides for each of them alone.
type Port struct {
	Name      string // "" for an unnamed port
	Protocol  corev1.Protocol
	Family    corev1.IPFamily
	NodePort  int32      // 0 when there is none
	Endpoints []Endpoint // every copy of every slice, in any order
}

// InRotation says whether a balancer sends new traffic for a Service to a node.
type InRotation string

// The three answers; Unknown means that nothing in the cluster can tell.
const (
	Yes     InRotation = "Yes"
	No      InRotation = "No"
	Unknown InRotation = "Unknown"
)

// Seat is the place of a node in a Service's rotation.
type Seat struct {
	In       InRotation
	Eligible bool   // in rotation, or able to enter it as soon as it has a usable endpoint or another node leaves
	Why      string // why not eligible, or on what evidence; may be empty
}

// Removal is the means by which a node leaves the rotation of a Service.
type Removal string

// The means of removal of the contract.
const (
	RemovalLabel       Removal = "Label"       // the exclude label on the node
	RemovalHook        Removal = "Hook"        // a call of the hook
	RemovalHealthCheck Removal = "HealthCheck" // the balancer's own check of healthCheckNodePort
	RemovalHold        Removal = "Hold"        // the same check, made to fail while the pods still serve
	RemovalNone        Removal = "None"
)

// HealthCheck is how a balancer that honours healthCheckNodePort probes it.
type HealthCheck struct {
	Interval  time.Duration
	Timeout   time.Duration
	Unhealthy int    // failures in a row after which the node is out
	Source    string // where the numbers come from: an annotation, a provider's defaults, or ours
	Resets    string // why a node whose check fails loses its open connections; "" where it keeps them
}

// Rotation is what is known of a Service's balancer from objects alone: who fronts it, to which nodes it sends, how a
// node is taken out and whether that can be proven. Hooks fill it in; the zero value is "no balancer known".
type Rotation struct {
	Hook           string // name of the hook; "" means that no balancer is known
	Reason         string // why that hook matched
	Evidence       string // on what the seats rest
	Removal        Removal
	Provable       bool            // the hook can observe that a node has left
	Follows        bool            // the balancer by itself sends only to nodes with a usable (or ready) endpoint
	Declared       bool            // the seats come from the annotation safedrain.dev/nodes
	Nobody         bool            // safedrain.dev/nodes is "none": nobody outside sends to any node
	Seats          map[string]Seat // by node name
	Shared         map[string]Seat // of further nodes; the same map for many Services, so nobody writes to it; Seats wins
	Rest           Seat            // the seat of every node in neither
	HealthCheck    *HealthCheck    // not nil when the balancer is known to honour healthCheckNodePort
	PodTargets     *HealthCheck    // not nil when the balancer sends to pods, past nodes: how long it sends on to one that ends
	FollowsServing bool            // announcers that count serving endpoints: the grace of a pod cannot take the node out
	Settle         *time.Duration  // accepts for good that the lever has no witness; after a proof it is waited for
	SettleBy       string          // who says so: the annotation safedrain.dev/settle, a rule of the configuration
	Timeout        time.Duration   // of a proof, from a rule of the configuration, else from a hook that is known to be slow; 0: that of the run
	Unsupported    string          // a combination that the balancer's own documentation rules out; "" when fine
	Conflict       []string        // two or more specific hooks that claim the Service
	ZoneBlind      bool            // announcers, to which the zones of nodes mean nothing
	NoProof        string          // why the hook cannot prove a removal of this Service, where there is more to say; else ""
	Broken         string          // live only: why the hook cannot work here (credentials, RBAC, CRD); "" when it can
	Alone          string          // live only: why the balancer would have nobody else to send to, as it sees its nodes itself; "" otherwise
	Moves          []Move          // addresses that would move, predicted for the nodes of the request
}

// Move is an address that one node announces now and another is predicted to announce next.
type Move struct {
	Address string
	From    string
	To      string // "" when nobody would
}

// Seat returns the seat of a node.
func (r *Rotation) Seat(node string) Seat {
	if s, ok := r.Seats[node]; ok {
		return s
	}
	if s, ok := r.Shared[node]; ok {
		return s
	}
	return r.Rest
}

// ServiceFacts is what the rules need of one Service.
type ServiceFacts struct {
	Key             Key
	Type            corev1.ServiceType
	External        bool // externally reachable and externalTrafficPolicy Local
	Internal        bool // internalTrafficPolicy Local
	PublishNotReady bool
	Selectorless    bool
	Hold            bool    // annotation safedrain.dev/hold
	Gate            string  // annotation safedrain.dev/gate, "" when absent
	Floor           string  // annotation safedrain.dev/floor, "" when absent
	HealthCheckPort int32   // spec.healthCheckNodePort, 0 when there is none
	NodePorts       []int32 // spec.ports[].nodePort that are not 0, sorted
	Selector        map[string]string
	Ports           []Port
	Rotation        Rotation
	SharedWith      []Key // Services that have an address in common with this one, sorted
}

// Local reports whether a traffic policy of the Service is Local in a way that has an effect.
func (s *ServiceFacts) Local() bool { return s.External || s.Internal }

// Workload is an owner of pods with its template, as the audit needs it.
type Workload struct {
	Kind     string // Deployment, StatefulSet, DaemonSet
	Key      Key
	Replicas int32             // desired; for a DaemonSet the number it has scheduled
	Labels   map[string]string // of the template
	Spec     *corev1.PodSpec   // of the template
	Selector *metav1.LabelSelector
	Rollout  Rollout
	// Autoscalers scale it, sorted by name.
	Autoscalers []Autoscaler
}

// Rollout is how a workload replaces its pods when its template changes.
type Rollout struct {
	Type        string // RollingUpdate, Recreate or OnDelete
	Surge       int    // pods that may come before others go, as the controller rounds them; of a DaemonSet: on a node
	Unavailable int    // pods that may be missing meanwhile
}

// Title names a workload as kubectl does: "deployment/web".
func (w *Workload) Title() string { return strings.ToLower(w.Kind) + "/" + w.Key.Name }

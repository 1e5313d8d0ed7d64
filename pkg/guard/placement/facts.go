package placement

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cluster is what is known of a cluster in which pods are to be placed. Its facts are only read; they must not change once
// a state was lent.
type Cluster struct {
	Nodes      []Node
	Pods       []Occupant                   // pods bound to a node, each once
	Namespaces map[string]map[string]string // labels by namespace; a namespace that is missing has none
	Volumes    *Volumes                     // nil: not read, and nothing is said of pods that have claims

	mu    sync.Mutex
	spare *State // as the cluster is; nil while it is lent
}

// Lend returns the state of the cluster before anything goes, and what gives it back. Making a state takes a look at every
// pod; one that is given back is lent again, so that many drains of one cluster can be judged.
func (c *Cluster) Lend() (s *State, giveBack func()) {
	c.mu.Lock()
	s, c.spare = c.spare, nil
	c.mu.Unlock()
	if s == nil {
		s = New(c)
	}
	return s, func() {
		s.undo()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.spare = s
	}
}

// Node is one node: its labels, spec.taints, spec.unschedulable, status.allocatable and status.declaredFeatures are read.
type Node struct {
	Object *corev1.Node
	// Whole says that every pod of the node is among the Cluster's. Rules about what is on a node pass where it is not.
	Whole bool
}

// Occupant is what the rules read of a pod that has a node. It takes a fraction of the pod's memory.
type Occupant struct {
	UID       types.UID
	Namespace string
	Name      string
	Node      string
	Labels    map[string]string
	Owner     types.UID // of the controller; "" when there is none
	Ends      bool      // it has a deletion timestamp
	Requests  Resources
	Ports     []Port
	Anti      []corev1.PodAffinityTerm // required anti-affinity
	Volumes   []corev1.Volume          // those that a rule reads: claims and disks that exclude each other
}

// Port is a port that a pod takes of its host.
type Port struct {
	IP       string // "0.0.0.0" for every address
	Protocol corev1.Protocol
	Number   int32
}

// Volumes are the objects that say where volumes are. A kind that is empty has no objects.
type Volumes struct {
	Claims      map[types.NamespacedName]*corev1.PersistentVolumeClaim
	Volumes     map[string]*corev1.PersistentVolume
	Classes     map[string]*storagev1.StorageClass
	CSINodes    map[string]*storagev1.CSINode // by node
	Drivers     map[string]*storagev1.CSIDriver
	Attachments map[string][]*storagev1.VolumeAttachment // by node
	Capacities  []*storagev1.CSIStorageCapacity
}

// Counts reports whether the scheduler counts a pod as being on its node: bound and not finished.
//
// Source: addAllEventHandlers in k8s.io/kubernetes/pkg/scheduler/eventhandlers.go and its pod informer's field selector.
func Counts(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// OccupantOf reduces a pod to what the rules read of it. It shares labels, terms and volumes with the pod.
func OccupantOf(p *corev1.Pod) Occupant {
	o := Occupant{
		UID: p.UID, Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName, Labels: p.Labels,
		Ends: p.DeletionTimestamp != nil, Requests: held(p), Ports: portsOf(&p.Spec), Anti: antiAffinity(&p.Spec),
	}
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
		o.Owner = owner.UID
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil || excludes(v) {
			o.Volumes = append(o.Volumes, *v)
		}
	}
	return o
}

// Replacement returns the pod that a controller is expected to make in place of p: the same one without a node, a status
// and a UID. A pod without UID is one yet to be made: its ephemeral claims are taken from their templates.
func Replacement(p *corev1.Pod) *corev1.Pod {
	r := *p
	r.UID, r.DeletionTimestamp, r.Spec.NodeName = "", nil, ""
	r.Status = corev1.PodStatus{ExtendedResourceClaimStatus: p.Status.ExtendedResourceClaimStatus}
	return &r
}

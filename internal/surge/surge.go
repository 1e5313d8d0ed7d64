// Package surge starts one more replica of a workload before its pods are evicted, waits for it, and takes the count back:
// by the replicas of a Deployment, or, where an autoscaler owns them, by its least. What stood before is written with the
// change, in one patch, so that whoever comes later can put it back exactly.
package surge

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Scope says which workloads of a node get a replica first.
type Scope string

// The values of --surge.
const (
	Off  Scope = ""
	Last Scope = "last" // those behind a Service that the drain would leave without an endpoint
	All  Scope = "all"  // those behind any Service of policy Local
)

// Label on the object that was changed says from which number to which, and by which run: "1-2-3f2b9c1d". It is a label,
// since the Deployment controller copies annotations to ReplicaSets, never takes them back, and a rollback brings them up
// again.
const Label = "safedrain.dev/surge"

// Bringer starts replicas and takes them back. Its fields are set once.
type Bringer struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	Clock   clock.WithTicker
	Run     string
}

// kind is a kind of object that owns a number of replicas.
type kind struct {
	resource schema.GroupVersionResource
	field    string // under spec
	most     string // under spec: the largest number that the object allows; "" where there is none
}

// Kinds of levers.
const (
	kindDeployment   = "deployment"
	kindAutoscaler   = "horizontalpodautoscaler"
	kindScaledObject = "scaledobject" // of KEDA, which owns the autoscaler
)

var kinds = map[string]kind{
	kindDeployment: {schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "replicas", ""},
	kindAutoscaler: {
		schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}, "minReplicas", "maxReplicas",
	},
	kindScaledObject: {
		schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}, "minReplicaCount", "maxReplicaCount",
	},
}

// Lever is the object by which the replicas of a Deployment are raised: the one that owns their number.
type Lever struct {
	Kind     string // a key of kinds
	Name     string // in the namespace of the Deployment
	Workload guard.Key
}

// String is "horizontalpodautoscaler/web:shop/web".
func (l Lever) String() string { return l.Kind + "/" + l.Name + ":" + l.Workload.String() }

// field words what is changed: "replicas", "minReplicas of horizontalpodautoscaler/web".
func (l Lever) field() string {
	if l.Kind == kindDeployment {
		return kinds[l.Kind].field
	}
	return kinds[l.Kind].field + " of " + l.Kind + "/" + l.Name
}

// Title names the Deployment: "deployment shop/web".
func (l Lever) Title() string { return kindDeployment + " " + l.Workload.String() }

// setPrefix begins the value of claim.Claim.Set for a surge.
const setPrefix = "surge:"

// Set is the value of claim.Claim.Set under which a node's claim remembers the surge.
func (l Lever) Set() string { return setPrefix + l.String() }

// ParseSet is the inverse of [Lever.Set]; false for every other value.
func ParseSet(set string) (Lever, bool) {
	rest, ok := strings.CutPrefix(set, setPrefix)
	if !ok {
		return Lever{}, false
	}
	object, workload, ok := strings.Cut(rest, ":")
	kind, name, slash := strings.Cut(object, "/")
	namespace, deployment, key := strings.Cut(workload, "/")
	if _, known := kinds[kind]; !ok || !slash || !key || !known {
		return Lever{}, false
	}
	return Lever{kind, name, guard.Key{Namespace: namespace, Name: deployment}}, true
}

// Failed says that a replica did not come.
type Failed struct {
	Workload string
	Why      string
	After    time.Duration // that it was waited for; 0: there was nothing to wait for
}

func (e *Failed) Error() string {
	if e.After <= 0 {
		return fmt.Sprintf("no replacement of %s comes: %s", e.Workload, e.Why)
	}
	return fmt.Sprintf("the replacement of %s did not come within %s: %s", e.Workload, e.After.Round(time.Second), e.Why)
}

package manners

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// AnnotationDelay on a Node keeps cluster-autoscaler from deleting the machine, once its pods are evicted, until the
// annotation is gone or --node-deletion-delay-timeout, by default two minutes, has passed. It has to stand there when the scale-down
// begins: WaitForDelayDeletion looks at the node as it was then.
const AnnotationDelay = "delay-deletion.cluster-autoscaler.kubernetes.io/safedrain"

// taintCandidate and taintScaleDown are cluster-autoscaler's.
const (
	taintCandidate = "DeletionCandidateOfClusterAutoscaler"
	taintScaleDown = "ToBeDeletedByClusterAutoscaler"
)

// StatusConfigMap is what cluster-autoscaler writes, unless --write-status-configmap=false; it shows that there is one.
var StatusConfigMap = guard.Key{Namespace: "kube-system", Name: "cluster-autoscaler-status"}

// Autoscaler delays the deletion of machines until their nodes are out of rotation and their pods are gone, so that connections
// outlive the pods' eviction and not the machine. Its fields are set before Run; only one runs in a cluster.
type Autoscaler struct {
	Client  kubernetes.Interface
	Store   *cluster.Store // filled before Run
	Log     *slog.Logger
	Clock   clock.WithTicker
	Options Options
	// Wanted, if set, reports whether evictions of a Service's pods are refused at all.
	Wanted func(*cluster.StoreView, *guard.ServiceFacts) bool

	present atomic.Bool
}

// Run works until ctx ends. Without a cluster-autoscaler it writes nothing and looks for one from time to time.
func (a *Autoscaler) Run(ctx context.Context) error {
	if err := a.detect(ctx); err != nil {
		return err
	}
	n := newNodes(a.Store, a.Clock, a.Log, a.Options, a.look)
	go func() {
		tick := a.Clock.NewTicker(a.Options.Resync)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C():
				if err := safely.Call(func() error { return a.detect(ctx) }); err != nil && ctx.Err() == nil {
					a.Log.Warn("cannot find out whether there is a cluster-autoscaler", "error", err)
				}
			}
		}
	}()
	n.run(ctx)
	return nil
}

// detect finds out whether there is a cluster-autoscaler: by what it writes, or by its taints. Who may not look there takes it
// that there is one.
func (a *Autoscaler) detect(ctx context.Context) error {
	if a.present.Load() {
		return nil
	}
	_, err := a.Client.CoreV1().ConfigMaps(StatusConfigMap.Namespace).Get(ctx, StatusConfigMap.Name, metav1.GetOptions{})
	switch {
	case err == nil, apierrors.IsForbidden(err):
		a.present.Store(true)
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for cluster-autoscaler's ConfigMap %s: %w", StatusConfigMap, err)
	}
	a.Store.Read(func(v *cluster.StoreView) {
		for node := range v.Nodes() {
			if tainted(node) {
				a.present.Store(true)
				return
			}
		}
	})
	return nil
}

func tainted(node *guard.NodeFacts) bool {
	for _, t := range node.Taints {
		if t.Key == taintCandidate || t.Key == taintScaleDown {
			return true
		}
	}
	return false
}

// look sets or removes the annotation on one node.
func (a *Autoscaler) look(ctx context.Context, name string) error {
	var has, want bool
	a.Store.Read(func(v *cluster.StoreView) {
		node, facts := nodeOf(v, name)
		if node == nil {
			return
		}
		if tainted(facts) {
			a.present.Store(true)
		}
		_, has = node.Annotations[AnnotationDelay]
		want = a.present.Load() && a.wants(v, facts, has)
	})
	if has == want {
		return nil
	}
	return annotate(ctx, a.Client, name, want)
}

// wants reports whether the machine of a node is to wait: while the node has endpoints behind a balancer, and, once it
// is leaving and they are gone, until it is proven out of rotation.
func (a *Autoscaler) wants(v *cluster.StoreView, node *guard.NodeFacts, has bool) bool {
	if needs(v, node.Name, a.Wanted) {
		return true
	}
	return has && node.Leaving != guard.Stays && !released(node.Claim)
}

// annotate sets or removes the annotation; a node that is gone needs none.
func annotate(ctx context.Context, client kubernetes.Interface, node string, set bool) error {
	value := any(nil)
	if set {
		value = "true"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{AnnotationDelay: value}}})
	if err != nil {
		return err
	}
	return patchNode(ctx, client, node, patch)
}

// own are the annotations of Nodes that this package and the reviews write; those of claims are not among them.
var own = []string{AnnotationDelay, claim.AnnotationRefused}

// ClearNodes takes off every node what the gate wrote there besides claims, as when it is uninstalled, and returns on how many
// nodes there was something. A dry run only counts them.
func ClearNodes(ctx context.Context, client kubernetes.Interface, dryRun bool) (int, error) {
	cleared := 0
	opts := metav1.ListOptions{Limit: 500}
	for {
		page, err := client.CoreV1().Nodes().List(ctx, opts)
		if err != nil {
			return cleared, fmt.Errorf("list nodes: %w", err)
		}
		for i := range page.Items {
			patch := unmarked(&page.Items[i])
			if patch == nil {
				continue
			}
			if !dryRun {
				if err := patchNode(ctx, client, page.Items[i].Name, patch); err != nil {
					return cleared, err
				}
			}
			cleared++
		}
		if page.Continue == "" {
			return cleared, nil
		}
		opts.Continue = page.Continue
	}
}

// unmarked is the patch that takes our annotations off a node; nil where there are none.
func unmarked(node *corev1.Node) []byte {
	var remove []string
	for _, key := range own {
		if _, ok := node.Annotations[key]; ok {
			remove = append(remove, fmt.Sprintf("%q:null", key))
		}
	}
	if len(remove) == 0 {
		return nil
	}
	return []byte(`{"metadata":{"annotations":{` + strings.Join(remove, ",") + `}}}`)
}

// patchNode patches a node; one that is gone needs nothing.
func patchNode(ctx context.Context, client kubernetes.Interface, name string, patch []byte) error {
	_, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate node %q: %w", name, err)
	}
	return nil
}

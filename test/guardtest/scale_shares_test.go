package guardtest

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller"
	deploymentutil "k8s.io/kubernetes/pkg/controller/deployment/util"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/sweep"
)

const wantedRollouts = 20_000

// TestSharesAgainstController shows that guard takes from each ReplicaSet of a Deployment what the Deployment controller's own
// code leaves too many, also in the middle of a rollout.
func TestSharesAgainstController(t *testing.T) {
	silenceKlog(t)
	s := sweep.Seed(t, rand.Uint64())
	r := rand.New(rand.NewPCG(s, 4))
	middle := 0
	for i := range wantedRollouts {
		d, sets := randomRollout(r)
		after := int32(r.IntN(int(*d.Spec.Replicas) + 1))
		target := &guard.ScaleTarget{
			Kind: "Deployment", Key: guard.Key{Namespace: "shop", Name: "web"}, Replicas: *d.Spec.Replicas, Deployment: d, ReplicaSets: sets, Pods: podsOf(sets),
		}
		plan := guard.JudgeScale(target, noNodes{}, after, time.Unix(1_800_000_000, 0))
		want, active := 0, 0
		if after < *d.Spec.Replicas {
			for name, size := range controllerSizes(d, sets, after) {
				set := byName(sets, name)
				want += max(0, int(*set.Spec.Replicas-size))
			}
		}
		for _, set := range sets {
			if *set.Spec.Replicas > 0 {
				active++
			}
		}
		if active > 1 && want > 0 {
			middle++
		}
		if got := plan.Workload.Pods.Before - plan.Workload.Pods.After; got != want {
			t.Fatalf("seed %d, rollout %d: %d pods are said to go, the controller's sizes take %d\n%s", s, i, got, want, describeRollout(d, sets, after))
		}
	}
	if middle < wantedRollouts/5 {
		t.Errorf("only %d of %d in the middle of a rollout", middle, wantedRollouts)
	}
}

// controllerSizes is scale in pkg/controller/deployment/sync.go, which is not exported, around the functions that are.
func controllerSizes(d *appsv1.Deployment, sets []*appsv1.ReplicaSet, after int32) map[string]int32 {
	scaled := d.DeepCopy()
	scaled.Spec.Replicas = &after
	sizes := map[string]int32{}
	for _, set := range sets {
		sizes[set.Name] = *set.Spec.Replicas
	}
	newest, old := sets[0], append([]*appsv1.ReplicaSet{}, sets[1:]...)
	if only := deploymentutil.FindActiveOrLatest(newest, old); only != nil {
		sizes[only.Name] = after
		return sizes
	}
	active := controller.FilterActiveReplicaSets(append(old, newest))
	allowed := int32(0)
	if after > 0 {
		allowed = after + deploymentutil.MaxSurge(*scaled)
	}
	add := allowed - deploymentutil.GetReplicaCountForReplicaSets(active)
	switch {
	case add > 0:
		sort.Sort(controller.ReplicaSetsBySizeNewer(active))
	case add < 0:
		sort.Sort(controller.ReplicaSetsBySizeOlder(active))
	}
	added := int32(0)
	for _, set := range active {
		if add != 0 {
			share := deploymentutil.GetReplicaSetProportion(klog.Background(), set, *scaled, add, added)
			sizes[set.Name] += share
			added += share
		}
	}
	if add != 0 {
		first := active[0].Name
		sizes[first] = max(0, sizes[first]+add-added)
	}
	return sizes
}

func randomRollout(r *rand.Rand) (*appsv1.Deployment, []*appsv1.ReplicaSet) {
	replicas := int32(1 + r.IntN(12))
	surge := pick(r, intstr.FromString("25%"), intstr.FromInt32(1), intstr.FromInt32(3), intstr.FromString("100%"), intstr.FromInt32(0))
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge}},
		},
	}
	var sets []*appsv1.ReplicaSet
	for i := range 1 + r.IntN(4) {
		n := int32(r.IntN(8))
		set := randomSet(fmt.Sprintf("rs-%d", i), ownerOf("Deployment", "web", "d"))
		set.Spec.Replicas = &n
		set.CreationTimestamp = metav1.NewTime(time.Unix(int64(r.IntN(3)), 0))
		set.Annotations = map[string]string{deploymentutil.MaxReplicasAnnotation: pick(r, strconv.Itoa(int(replicas)), strconv.Itoa(int(replicas)+3), "", "x", "0", "-1", "99999999999")}
		d.Status.Replicas += n
		sets = append(sets, set)
	}
	return d, sets
}

// podsOf makes the pods that sets have.
func podsOf(sets []*appsv1.ReplicaSet) []*corev1.Pod {
	var out []*corev1.Pod
	for _, set := range sets {
		for i := range *set.Spec.Replicas {
			name := fmt.Sprintf("%s-%d", set.Name, i)
			out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name, UID: types.UID(name), Labels: set.Spec.Selector.MatchLabels, OwnerReferences: ownerOf("ReplicaSet", set.Name, set.UID),
			}})
		}
	}
	return out
}

func byName(sets []*appsv1.ReplicaSet, name string) *appsv1.ReplicaSet {
	for _, set := range sets {
		if set.Name == name {
			return set
		}
	}
	return nil
}

func describeRollout(d *appsv1.Deployment, sets []*appsv1.ReplicaSet, after int32) string {
	text := fmt.Sprintf("from %d to %d, surge %s, status %d\n", *d.Spec.Replicas, after, d.Spec.Strategy.RollingUpdate.MaxSurge, d.Status.Replicas)
	for _, set := range sets {
		text += fmt.Sprintf("%s %d created %d, %v\n", set.Name, *set.Spec.Replicas, set.CreationTimestamp.Unix(), set.Annotations)
	}
	return text
}

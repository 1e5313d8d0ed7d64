package experiments

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

// placement puts the same number of pods of a workload on each node that the round uses. What a drain evicts fits nowhere
// else, and comes back with its node.
func (s *scene) placement() dataplane.PodOption {
	_, used := s.round.pods()
	if s.round.Anywhere {
		used = len(s.lab.Nodes)
	}
	names := make([]string, 0, used)
	for _, n := range s.lab.Nodes[:used] {
		names = append(names, n.Name)
	}
	return dataplane.WithSpec(func(t *corev1.PodTemplateSpec) {
		if s.round.Placed == nil {
			dataplane.WithSpread()(t)
			t.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.DoNotSchedule
		}
		t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names}},
			}}},
		}}
	})
}

// fill gives every workload its replicas. Those that are placed one by one are new ones: what an earlier run has left stands
// elsewhere.
func (s *scene) fill(ctx context.Context) error {
	if s.round.Placed == nil {
		return s.scale(ctx, s.round.replicas())
	}
	if err := errors.Join(s.scale(ctx, 0), s.empty(ctx)); err != nil {
		return err
	}
	nodes := []string{s.node}
	for _, n := range s.lab.Nodes {
		if n.Name != s.node {
			nodes = append(nodes, n.Name)
		}
	}
	replicas := 0
	for i, count := range s.round.Placed {
		replicas += count
		if err := errors.Join(s.only(ctx, nodes, nodes[i]), s.scale(ctx, replicas)); err != nil {
			return err
		}
		for _, app := range s.apps() {
			if _, err := s.lab.PodsReady(ctx, s.namespace, app, replicas); err != nil {
				return err
			}
		}
	}
	return s.only(ctx, nodes, nodes...)
}

// only lets some of the nodes take pods, and no others.
func (s *scene) only(ctx context.Context, nodes []string, open ...string) error {
	var errs []error
	for _, name := range nodes {
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, !slices.Contains(open, name))
		_, err := s.lab.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// empty waits until no pod is left.
func (s *scene) empty(ctx context.Context) error {
	return controlplane.Poll(ctx, restoreTime, "no pod in "+s.namespace, func(ctx context.Context) (bool, string, error) {
		list, err := s.lab.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		return len(list.Items) == 0, fmt.Sprintf("%d pods", len(list.Items)), nil
	})
}

// spread waits until each app has its Ready pods on every node and nothing else. Surplus pods are deleted, the youngest
// first, so that their replacements go where one is missing; at once if hurry.
func (s *scene) spread(ctx context.Context, apps []string, hurry bool) error {
	what := "a pod of each app on every node"
	asked := map[types.UID]bool{}
	return controlplane.Poll(ctx, restoreTime, what, func(ctx context.Context) (bool, string, error) {
		list, err := s.lab.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		state := ""
		for _, app := range apps {
			surplus, open := surplusOf(list.Items, app, s.round)
			if open != "" {
				state = app + ": " + open
			}
			if surplus == nil || asked[surplus.UID] {
				continue
			}
			asked[surplus.UID] = true
			if err := s.deletePod(ctx, surplus, hurry); err != nil {
				return false, "", err
			}
		}
		return state == "", state, nil
	})
}

func (s *scene) deletePod(ctx context.Context, pod *corev1.Pod, hurry bool) error {
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	if hurry {
		second := int64(1)
		options.GracePeriodSeconds = &second
	}
	err := s.lab.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// surplusOf finds a pod of an app that stands where too many do, and says what is still to come; nothing when each node
// has what the round gives it. What a DaemonSet or an exact placement puts right has no surplus.
func surplusOf(pods []corev1.Pod, app string, round *Round) (*corev1.Pod, string) {
	each, nodes := round.pods()
	byNode := map[string][]*corev1.Pod{}
	ready, terminating := 0, 0
	for i := range pods {
		p := &pods[i]
		switch {
		case p.Labels[dataplane.AppLabel] != app:
		case p.DeletionTimestamp != nil:
			terminating++
		case !podReady(p):
		default:
			ready++
			byNode[p.Spec.NodeName] = append(byNode[p.Spec.NodeName], p)
		}
	}
	if terminating > 0 || ready < each*nodes {
		return nil, fmt.Sprintf("%d Ready, %d terminating", ready, terminating)
	}
	if len(byNode) == nodes && ready == each*nodes {
		return nil, ""
	}
	var fullest []*corev1.Pod
	for _, name := range slices.Sorted(maps.Keys(byNode)) {
		if len(byNode[name]) > len(fullest) {
			fullest = byNode[name]
		}
	}
	if round.DaemonSet || round.Each > 0 && ready == each*nodes {
		return nil, fmt.Sprintf("%d Ready on %d nodes", ready, len(byNode))
	}
	return slices.MaxFunc(fullest, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	}), fmt.Sprintf("on %d nodes", len(byNode))
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

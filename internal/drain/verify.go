package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// verify looks at a node that seems drained once more: still this run's, cordoned and labelled; no pod left that is to
// go; every Service of the plan covered elsewhere. It returns the plan for another pass when pods came back.
func (n *nodeRun) verify(ctx context.Context) (*guard.DrainPlan, error) {
	end := n.step("verify", n.name, "")
	again, err := n.lookAgain(ctx)
	if err == nil && again != nil {
		end(nil, "pods came back")
		return again, nil
	}
	end(err, "")
	if err == nil {
		n.emit(Verified{Node: n.name})
	}
	return nil, err
}

func (n *nodeRun) lookAgain(ctx context.Context) (*guard.DrainPlan, error) {
	if err := n.stop.Err(); err != nil {
		return nil, err
	}
	var pods []corev1.Pod
	err := n.persist(ctx, func(ctx context.Context) (err error) {
		pods, _, err = n.listPods(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	plan, _ := n.current()
	if keys := n.localServices(plan); len(keys) > 0 {
		left, err := n.covered(ctx, keys...)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		n.verified = left
		n.mu.Unlock()
	}
	if !slices.ContainsFunc(pods, n.unexpected) {
		return nil, nil // that the node is as it was left is checked by the patch that ends its drain
	}
	if err := n.check(ctx); err != nil {
		return nil, err
	}
	return n.replan(ctx)
}

// unexpected reports whether a pod was not in a plan of this run, and is not one that stays as a matter of course; or is
// still there although it was said to be gone.
func (n *nodeRun) unexpected(pod corev1.Pod) bool {
	plan, _ := n.current()
	n.mu.Lock()
	s := n.pods[pod.UID]
	n.mu.Unlock()
	if s != nil && s.stage == stageGone {
		return true
	}
	if slices.ContainsFunc(plan.Pods, func(p guard.PodPlan) bool { return p.UID == pod.UID }) {
		return false
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	owner := metav1.GetControllerOf(&pod)
	return owner == nil || owner.Kind != "DaemonSet" || !n.opts.Flags.IgnoreDaemonSets
}

// replan judges the run's nodes anew and returns the plan if it has pods on this node that are to go.
func (n *nodeRun) replan(ctx context.Context) (*guard.DrainPlan, error) {
	plan, snapshot, err := n.judgeAgain(ctx)
	if err != nil {
		return nil, err
	}
	var refused []string
	found := false
	for i := range plan.Pods {
		p := &plan.Pods[i]
		if p.Node != n.name || n.isOver(p) {
			continue
		}
		switch p.Action {
		case guard.ActionRefuse:
			refused = append(refused, p.Key().String()+" ("+p.Reason+")")
		case guard.ActionEvict, guard.ActionDelete:
			found = true
		case guard.ActionSkip:
			found = found || p.Waiting
		}
	}
	if len(refused) > 0 {
		return nil, &Unsettled{Node: n.name, What: "pods came to the cordoned node that a drain refuses: " + strings.Join(refused, ", ")}
	}
	if !found {
		return nil, nil
	}
	n.use(plan, snapshot)
	return plan, nil
}

// isOver reports whether a pod was dealt with in an earlier pass, and so is not come back but left.
func (n *nodeRun) isOver(p *guard.PodPlan) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.pods[p.UID]
	return s != nil && s.stage == stageSkipped
}

func (n *nodeRun) judgeAgain(ctx context.Context) (*guard.DrainPlan, *cluster.Snapshot, error) {
	var snapshot *cluster.Snapshot
	err := n.persist(ctx, func(ctx context.Context) (err error) {
		snapshot, err = n.loadAgain(ctx)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("look at the cluster again: %w", err)
	}
	plan := guard.Plan(n.index(snapshot, n.opts.Nodes), n.request(n.opts, n.opts.Nodes))
	return &plan, snapshot, nil
}

// use makes a plan the one that this node goes by from now on.
func (n *nodeRun) use(plan *guard.DrainPlan, snapshot *cluster.Snapshot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.plan, n.snapshot = plan, snapshot
}

// current is the plan that this node goes by: its own, once it has one, else the run's.
func (n *nodeRun) current() (*guard.DrainPlan, *cluster.Snapshot) {
	n.mu.Lock()
	plan, snapshot := n.plan, n.snapshot
	n.mu.Unlock()
	if plan != nil {
		return plan, snapshot
	}
	return n.run.current()
}

// refresh judges a node of a run again before it is begun, since the nodes before it took their time.
func (n *nodeRun) refresh(ctx context.Context) error {
	if err := n.run.stop.Err(); err != nil {
		return err
	}
	if err := n.check(ctx); err != nil {
		return err
	}
	plan, snapshot, err := n.judgeAgain(ctx)
	if err != nil {
		return err
	}
	if plan.Refused() {
		return &Refusal{Plan: plan, Then: fmt.Sprintf("judged again before node %q", n.name)}
	}
	n.use(plan, snapshot)
	return nil
}

package experiments

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

const (
	drainTimeout = "120s"
	afterReturn  = 3 * time.Second // how long requests are counted once a node is back
)

// drained is one drain of one node.
type drained struct {
	*ending
	node    string
	report  *guard.DrainReport // safedrain's
	leaving map[string]leaving // by the name of the subject
}

// acted is what was done in one run, and when.
type acted struct {
	window
	tool     string
	traffic  *traffic
	drains   []*drained
	pressure float64 // on the machine's processors, see [pressure.CPU]
	exit     int     // the worst of all commands
	problems []string

	mu    sync.Mutex
	steps []results.Step
}

// note adds a step that happens now.
func (a *acted) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steps = append(a.steps, results.Step{At: inSeconds(time.Since(a.begin)), What: fmt.Sprintf(format, args...)})
}

// problem notes something that is not as it has to be.
func (a *acted) problem(format string, args ...any) {
	a.problems = append(a.problems, fmt.Sprintf(format, args...))
}

// act does what the round is about.
func (s *scene) act(ctx context.Context, turn turn, t *traffic) (*acted, error) {
	a := &acted{tool: turn.tool, traffic: t, window: window{begin: time.Now()}}
	var err error
	switch {
	case s.round.Fault != nil:
		err = s.drainWithFault(ctx, a)
	case s.round.Act == DrainOne:
		err = s.drainOne(ctx, a)
	case s.round.Act == Rolling:
		err = s.drainAll(ctx, a)
	case s.round.Act == PowerOff:
		err = s.powerOff(ctx, a)
	case s.round.Act == ScaleDown:
		err = s.scaleDown(ctx, a)
	case s.round.Act == Surge:
		err = s.surge(ctx, a)
	case s.round.Act == Maintenance:
		err = s.maintain(ctx, a, turn.number)
	default:
		err = fmt.Errorf("round %s: no act %q", s.round.Name, s.round.Act)
	}
	if a.end.IsZero() {
		a.end = time.Now()
	}
	return a, err
}

// drainOne drains the node. After safedrain it puts the node back while requests are counted; after kubectl it watches for as
// long as balancers need to notice.
func (s *scene) drainOne(ctx context.Context, a *acted) error {
	if err := s.drain(ctx, a, s.node); err != nil {
		return err
	}
	switch a.tool {
	case results.Kubectl:
		return pause(ctx, s.round.Watch)
	case results.Gate:
		return s.afterGate(ctx, a, s.node)
	}
	if err := s.comeBack(ctx, a, s.node); err != nil {
		return err
	}
	return pause(ctx, afterReturn)
}

// drainAll drains every node, works on it, and puts it back before the next.
func (s *scene) drainAll(ctx context.Context, a *acted) error {
	for _, n := range s.lab.Nodes {
		if err := s.drain(ctx, a, n.Name); err != nil {
			return err
		}
		if err := pause(ctx, s.round.Work); err != nil {
			return err
		}
		if err := s.comeBack(ctx, a, n.Name); err != nil {
			return err
		}
	}
	return pause(ctx, s.round.Watch)
}

// powerOff drains the node and cuts it off at once, as a power switch does for everybody else; then it comes back.
func (s *scene) powerOff(ctx context.Context, a *acted) error {
	if err := s.drain(ctx, a, s.node); err != nil {
		return err
	}
	n := s.machine(s.node)
	if err := n.Disconnect(ctx); err != nil {
		return err
	}
	a.note("node off")
	if err := pause(ctx, s.round.Watch); err != nil {
		return err
	}
	if err := n.Connect(ctx); err != nil {
		return err
	}
	a.note("node on")
	if a.tool == results.Kubectl {
		return nil
	}
	if err := s.spread(ctx, s.apps(), false); err != nil {
		return err
	}
	if err := s.uncordon(ctx, a, a.tool, s.node); err != nil {
		return err
	}
	return pause(ctx, afterReturn)
}

// scaleDown halves the replicas of every workload, and looks which nodes are left with a pod of each.
func (s *scene) scaleDown(ctx context.Context, a *acted) error {
	replicas := s.round.replicas() / 2
	if a.tool == results.Gate {
		if err := s.autoscale(ctx, a, replicas); err != nil {
			return err
		}
	} else if err := s.typedScale(ctx, a, replicas); err != nil {
		return err
	}
	if err := pause(ctx, s.round.Watch); err != nil {
		return err
	}
	return s.covered(ctx, a)
}

// typedScale scales as a person does.
func (s *scene) typedScale(ctx context.Context, a *acted, replicas int) error {
	args := slices.Concat([]string{"scale", "deployment", "--namespace=" + s.namespace, fmt.Sprintf("--replicas=%d", replicas)}, s.apps())
	e, err := call(ctx, s.lab, s.tools.Kubectl, args...)
	if err != nil {
		return err
	}
	a.exit = e.code
	a.note("scaled to %d replicas, exit code %d", replicas, e.code)
	if e.code != 0 {
		s.explain(ctx, a, e)
	}
	return nil
}

// comeBack puts a node back, and with it the pods that found no other node. It ends when they are Ready.
func (s *scene) comeBack(ctx context.Context, a *acted, node string) error {
	if err := s.uncordon(ctx, a, a.tool, node); err != nil {
		return err
	}
	if s.round.Anywhere {
		return nil
	}
	if err := s.podsOn(ctx, node); err != nil {
		return fmt.Errorf("%w: %w", errDiscard, err)
	}
	return nil
}

// uncordon puts a node back with a tool.
func (s *scene) uncordon(ctx context.Context, a *acted, tool, node string) error {
	program, args := s.tools.Kubectl, []string{"uncordon", node}
	if tool == results.Safedrain {
		program, args = s.tools.Safedrain, append([]string{"uncordon", node, "--wait-timeout=30s"}, s.flags()...)
	}
	a.note("%s uncordon of %s begins", tool, node)
	e, err := call(ctx, s.lab, program, args...)
	if err != nil {
		return err
	}
	a.note("%s uncordon of %s ended with exit code %d", tool, node, e.code)
	a.exit = max(a.exit, e.code)
	if e.code != 0 {
		s.explain(ctx, a, e)
	}
	return nil
}

// scale sets the replicas of every app.
func (s *scene) scale(ctx context.Context, replicas int) error {
	if s.round.DaemonSet {
		return nil
	}
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	var errs []error
	for _, app := range s.apps() {
		_, err := s.lab.Client.AppsV1().Deployments(s.namespace).Patch(ctx, app, types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// podsOn waits until every app has a Ready pod on a node.
func (s *scene) podsOn(ctx context.Context, node string) error {
	return controlplane.Poll(ctx, restoreTime, "a pod of each app on "+node, func(ctx context.Context) (bool, string, error) {
		list, err := s.lab.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return false, "", err
		}
		var missing []string
		for _, app := range s.apps() {
			there := func(p corev1.Pod) bool {
				return p.Labels[dataplane.AppLabel] == app && p.DeletionTimestamp == nil && podReady(&p)
			}
			if !slices.ContainsFunc(list.Items, there) {
				missing = append(missing, app)
			}
		}
		return len(missing) == 0, "none of " + strings.Join(missing, ", "), nil
	})
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

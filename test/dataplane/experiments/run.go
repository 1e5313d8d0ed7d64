package experiments

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/rolling"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/balancers"
	"github.com/safedrain/safedrain/test/dataplane/load"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// stage is a lab with its balancers, on which rounds are carried out.
type stage struct {
	lab    *dataplane.Lab
	client *dataplane.Host
	set    *balancers.Set
	tools  *Tools
	short  bool                             // the short form, in which the return is left out where it takes a minute
	log    func(format string, args ...any) // to people who look into a failure
}

// newStage brings a lab up, with the balancers named.
func newStage(ctx context.Context, o dataplane.Options, names []string, tools func(*controlplane.Programs) (*Tools, error)) (*stage, error) {
	lab, err := dataplane.Up(ctx, o)
	if err != nil {
		return nil, err
	}
	on := &stage{lab: lab}
	if on.tools, err = tools(lab.Cluster.Programs()); err == nil {
		on.client, err = lab.AddHost(ctx, "client")
	}
	if err == nil {
		on.set, err = balancers.Start(ctx, lab, on.client, names...)
	}
	if err != nil {
		return nil, errors.Join(err, on.close(context.WithoutCancel(ctx)))
	}
	return on, nil
}

func (on *stage) close(ctx context.Context) error {
	var errs []error
	if on.set != nil {
		errs = append(errs, on.set.Stop(ctx))
	}
	return errors.Join(append(errs, on.lab.Down(ctx))...)
}

// turn is one run of one tool.
type turn struct {
	tool   string
	number int
}

// run carries a round out once with one tool, and returns a record for each subject. A run that took too long and shows
// nothing else is discarded, unless it is the last try: on a machine that does other things as well one may, three may not.
func (s *scene) run(ctx context.Context, turn turn, last bool) ([]*results.Record, error) {
	tool := turn.tool
	if err := s.reset(ctx); err != nil {
		return nil, fmt.Errorf("before a run of %s: %w", s.round.Name, err)
	}
	stop := func() error { return nil }
	if tool == results.Gate {
		g, err := s.guarded(ctx)
		if err != nil {
			return nil, err
		}
		stop = func() error { return g.stop(context.WithoutCancel(ctx)) }
	}
	a, t, err := s.underLoad(ctx, turn)
	if err := errors.Join(err, stop()); err != nil {
		return nil, err
	}
	records, late, err := s.records(ctx, a, t, turn.number)
	if err != nil || late == "" {
		return records, err
	}
	if !last && !slices.ContainsFunc(records, func(r *results.Record) bool { return len(r.Problems) > 0 }) {
		return nil, fmt.Errorf("%w: %s", errDiscard, late)
	}
	for _, r := range records {
		r.Problems = append(r.Problems, late)
	}
	return records, nil
}

// underLoad acts while every subject gets its requests, once all of them are answered.
func (s *scene) underLoad(ctx context.Context, turn turn) (*acted, *traffic, error) {
	t, err := startTraffic(ctx, map[*dataplane.Host][]load.Target{s.client: s.targets()})
	if err != nil {
		return nil, nil, err
	}
	if err := s.steady(ctx, t); err != nil {
		return nil, t, errors.Join(err, t.stop())
	}
	a, err := s.act(ctx, turn, t)
	return a, t, errors.Join(err, t.stop())
}

// guarded starts a gate and returns when it is asked about the pods of the scene.
func (s *scene) guarded(ctx context.Context) (*gate, error) {
	pods, err := s.lab.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "spec.nodeName=" + s.node, LabelSelector: dataplane.AppLabel + "=" + s.subjects[0].pods,
	})
	if err != nil {
		return nil, err
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("%w: no pod on %s", errDiscard, s.node)
	}
	g, err := startGate(ctx, s.lab, s.tools, s.flags())
	if err != nil {
		return nil, err
	}
	if err := g.asked(ctx, &pods.Items[0]); err != nil {
		s.log("%v\n%s", err, controlplane.Tail(g.log))
		return nil, errors.Join(err, g.stop(context.WithoutCancel(ctx)))
	}
	return g, nil
}

// steady waits until the load on every subject is without failures.
func (s *scene) steady(ctx context.Context, t *traffic) error {
	names := make([]string, 0, len(s.subjects))
	for _, w := range s.subjects {
		names = append(names, w.name())
	}
	return t.steady(ctx, names)
}

// reset brings everything into the state in which a run begins.
func (s *scene) reset(ctx context.Context) error {
	if err := s.release(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	if err := s.spread(ctx, s.apps(), true); err != nil {
		return err
	}
	if err := s.release(ctx); err != nil { // what could not return without a pod
		return err
	}
	if err := s.inRotation(ctx); err != nil {
		return err
	}
	return s.lab.FlushConntrack(ctx)
}

// release gives back every node that a tool has left cordoned or claimed.
func (s *scene) release(ctx context.Context) error {
	nodes, err := s.lab.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		if err := s.releaseNode(ctx, &nodes.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) releaseNode(ctx context.Context, node *corev1.Node) error {
	if _, rolled := node.Annotations[rolling.Annotation]; rolled {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, rolling.Annotation)
		if _, err := s.lab.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	program, args := s.tools.Kubectl, []string{"uncordon", node.Name}
	_, claimed := node.Annotations[claim.Annotation]
	switch {
	case claimed || node.Labels[corev1.LabelNodeExcludeBalancers] != "":
		program, args = s.tools.Safedrain, append([]string{"uncordon", node.Name, "--wait-timeout=30s"}, s.flags()...)
	case !node.Spec.Unschedulable:
		return nil
	}
	e, err := call(ctx, s.lab, program, args...)
	if err == nil && e.code != 0 {
		err = errors.New(e.String())
	}
	return err
}

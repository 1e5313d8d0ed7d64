package experiments

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/claim"
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
	log    func(format string, args ...any) // to people who look into a failure
}

// newStage brings a lab up, with the balancers named, and kube-proxy in a mode.
func newStage(ctx context.Context, mode string, names []string, tools func(*controlplane.Programs) (*Tools, error)) (*stage, error) {
	lab, err := dataplane.Up(ctx, dataplane.Options{Nodes: nodeCount, ProxyMode: mode})
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

// run carries a round out once with one tool, and returns a record for each subject.
func (s *scene) run(ctx context.Context, tool string, number int) ([]*results.Record, error) {
	if err := s.reset(ctx); err != nil {
		return nil, fmt.Errorf("before a run of %s: %w", s.round.Name, err)
	}
	t, err := startTraffic(ctx, map[*dataplane.Host][]load.Target{s.client: s.targets()})
	if err != nil {
		return nil, err
	}
	if err := s.steady(ctx, t); err != nil {
		return nil, errors.Join(err, t.stop())
	}
	a, err := s.act(ctx, tool, t)
	if err := errors.Join(err, t.stop()); err != nil {
		return nil, err
	}
	return s.records(a, t, number)
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
	if s.round.Act == ScaleDown {
		// With new pods: those that an earlier run has left are the oldest, and would be left again.
		if err := errors.Join(s.scale(ctx, 0), s.empty(ctx)); err != nil {
			return err
		}
	}
	if err := s.scale(ctx, s.round.replicas()); err != nil {
		return err
	}
	if err := s.spread(ctx, s.apps(), true); err != nil {
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

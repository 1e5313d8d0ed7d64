package experiments

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/balancers"
	"github.com/safedrain/safedrain/test/dataplane/load"
)

const (
	nodeCount   = 4
	restoreTime = 90 * time.Second
)

// watched is a subject in a scene.
type watched struct {
	*Subject
	app      string // the name of its Service
	pods     string // the name of the workload whose pods it selects
	svc      *corev1.Service
	balancer balancers.Balancer
	traits   balancers.Traits
	way      balancers.Way
	target   netip.AddrPort
}

// scene is a round set up on a lab: a namespace with the subjects, behind their balancers.
type scene struct {
	lab       *dataplane.Lab
	client    *dataplane.Host
	tools     *Tools
	round     *Round
	namespace string
	subjects  []*watched
	node      string              // the one that is drained, where one is
	addresses map[netip.Addr]bool // those that were asked for
	watcher   *watcher
	short     bool
	log       func(format string, args ...any)
}

// objectName is a subject's name as an object of the API may have it.
func objectName(subject string) string { return strings.ReplaceAll(subject, "/", "-") }

// newScene sets a round up and returns when every Service is served by every node.
func newScene(ctx context.Context, on *stage, round *Round) (*scene, error) {
	s := &scene{
		lab: on.lab, client: on.client, tools: on.tools, round: round, namespace: "x-" + round.Name,
		node: on.lab.Nodes[1].Name, addresses: map[netip.Addr]bool{}, short: on.short, log: on.log,
	}
	if err := s.release(ctx); err != nil {
		return nil, err
	}
	if err := s.lab.Namespace(ctx, s.namespace); err != nil {
		return nil, err
	}
	for i := range round.Subjects {
		w, err := s.watch(on.set, &round.Subjects[i])
		if err != nil {
			return nil, errors.Join(err, s.remove(ctx))
		}
		s.subjects = append(s.subjects, w)
	}
	if err := s.populate(ctx, on.set); err != nil {
		return nil, errors.Join(fmt.Errorf("set up round %s: %w", round.Name, err), s.remove(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *scene) watch(set *balancers.Set, subject *Subject) (*watched, error) {
	w := &watched{Subject: subject, app: objectName(subject.name()), pods: objectName(subject.name()), balancer: set.Get(subject.Balancer)}
	if subject.Of != "" {
		w.pods = objectName(subject.Of)
	}
	if w.balancer == nil {
		return nil, fmt.Errorf("subject %s: its balancer was not started", subject.name())
	}
	w.traits = w.balancer.Traits()
	if len(w.traits.Ways) == 0 {
		return nil, fmt.Errorf("subject %s: safedrain has no way to take nodes out", subject.name())
	}
	w.way = w.traits.Ways[0]
	if subject.Way != "" {
		var ok bool
		if w.way, ok = w.traits.Way(subject.Way); !ok {
			return nil, fmt.Errorf("subject %s: no way %q", subject.name(), subject.Way)
		}
	}
	return w, nil
}

// populate makes the workloads and Services, and lets the balancers carry them.
func (s *scene) populate(ctx context.Context, set *balancers.Set) (err error) {
	if s.watcher, err = watchPods(ctx, s.lab, s.namespace); err != nil {
		return err
	}
	if err := s.workloads(ctx); err != nil {
		return err
	}
	if err := s.autoscalers(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	if err := s.spread(ctx, s.apps(), true); err != nil {
		return err
	}
	for _, w := range s.subjects {
		if w.svc, err = s.service(ctx, w); err != nil {
			return err
		}
	}
	for _, b := range set.Balancers {
		if err := b.Carry(ctx, s.carriedBy(b)...); err != nil {
			return err
		}
	}
	for _, w := range s.subjects {
		w.target = w.balancer.Target(w.svc)
	}
	return nil
}

func (s *scene) carriedBy(b balancers.Balancer) []*corev1.Service {
	var out []*corev1.Service
	for _, w := range s.subjects {
		if w.balancer == b {
			out = append(out, w.svc)
		}
	}
	return out
}

// apps are the workloads of the scene.
func (s *scene) apps() []string {
	var out []string
	for _, w := range s.subjects {
		if w.Of == "" {
			out = append(out, w.pods)
		}
	}
	return out
}

// workloads makes the pods of all subjects, side by side.
func (s *scene) workloads(ctx context.Context) error {
	var group sync.WaitGroup
	errs := make([]error, len(s.subjects))
	for i, w := range s.subjects {
		if w.Of != "" {
			continue
		}
		group.Go(func() {
			if s.round.DaemonSet {
				_, errs[i] = s.lab.DaemonSet(ctx, s.namespace, w.pods, w.Pods...)
				return
			}
			options := append([]dataplane.PodOption{s.placement()}, w.Pods...)
			replicas := s.round.replicas()
			if s.round.Placed != nil {
				replicas = 0
			}
			_, errs[i] = s.lab.Deployment(ctx, s.namespace, w.pods, int32(replicas), options...)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// service makes the Service of a subject.
func (s *scene) service(ctx context.Context, w *watched) (*corev1.Service, error) {
	var asked error
	svc, err := s.lab.Service(ctx, s.namespace, w.app, func(svc *corev1.Service) {
		svc.Spec.Selector = map[string]string{dataplane.AppLabel: w.pods}
		w.traits.Service(svc)
		for key, value := range w.way.Annotations {
			metav1.SetMetaDataAnnotation(&svc.ObjectMeta, key, value)
		}
		if w.traits.OneNode {
			asked = s.ask(svc)
		}
	})
	return svc, errors.Join(asked, err)
}

// machine is a node of the lab by its name.
func (s *scene) machine(name string) *dataplane.Node {
	i := slices.IndexFunc(s.lab.Nodes, func(n *dataplane.Node) bool { return n.Name == name })
	return s.lab.Nodes[i]
}

// remove takes the scene away.
func (s *scene) remove(ctx context.Context) error {
	if s.watcher != nil {
		s.watcher.close()
	}
	zero, background := int64(0), metav1.DeletePropagationBackground
	err := s.lab.Client.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{GracePeriodSeconds: &zero, PropagationPolicy: &background})
	if err != nil {
		return err
	}
	return controlplane.Poll(ctx, restoreTime, "namespace "+s.namespace+" gone", func(ctx context.Context) (bool, string, error) {
		_, err := s.lab.Client.CoreV1().Namespaces().Get(ctx, s.namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return false, "still there", err
	})
}

// pokeAfter is how long a balancer may show nothing of a Service before it is made to look at it again: after a partition a
// speaker of MetalLB may announce an address and have no status of it.
const pokeAfter = 5 * time.Second

// inRotation waits until every balancer shows the nodes that it had at first.
func (s *scene) inRotation(ctx context.Context) error {
	poked := time.Now()
	return controlplane.Poll(ctx, restoreTime, "every node in rotation", func(ctx context.Context) (bool, string, error) {
		for _, w := range s.subjects {
			shown, err := w.balancer.Shown(ctx, w.svc)
			if err != nil {
				return false, w.name(), err
			}
			_, want := s.round.pods()
			if w.traits.OneNode {
				want = 1
			}
			whole := func(nodes []string) bool { return len(nodes) == want && slices.Contains(nodes, s.node) }
			if mender, ok := w.balancer.(*balancers.L2); ok {
				halves, err := mender.Halves(ctx, w.svc)
				if err != nil || len(halves) > 0 {
					return false, fmt.Sprintf("%s: %v name two nodes each", w.name(), halves), errors.Join(err, mender.Mend(ctx, w.svc))
				}
			}
			if whole(shown) {
				if shown, err = s.forwarding(ctx, w, shown); err != nil {
					return false, w.name(), err
				}
				if whole(shown) {
					continue
				}
			}
			if time.Since(poked) > pokeAfter {
				poked = time.Now()
				err = s.poke(ctx)
			}
			return false, fmt.Sprintf("%s: %v", w.name(), shown), err
		}
		return true, "", nil
	})
}

// forwarding is what the data plane of a balancer sends to, where one node carries a Service: after a partition two may
// answer, or another than the one that is shown. Elsewhere it is what is shown.
func (s *scene) forwarding(ctx context.Context, w *watched, shown []string) ([]string, error) {
	b, ok := w.balancer.(forwarder)
	if !ok || !w.traits.OneNode {
		return shown, nil
	}
	return b.Forwards(ctx, w.svc)
}

// poke changes every Service in a way that means nothing.
func (s *scene) poke(ctx context.Context) error {
	var errs []error
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"test.safedrain.dev/poked":%q}}}`, time.Now().Format(time.RFC3339Nano))
	for _, w := range s.subjects {
		_, err := s.lab.Client.CoreV1().Services(s.namespace).Patch(ctx, w.app, types.MergePatchType, patch, metav1.PatchOptions{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// targets are what the load is sent to.
func (s *scene) targets() []load.Target {
	out := make([]load.Target, 0, len(s.subjects))
	for _, w := range s.subjects {
		out = append(out, load.Target{Name: w.name(), Address: w.target, Rate: s.round.Rate, Kept: s.round.Kept})
	}
	return out
}

package experiments

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/balancers"
)

// Moment is when a fault happens.
type Moment string

// The moments.
const (
	// BeforeDrain is before the drain begins; requests have to be steady again by then.
	BeforeDrain Moment = "before the drain"
	// AtWithdrawal is as soon as the node bears the exclude label.
	AtWithdrawal Moment = "at the withdrawal"
	// WhileSettling is after the proof, before the first eviction.
	WhileSettling Moment = "while it settles"
)

// Fault is something that goes wrong during a drain by safedrain.
type Fault struct {
	Name string
	Says string
	// Balancers are those it is tried with, each alone.
	Balancers []string
	// Inject makes it happen and returns what puts things right again.
	Inject func(ctx context.Context, s *scene) (undo func(context.Context) error, err error)
	When   Moment
	// Heals is after how long it is put right while the drain runs; zero: when the drain has ended.
	Heals time.Duration
	// Flags are added to the drain.
	Flags []string
	// Exits are the exit codes that are right. With 0 the node has left rotation all the same.
	Exits []int
	// Breaks says that the fault itself fails requests, drain or not.
	Breaks bool
}

func (f *Fault) experiment() string { return "fault-" + f.Name }

// hookTimeout is long enough for every balancer here, and short enough to wait for.
const hookTimeout = "--hook-timeout=8s"

// faults is what goes wrong. In each, no request may fail that did not fail before the drain began.
func faults() []Fault {
	stopped := []int{4, 5}
	metallb := []string{balancers.MetalLBL2, balancers.MetalLBBGP}
	return []Fault{
		{
			Name: "haproxy-ignores", Says: "HAProxy's socket takes the drain command and nothing happens.", When: BeforeDrain,
			Balancers: []string{balancers.HAProxyHealthCheck, balancers.NodePort}, Inject: ofBalancer("socket-ignores"),
			Flags: []string{hookTimeout}, Exits: stopped,
		},
		{
			Name: "hook-hangs", Says: "The hook's command hangs, because HAProxy's socket never answers it.", When: BeforeDrain,
			Balancers: []string{balancers.HAProxyTCP}, Inject: ofBalancer("socket-hangs"), Flags: []string{hookTimeout}, Exits: stopped,
		},
		{
			Name: "speaker-gone-before", Says: "MetalLB's speaker on the node is killed before the drain begins, and stays away.", When: BeforeDrain,
			Balancers: metallb, Inject: ofBalancer("speaker-gone"), Flags: []string{hookTimeout}, Exits: []int{0, 4, 5},
		},
		{
			Name: "speaker-killed-after", Says: "MetalLB's speaker on the node is killed as soon as the node bears the label, and comes back.", When: AtWithdrawal,
			Balancers: metallb, Inject: ofBalancer("speaker-killed"), Flags: []string{hookTimeout}, Exits: []int{0, 4, 5},
		},
		{
			Name: "speaker-hangs-after", Says: "MetalLB's speaker on the node hangs as soon as the node bears the label.", When: AtWithdrawal,
			Balancers: metallb, Inject: ofBalancer("speaker-hangs"), Flags: []string{hookTimeout}, Exits: []int{0, 4, 5},
		},
		{
			Name: "status-stale", Says: "A status object names the node for ever, whatever its speaker does.", When: BeforeDrain,
			Balancers: metallb, Inject: ofBalancer("status-stale"), Flags: []string{hookTimeout}, Exits: stopped,
		},
		{
			Name: "status-half", Says: "The status object has the node's label and the content of the node that is next, as a partition leaves it: it goes with the withdrawal, and may not be made anew.",
			When: BeforeDrain, Balancers: []string{balancers.MetalLBL2}, Inject: ofBalancer("status-half"), Flags: []string{hookTimeout}, Exits: []int{0, 5},
		},
		{
			Name: "status-lies", Says: "The status objects never name the node, and its speaker hangs: it does not obey the label.", When: BeforeDrain,
			Balancers: metallb, Inject: ofBalancer("status-lies-hanging"), Flags: []string{hookTimeout}, Exits: stopped,
		},
		{
			Name: "api-server-gone", Says: "The API server is gone for 20 s, from the withdrawal on.", When: AtWithdrawal,
			Balancers: []string{balancers.HAProxyHealthCheck, balancers.MetalLBL2, balancers.MetalLBBGP},
			Inject:    stopAPIServer, Heals: 20 * time.Second, Exits: []int{0, 1, 4, 5},
		},
		{
			Name: "other-pods-fail", Says: "The pods on the other nodes crash again and again while the balancer settles.", When: WhileSettling,
			Balancers: []string{balancers.MetalLBL2, balancers.HAProxyHealthCheck}, Inject: unready, Exits: stopped, Breaks: true,
		},
	}
}

// faultRounds are the faults, each with each of its balancers.
func faultRounds() []Round {
	var rounds []Round
	for _, f := range faults() {
		for _, name := range f.Balancers {
			fault := f
			r := Round{
				Name: fault.experiment() + "-" + name, Act: DrainOne, Rate: 4 * fewRate, Kept: 50, Fault: &fault,
				Subjects: []Subject{{Experiment: fault.experiment(), Balancer: name}},
			}
			if fault.Name == "haproxy-ignores" && name == balancers.HAProxyHealthCheck {
				r.Short = []string{name}
			}
			rounds = append(rounds, r)
		}
	}
	return rounds
}

// ofBalancer injects a fault that the balancer knows by that name.
func ofBalancer(name string) func(context.Context, *scene) (func(context.Context) error, error) {
	return func(ctx context.Context, s *scene) (func(context.Context) error, error) {
		fault, err := balancers.FaultOf(s.subjects[0].balancer, name)
		if err != nil {
			return nil, err
		}
		return fault.Inject(ctx, s.node)
	}
}

func stopAPIServer(ctx context.Context, s *scene) (func(context.Context) error, error) {
	return s.lab.StartAPIServer, s.lab.StopAPIServer(ctx)
}

// unready makes every pod on the other nodes fail, first by a crash and then by not being Ready.
func unready(ctx context.Context, s *scene) (func(context.Context) error, error) {
	list, err := s.lab.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: dataplane.AppLabel + "=" + s.subjects[0].pods})
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == s.node })
	var errs []error
	for i := range others {
		p := &others[i]
		errs = append(errs, s.lab.SetReady(ctx, s.namespace, p.Name, false), s.lab.Signal(ctx, s.namespace, p.Name, syscall.SIGKILL))
	}
	return func(ctx context.Context) error {
		var errs []error
		for i := range others {
			errs = append(errs, s.lab.SetReady(ctx, s.namespace, others[i].Name, true))
		}
		return errors.Join(errs...)
	}, errors.Join(errs...)
}

// drainWithFault drains the node while something goes wrong, checks that the drain did what it has to, puts things right
// and the node back.
func (s *scene) drainWithFault(ctx context.Context, a *acted) error {
	fault := s.round.Fault
	before, err := s.lab.Client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	h := &hazard{fault: fault, scene: s, note: a.note}
	if fault.When == BeforeDrain {
		h.inject(ctx)
		if err := pause(ctx, beforeFaultCounts); err != nil {
			return err
		}
		if err := s.steady(ctx, a.traffic); err != nil {
			return errors.Join(err, h.heal(context.WithoutCancel(ctx)))
		}
		a.begin = time.Now() // what the fault itself did is not the drain's
	} else {
		go h.await(ctx)
	}
	err = s.drain(ctx, a, s.node)
	if err = errors.Join(err, h.heal(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	s.judgeFault(a)
	if a.drains[0].code == 0 {
		// Drained all the same: what its return costs is no matter of the fault.
		if err := pause(ctx, afterReturn); err != nil {
			return err
		}
		a.end = time.Now()
		if err := s.comeBack(ctx, a, s.node); err != nil {
			return err
		}
		return s.undone(ctx, a, before)
	}
	if err := s.uncordon(ctx, a, a.tool, s.node); err != nil {
		return err
	}
	if err := pause(ctx, afterReturn); err != nil {
		return err
	}
	return s.undone(ctx, a, before)
}

// beforeFaultCounts is how long a fault before the drain has to show what it does by itself.
const beforeFaultCounts = 6 * time.Second

// judgeFault checks the exit code, and that pods of a Service without a proof are still there.
func (s *scene) judgeFault(a *acted) {
	d := a.drains[0]
	if !slices.Contains(s.round.Fault.Exits, d.code) {
		a.problem("exit code %d is not among %v", d.code, s.round.Fault.Exits)
		s.log("%s", d.ending)
	}
	w := s.subjects[0]
	// A node that the balancer does not send to when the drain begins needs no proof.
	seen := d.leaving[w.name()].shown
	proven := !seen.IsZero() && seen.Sub(d.began) < lookInterval
	if d.report != nil && !proven {
		proof, ok := step(d.report, "prove", s.namespace+"/"+w.app)
		proven = ok && proof.Outcome == "done"
	}
	for _, pod := range s.watcher.on(w.pods, s.node, d.began) {
		evicted := !pod.deleted.IsZero()
		if evicted && (!proven || d.code != 0 && s.round.Fault.When == WhileSettling) {
			a.problem("a pod of %s was evicted without a proof", w.app)
			s.log("%s", d.ending)
		}
	}
}

// undone checks that uncordon has left nothing of the drain on the node.
func (s *scene) undone(ctx context.Context, a *acted, before *corev1.Node) error {
	node, err := s.lab.Client.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	_, claimed := node.Annotations[claim.Annotation]
	if node.Spec.Unschedulable != before.Spec.Unschedulable || claimed ||
		node.Labels[corev1.LabelNodeExcludeBalancers] != before.Labels[corev1.LabelNodeExcludeBalancers] {
		a.problem("uncordon left the node changed: unschedulable %t, labels %v, claimed %t", node.Spec.Unschedulable, node.Labels, claimed)
	}
	return s.inRotation(ctx)
}

package drain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// defaultSettle is waited for an unproven Service that has a lever, where neither an option, an annotation nor the hook
// says how long.
const defaultSettle = 30 * time.Second

// way is how a Service lets the node go.
type way int

const (
	wayForced way = iota // accepted as unsafe: nothing is withdrawn or waited for
	wayProve             // withdraw, prove, settle
	waySettle            // withdraw with whatever lever, wait, no proof: accepted
	wayCheck             // the balancer's health check takes the node out while the pods terminate
	wayHold              // the same, while the pods are held
)

// departure is one Service that the node has to leave before it is done, or before some of its pods go.
type departure struct {
	key      guard.Key
	service  *corev1.Service
	hookName string
	hook     lbhooks.Hook // nil when no hook of that name is known
	removal  guard.Removal
	way      way
	entry    bool // of policy Cluster: no pod waits for it
	settle   time.Duration
	stated   *time.Duration // the settle time that the Service or the configuration states; settle has it
	statedBy string
	timeout  time.Duration // of the proof
	accepted string
	patient  bool // replacements are waited for between pods too
	hold     *guard.HoldPlan
	check    *guard.HealthCheck // of the balancer; set where pods are held

	hasty bool // a deadline: its pods go together
	late  bool // and go without the proof
	cut   bool // and without all of the settle time

	sinceTime *time.Time // when the withdrawal began
	untilTime *time.Time // when its proof is given up, or its settle time will have passed
}

// serial reports whether the pods of the Service go one at a time.
func (s *departure) serial() bool { return !s.entry && !s.hasty && (s.way == waySettle || s.patient) }

// departures lists what the node has to leave, by the plan; Services that it has left in an earlier pass are not listed
// again.
func (n *nodeRun) departures(plan *guard.DrainPlan) ([]*departure, error) {
	var out []*departure
	for i := range plan.Services {
		s := &plan.Services[i]
		again := n.begunBefore(s) || n.barred(s)
		if !n.affected(s) && !again || n.left(s.Key()) {
			continue
		}
		dep, err := n.departure(s.Key(), s.Balancer)
		if err != nil {
			return nil, err
		}
		n.chooseWay(dep, s.Findings)
		if again && dep.way == wayProve && !n.provable(dep) {
			n.unproven(dep)
		}
		if dep.way == wayProve && dep.removal == guard.RemovalHold {
			n.holdOf(dep, s.Hold)
		}
		out = append(out, dep)
	}
	for i := range plan.Withdraw {
		e := &plan.Withdraw[i]
		if !slices.Contains(e.Nodes, n.name) || n.left(e.Key()) {
			continue
		}
		dep, err := n.departure(e.Key(), e.Balancer)
		if err != nil {
			return nil, err
		}
		dep.entry = true
		switch {
		case accepted(e.Findings, guard.Block):
			dep.way, dep.accepted = wayForced, "by --force-unsafe"
		case !e.Provable || dep.hook == nil:
			n.unproven(dep)
			dep.accepted = "policy Cluster"
		}
		out = append(out, dep)
	}
	return out, nil
}

// affected reports whether a Service of policy Local has to let the node go before its pods are evicted: it would lose
// its last local endpoint while it is, or may be, in rotation.
func (n *nodeRun) affected(s *guard.ServicePlan) bool {
	if s.Policy == guard.PolicyInternal || s.Verdict == guard.Safe {
		return false
	}
	return slices.ContainsFunc(s.Findings, func(f guard.Finding) bool {
		return f.Code == guard.LosesLocalEndpoint && slices.Contains(f.Nodes, n.name)
	})
}

// begunBefore reports whether an earlier run began to take the node out for a Service and did not come to its end: the
// objects may say that the node is out by now, and nobody has seen it.
func (n *nodeRun) begunBefore(s *guard.ServicePlan) bool {
	noted, ok := n.held.Claim().Services[s.Key().String()]
	return ok && !noted.Released && n.servesUnaffected(s)
}

// barred reports whether whoever empties the node has barred it from the balancer of a Service with the same stroke, as by a
// taint or the exclude label: the objects say that it is out, and the balancer lags behind them. Only where others evict.
func (n *nodeRun) barred(s *guard.ServicePlan) bool {
	if !n.emptied || !n.servesUnaffected(s) {
		return false
	}
	r, ok := n.rotation(s.Key())
	if !ok || r.Hook == "" || r.Declared || r.Nobody {
		return false
	}
	seat := r.Seat(n.name)
	return seat.In == guard.No && !seat.Eligible
}

// servesUnaffected reports whether a Service that is reached from outside has usable endpoints on the node and the plan has
// nothing to do about it.
func (n *nodeRun) servesUnaffected(s *guard.ServicePlan) bool {
	if s.Policy == guard.PolicyInternal || n.affected(s) {
		return false
	}
	return slices.ContainsFunc(s.Nodes, func(r guard.NodeRow) bool { return r.Name == n.name && r.Before != guard.StateEmpty })
}

// provable reports whether the hook of a departure can prove it.
func (n *nodeRun) provable(dep *departure) bool {
	r, ok := n.rotation(dep.key)
	return ok && dep.hook != nil && r.Provable && r.Broken == ""
}

func (n *nodeRun) rotation(key guard.Key) (guard.Rotation, bool) {
	_, snapshot := n.current()
	svc, ok := snapshot.Index(n.Hooks, n.opts.Nodes).Service(key)
	if !ok {
		return guard.Rotation{}, false
	}
	return svc.Rotation, true
}

func (n *nodeRun) left(key guard.Key) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.out[key] != nil
}

func (n *nodeRun) departure(key guard.Key, b guard.Balancer) (*departure, error) {
	_, snapshot := n.current()
	svc, ok := snapshot.RawService(key)
	if !ok {
		return nil, fmt.Errorf("the plan names Service %s, which is not there", key)
	}
	dep := &departure{key: key, service: svc, hookName: cmp.Or(b.Hook, "none"), removal: b.Removal, way: wayProve, patient: n.opts.WaitReplacements, hasty: n.opts.Deadline > 0}
	dep.hook, _ = n.Hooks.Hook(b.Hook)
	if dep.hook != nil {
		dep.settle = dep.hook.Describe().Settle
	}
	n.times(dep)
	return dep, nil
}

// times fills how long a departure may take and settles: what was typed wins over what the Service states, that over a
// rule of the configuration, and that over the hook.
func (n *nodeRun) times(dep *departure) {
	dep.timeout = n.opts.HookTimeout
	_, snapshot := n.current()
	if f, ok := snapshot.Index(n.Hooks, n.opts.Nodes).Service(dep.key); ok {
		dep.stated, dep.statedBy = f.Rotation.Settle, f.Rotation.SettleBy
		if f.Rotation.Timeout > 0 && !n.opts.HookTimeoutTyped {
			dep.timeout = f.Rotation.Timeout
		}
	}
	switch {
	case n.opts.Settle != nil:
		dep.settle = *n.opts.Settle
	case dep.stated != nil:
		dep.settle = *dep.stated
	}
}

// chooseWay decides how a Service of policy Local lets the node go. The plan is not refused, so what stands is accepted.
func (n *nodeRun) chooseWay(dep *departure, findings []guard.Finding) {
	switch {
	case accepted(findings, guard.Block):
		dep.way, dep.accepted = wayForced, "by --force-unsafe"
	case accepted(findings, guard.SeverityUnproven):
		n.unproven(dep)
	case dep.removal == guard.RemovalHealthCheck:
		dep.way, dep.settle = wayCheck, 0
	}
}

// unproven makes a departure one without a proof: the settle time is all there is.
func (n *nodeRun) unproven(dep *departure) {
	dep.way, dep.accepted = waySettle, "by flag"
	if dep.stated != nil {
		dep.accepted = "by " + cmp.Or(dep.statedBy, "annotation "+lbhooks.AnnotationSettle)
	}
	lever := dep.removal == guard.RemovalLabel || dep.removal == guard.RemovalHook && dep.hook != nil
	switch {
	case !lever:
		dep.settle = 0
	case n.opts.Settle != nil || dep.stated != nil:
	case dep.settle == 0:
		dep.settle = defaultSettle
	}
}

func accepted(findings []guard.Finding, severity guard.Severity) bool {
	return slices.ContainsFunc(findings, func(f guard.Finding) bool { return f.Accepted && f.Severity == severity })
}

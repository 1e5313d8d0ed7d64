package drain

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// Plan judges the drain of the nodes and changes nothing. A plan that is refused is no error.
func (r *Runner) Plan(ctx context.Context, opts Options) (*guard.DrainPlan, *cluster.Snapshot, error) {
	nodes := unique(opts.Nodes)
	snapshot, err := r.Load(ctx, nodes)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range nodes {
		if _, ok := snapshot.RawNode(name); !ok {
			return nil, nil, fmt.Errorf("node %q not found", name)
		}
	}
	req := r.request(opts, nodes)
	req.Cluster = snapshot.Placement()
	plan := guard.Plan(snapshot.Index(r.Hooks, nodes), req)
	return &plan, snapshot, nil
}

// request asks the guard about some nodes.
func (r *Runner) request(opts Options, nodes []string) guard.Request {
	req := guard.Request{Nodes: slices.Clone(nodes), Run: r.RunID, StayUp: opts.StayUp, Flags: opts.Flags}
	req.Flags.GracePeriod = time.Duration(opts.GracePeriod) * time.Second
	req.Flags.Together = opts.Parallel
	if opts.GracePeriod < 0 {
		req.Flags.GracePeriod = -1
	}
	if opts.PodSelector != nil && !opts.PodSelector.Empty() {
		req.SkipPod = func(l map[string]string) bool { return !opts.PodSelector.Matches(labels.Set(l)) }
	}
	return req
}

// view is an Index that does not count some claims: tickets that were committed after this run's may be about to be
// undone, and a run that counts them would lose to them while they lose to it.
type view struct {
	*cluster.Index
	counts func(*guard.Claim) bool
}

var _ guard.Index = view{}

// Node returns the node, as one that stays if only a claim that does not count stands against it.
func (v view) Node(name string) (*guard.NodeFacts, bool) {
	n, ok := v.Index.Node(name)
	return v.see(n), ok
}

// Nodes lists all nodes as [view.Node] does.
func (v view) Nodes() iter.Seq[*guard.NodeFacts] {
	return func(yield func(*guard.NodeFacts) bool) {
		for n := range v.Index.Nodes() {
			if !yield(v.see(n)) {
				return
			}
		}
	}
}

func (v view) see(n *guard.NodeFacts) *guard.NodeFacts {
	if n == nil || n.Leaving != guard.LeavingClaimed || n.Claim == nil || v.counts(n.Claim) {
		return n
	}
	w := *n
	w.Leaving = guard.Stays
	return &w
}

// index is a view of a snapshot after this run's ticket.
func (d *run) index(s *cluster.Snapshot, nodes []string) view {
	return view{s.Index(d.Hooks, nodes), func(c *guard.Claim) bool {
		return c.Run == d.RunID || d.earlier.Has(c.Run) || c.Phase != string(claim.Claimed)
	}}
}

// Refusal says that the guard refuses; the plan has every reason.
type Refusal struct {
	Plan *guard.DrainPlan
	Then string // when it was refused, if not before anything changed
}

func (e *Refusal) Error() string {
	what := fmt.Sprintf("node %s refused: %s", strings.Join(e.Plan.Nodes, ", "), strings.Join(blocking(e.Plan), "; "))
	if e.Then != "" {
		return what + " (" + e.Then + ")"
	}
	return what
}

// blocking lists what stands against a plan, a line for each finding.
func blocking(p *guard.DrainPlan) []string {
	var out []string
	add := func(about string, fs []guard.Finding) {
		for _, f := range fs {
			if f.Accepted || !f.Severity.AtLeast(guard.SeverityUnproven) {
				continue
			}
			subject := about
			for _, s := range []string{f.Budget, f.Pod} {
				if subject == "" {
					subject = s
				}
			}
			out = append(out, fmt.Sprintf("%s %s: %s", subject, f.Code, f.Message))
		}
	}
	for i := range p.Services {
		add(p.Services[i].Key().String(), p.Services[i].Findings)
	}
	for i := range p.Withdraw {
		add(p.Withdraw[i].Key().String(), p.Withdraw[i].Findings)
	}
	add("", p.Findings)
	return out
}

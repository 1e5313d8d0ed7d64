package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/guard/rolling"
)

// candidates is how many of the nodes that wait are looked at together for one that may go.
const candidates = 8

// next finds the node to begin now: the first in the order that guard lets go, beside those under way where there are
// some. nil means that none may for the moment.
func (d *roll) next(ctx context.Context) (*node, error) {
	if !d.tried.IsZero() && d.Clock.Since(d.tried) < retryEvery {
		return nil, nil
	}
	others := d.underWay()
	var names []string
	for _, name := range d.waiting() {
		n := d.nodes[name]
		if d.Clock.Now().Before(n.notBefore) {
			continue
		}
		if n.left() { // by an earlier run: it is out already
			return n, nil
		}
		if len(names) < candidates {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	snapshot, there, err := d.look(ctx, append(slices.Clone(others), names...))
	if err != nil || snapshot == nil {
		return nil, err
	}
	others, names = both(others, there), both(names, there)
	for i, name := range names {
		why := d.mayBegin(snapshot, name, others)
		if why == "" {
			return d.nodes[name], nil
		}
		if i == 0 { // the one whose turn it is
			d.hold(name, why)
		}
	}
	d.tried = d.Clock.Now()
	return nil, nil
}

// look reads the cluster for some nodes, and returns which of them are there. One that was deleted while it waited is done.
func (d *roll) look(ctx context.Context, names []string) (*cluster.Snapshot, []string, error) {
	snapshot, err := d.Load(ctx, names)
	var deleted *cluster.NotFound
	if !errors.As(err, &deleted) {
		return snapshot, names, err
	}
	there := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(deleted.Names, name) })
	for _, name := range deleted.Names {
		if n := d.nodes[name]; n != nil && !n.running {
			d.gone(n)
		}
	}
	if len(there) == 0 || len(there) == len(names) {
		return nil, nil, nil
	}
	snapshot, err = d.Load(ctx, there)
	return snapshot, there, err
}

// both lists the names that are in two lists, in the order of the first.
func both(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(name string) bool { return !slices.Contains(b, name) })
}

// mayBegin asks guard about a node, by itself and together with those under way. It returns why the node has to wait, ""
// when it need not.
func (d *roll) mayBegin(snapshot *cluster.Snapshot, name string, others []string) string {
	n := d.nodes[name]
	ix := snapshot.Index(d.Hooks, []string{name})
	if len(others) > 0 {
		all := append(slices.Clone(others), name)
		together := guard.Plan(snapshot.Index(d.Hooks, all), d.opts.request(all...))
		if why := rolling.Against(&together); why != "" {
			return fmt.Sprintf("waits for %s: with both away %s", strings.Join(others, ", "), why)
		}
	}
	plan := guard.Plan(ix, d.opts.request(name))
	if plan.Refused() && d.opts.Drain.Surge == surge.Off { // else its drain finds out what a replica more changes
		if len(others) > 0 {
			return fmt.Sprintf("waits for %s: %s", strings.Join(others, ", "), standing(&plan))
		}
		later := &notNow{Plan: &plan}
		d.refusedNow(n, later)
		return later.Error()
	}
	n.want = endpointsNow(ix, name)
	return ""
}

// endpointsNow counts the endpoints that stay, by Service, of the Services that are served from a node.
func endpointsNow(ix guard.Index, node string) map[string]int {
	want := map[string]int{}
	for svc := range ix.ServicesOn(node) {
		cover := guard.Cover(svc)
		if state, _ := cover.State(node); svc.Local() && state == guard.StateServing {
			want[svc.Key.String()] = endpointsOf(ix, svc)
		}
	}
	return want
}

// endpointsOf counts the endpoints of a Service that stay, on nodes that its balancer sends to or could.
func endpointsOf(ix guard.Index, svc *guard.ServiceFacts) int {
	plan := guard.JudgeService(svc, ix, &guard.Loss{Nodes: map[string]bool{}, Flags: &guard.Flags{}})
	return plan.Endpoints.After
}

// standing says in one line what stands against a plan.
func standing(p *guard.DrainPlan) string {
	var out []string
	for i := range p.Services {
		for _, f := range p.Services[i].Findings {
			if !f.Accepted && f.Severity.AtLeast(guard.SeverityUnproven) {
				out = append(out, fmt.Sprintf("%s: %s", p.Services[i].Key(), f.Message))
			}
		}
	}
	for _, f := range p.Findings {
		if !f.Accepted && f.Severity.AtLeast(guard.SeverityUnproven) {
			out = append(out, strings.TrimPrefix(f.Budget+f.Pod+": "+f.Message, ": "))
		}
	}
	if len(out) > 2 {
		out = append(out[:2], fmt.Sprintf("and %d more", len(out)-2))
	}
	return strings.Join(out, "; ")
}

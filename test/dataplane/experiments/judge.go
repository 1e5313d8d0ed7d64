package experiments

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/dataplane/pressure"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// slack is what a safe drain may take beyond its balancer's removal, the settle time and the end of the pods.
const slack = time.Second

// checkTime is how long a removal by a health check takes at most that nobody can see: three failures of a check every two
// seconds with its timeout of two, after two seconds in which kube-proxy notices.
const checkTime = 10.0

// records makes a record for each subject of what its load saw, and judges it.
// late says that it took longer than it may, where that is judged.
func (s *scene) records(ctx context.Context, a *acted, t *traffic, number int) (out []*results.Record, late string, err error) {
	_, nodes := s.round.pods()
	for _, w := range s.subjects {
		r := &results.Record{
			Key:    results.Key{Experiment: w.Experiment, Balancer: w.Balancer, Mode: s.lab.ProxyMode, Tool: a.tool, Run: number},
			Commit: s.tools.Commit, Build: s.tools.Build, Rate: s.round.Rate, Nodes: nodes, Exit: a.exit, Pressure: a.pressure,
			Way: w.means(), Fault: s.round.Fault != nil,
		}
		seconds, failures := t.observed(w.name())
		if err := measure(r, seconds, failures, a.window); err != nil {
			return nil, "", err
		}
		if a.tool != results.Kubectl {
			r.Failures = s.lost(ctx, failures, a.window)
		}
		// What a surge adds has no bound but the start of a pod.
		if a.tool == results.Safedrain && len(a.drains) == 1 && a.drains[0].report != nil && s.round.Act != Surge {
			r.Times = s.timesOf(w, a.drains[0])
		}
		out = append(out, r)
	}
	late = s.bound(a, out)
	for _, r := range out {
		r.Steps = a.steps // with what was found since
	}
	for i, w := range s.subjects {
		out[i].Problems = append(slices.Clone(a.problems), problemsOf(w, out[i], s.round)...)
	}
	return out, late, nil
}

// means is how the node is taken out for the Service.
func (w *watched) means() string {
	if w.Hold {
		return "hold"
	}
	return w.way.Name
}

// timesOf takes one safe drain apart, for one Service.
func (s *scene) timesOf(w *watched, d *drained) *results.Times {
	key := s.namespace + "/" + w.app
	t := &results.Times{Total: inSeconds(d.ended.Sub(d.began))}
	told, ok := step(d.report, "withdraw", "")
	if !ok {
		told.Started = d.began
	}
	t.Told = inSeconds(told.Started.Sub(d.began))
	seen := d.leaving[w.name()]
	if !seen.shown.IsZero() {
		t.Removed = inSeconds(seen.shown.Sub(told.Started))
	}
	if !seen.forwards.IsZero() {
		t.Switched = inSeconds(seen.forwards.Sub(told.Started))
	}
	if proof, ok := step(d.report, "prove", key); ok {
		t.Proven = inSeconds(proof.Ended.Sub(told.Started))
	}
	if settle, ok := step(d.report, "settle", key); ok {
		t.Settle = inSeconds(settle.Ended.Sub(settle.Started))
	}
	var first, last time.Time
	for _, pod := range s.watcher.on(w.pods, d.node, d.began) {
		if pod.deleted.IsZero() || pod.deleted.After(d.ended) {
			continue
		}
		if first.IsZero() || pod.deleted.Before(first) {
			first = pod.deleted
		}
		if pod.gone.After(last) {
			last = pod.gone
		}
	}
	if !first.IsZero() && !last.IsZero() {
		t.Terminated = inSeconds(last.Sub(first))
	}
	return t
}

func step(report *guard.DrainReport, name, service string) (guard.Step, bool) {
	i := slices.IndexFunc(report.Steps, func(s guard.Step) bool { return s.Name == name && (service == "" || s.Service == service) })
	if i < 0 {
		return guard.Step{}, false
	}
	return report.Steps[i], true
}

// bound notes how long the whole drain may have taken, and says so if it took longer: as long as its slowest Service. Of a Service that leaves by its
// health check while its pods terminate, both times run side by side.
func (s *scene) bound(a *acted, records []*results.Record) (late string) {
	longest := 0.0
	for i, r := range records {
		if r.Times == nil {
			return ""
		}
		removal := max(0, r.Times.Removed)
		if s.subjects[i].Hold {
			removal = checkTime
		}
		parts := removal + r.Times.Settle + r.Times.Terminated
		if s.subjects[i].way.Name == "health-check" && !s.subjects[i].Hold {
			parts = max(removal, r.Times.Terminated)
		}
		longest = max(longest, parts)
	}
	for _, r := range records {
		r.Times.Bound = longest + slack.Seconds()
	}
	if s.round.Fault != nil || len(records) == 0 || records[0].Times.Total <= records[0].Times.Bound {
		return ""
	}
	text := fmt.Sprintf("the drain took %.2f s, and may take %.2f s", records[0].Times.Total, records[0].Times.Bound)
	if a.pressure > pressure.TooMuch {
		s.log("!!! not judged, for something waits for a processor %.0f %% of the time: %s", a.pressure, text)
	} else {
		late = text
	}
	for _, step := range a.steps {
		s.log("%7.3f %s", step.At, step.What)
	}
	s.log("%s", a.drains[0].stderr)
	return late
}

// problemsOf says what a record shows that must not be.
func problemsOf(w *watched, r *results.Record, round *Round) []string {
	var out []string
	if r.Steady.OK == 0 {
		out = append(out, "nothing was answered before the action")
	}
	if w.traits.Source && r.Translated > 0 {
		out = append(out, fmt.Sprintf("%d answers name another source address than the client's", r.Translated))
	}
	if r.Tool == results.Kubectl {
		return out
	}
	if n := r.Failed(); n > 0 && (round.Fault == nil || !round.Fault.Breaks) {
		out = append(out, fmt.Sprintf("%d of %d new connections failed, from %.1f s to %.1f s", n, r.New.Scheduled, r.First, r.Last))
	}
	if n := r.Broken + r.New.Cut; w.traits.Drains && n > 0 && round.Fault == nil && !round.DaemonSet {
		out = append(out, fmt.Sprintf("%d open connections broke, though the balancer drains them", n))
	}
	return out
}

// measured says which subjects lost nothing by kubectl although they had to: such an experiment measures nothing. Few runs
// are looked at together by their balancer, many by their experiment as well.
func measured(round *Round, records []*results.Record) []string {
	type group struct{ experiment, balancer string }
	lost, runs := map[group]int{}, map[group]int{}
	for _, r := range records {
		if r.Tool != results.Kubectl {
			continue
		}
		for _, g := range []group{{r.Experiment, r.Balancer}, {"", r.Balancer}} {
			lost[g] += r.Failed()
			runs[g]++
		}
	}
	const many = 3
	var out []string
	for _, s := range round.Subjects {
		g := group{s.Experiment, s.Balancer}
		if s.Spared || runs[g] == 0 {
			continue
		}
		if runs[g] < many {
			g.experiment = ""
		}
		if lost[g] == 0 {
			out = append(out, fmt.Sprintf("%s: kubectl drain lost nothing in %d runs: the experiment does not measure", s.name(), runs[g]))
		}
	}
	return out
}

package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedrain/safedrain/pkg/guard"
)

// facts says what else a drain does: Moves, Also out, Pods, Places, Time.
func (v *planView) facts() string {
	var b strings.Builder
	for _, line := range []struct{ label, text string }{
		{"Surge", v.surges()}, {"Moves", v.moves()}, {"Also out", v.alsoOut()}, {"Pods", v.pods()}, {"Places", v.places()}, {"Time", v.time()},
	} {
		if line.text == "" {
			continue
		}
		label := line.label
		for text := range strings.SplitSeq(line.text, "\n") {
			writeLabelled(&b, label, text)
			label = ""
		}
	}
	return b.String()
}

func (v *planView) moves() string {
	var out []string
	add := func(moves []guard.Move) {
		for _, m := range moves {
			if !slices.Contains(v.plan.Nodes, m.From) {
				continue
			}
			to := m.Address + " to " + m.To + " (predicted)"
			if m.To == "" {
				to = m.Address + " to nobody (predicted)"
			}
			out = append(out, to)
		}
	}
	for i := range v.plan.Services {
		add(v.plan.Services[i].Balancer.Moves)
	}
	for i := range v.plan.Withdraw {
		add(v.plan.Withdraw[i].Balancer.Moves)
	}
	if len(out) == 0 {
		return ""
	}
	limit := 6
	if v.wide {
		limit = 0
	}
	return listed(sorted(out), limit) + "; open connections through it break, again on return"
}

func (v *planView) alsoOut() string {
	n, least := len(v.plan.Withdraw), -1
	if n == 0 {
		return ""
	}
	var names []string
	for i := range v.plan.Withdraw {
		e := &v.plan.Withdraw[i]
		names = append(names, e.Key().String())
		if least < 0 || e.Left < least {
			least = e.Left
		}
	}
	text := fmt.Sprintf("%s with policy Cluster leave %s; %s or more stay for each", count(n, "Service"), v.nodes(), count(least, "node"))
	if n == 1 {
		text = fmt.Sprintf("%s (policy Cluster) leaves %s; %s stay", names[0], v.nodes(), count(least, "node"))
	} else if v.wide {
		text += ": " + strings.Join(names, ", ")
	}
	return text
}

func (v *planView) nodes() string { return strings.Join(ranges(v.plan.Nodes), ", ") }

// pods counts the pods of the nodes by what becomes of them.
func (v *planView) pods() string {
	if len(v.plan.Pods) == 0 {
		return "none"
	}
	once, deleted, held, budget, waiting := 0, 0, 0, 0, 0
	after, stay := map[string]int{}, map[string]int{}
	for i := range v.plan.Pods {
		p := &v.plan.Pods[i]
		switch {
		case p.Action == guard.ActionRefuse:
			held++
		case p.Waiting:
			waiting++
		case p.Action == guard.ActionSkip:
			stay[stays(p.Reason)]++
		case p.Action == guard.ActionDelete:
			deleted++
		case p.Held:
			budget++
		case len(p.After) > 0:
			after[strings.Join(p.After, " and ")]++
		default:
			once++
		}
	}
	var parts []string
	say := func(n int, words string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, words))
		}
	}
	say(once, "evicted at once")
	for _, svc := range slices.Sorted(keys(after)) {
		say(after[svc], "after "+svc)
	}
	say(budget, "when a budget allows")
	say(deleted, "deleted, budgets bypassed")
	say(held, "held by the above")
	say(waiting, "already terminating, waited for")
	for _, why := range slices.Sorted(keys(stay)) {
		verb := "stay"
		if stay[why] == 1 {
			verb = "stays"
		}
		say(stay[why], verb+" ("+why+")")
	}
	return fmt.Sprintf("%d: %s", len(v.plan.Pods), strings.Join(parts, ", "))
}

// stays shortens the reason of a pod that is left: its kind, not its name.
func stays(reason string) string {
	for _, kind := range []string{"DaemonSet", "mirror"} {
		if strings.HasPrefix(reason, kind) {
			return kind
		}
	}
	if reason == "" {
		return "left alone"
	}
	return reason
}

// time is the longest a drain that is not held by a budget takes.
func (v *planView) time() string {
	if v.plan.Refused() || v.podsGoing() == 0 && len(v.plan.Services) == 0 {
		return ""
	}
	all, parts := v.bounds()
	if len(parts) == 0 {
		return ""
	}
	each := ""
	if len(v.plan.Nodes) > 1 {
		each = " a node"
	}
	return fmt.Sprintf("at most %s%s (%s) unless a budget waits", seconds(all), each, strings.Join(parts, ", "))
}

// bounds are the longest times of the parts of a drain, and their sum.
func (v *planView) bounds() (all time.Duration, parts []string) {
	var prove, hold, settle, grace time.Duration
	for i := range v.plan.Services {
		s := &v.plan.Services[i]
		if s.Verdict == guard.Withdraw {
			prove = max(prove, v.timeoutOf(&s.Balancer))
		}
		if s.Hold != nil {
			if wait, err := time.ParseDuration(s.Hold.Wait); err == nil {
				hold = max(hold, wait)
			}
		}
		if s.Verdict != guard.Safe {
			settle = max(settle, v.settleOf(&s.Balancer))
		}
	}
	for i := range v.plan.Pods {
		if p := &v.plan.Pods[i]; p.Action == guard.ActionEvict || p.Action == guard.ActionDelete || p.Waiting {
			grace = max(grace, p.Grace)
		}
	}
	for _, part := range []struct {
		name string
		d    time.Duration
	}{{"hook", prove}, {"health check", hold}, {"settle", settle}, {"longest grace", grace}} {
		if part.d > 0 {
			parts = append(parts, part.name+" "+seconds(part.d))
		}
	}
	return prove + hold + settle + grace, parts
}

// next is what to type: only what leads on. Nothing is offered for what waiting does not help, but its repair.
func (v *planView) next(rs []reason) string {
	if len(v.alone) > 0 {
		var cmds []string
		for _, n := range v.alone {
			cmds = append(cmds, v.typed.command("", n))
		}
		return "Next: one at a time is safe\n  " + strings.Join(cmds, " && ") + "\n"
	}
	var flags, fixes []string
	unsafe := false
	for i := range rs {
		r := &rs[i]
		switch r.cause() {
		case causeUnsafe:
			unsafe = true
		case causeBudget, causeHook, causeAsked:
			fixes = append(fixes, r.subject)
		case causeUnproven, causeFlag:
			if r.Accept == "" {
				fixes = append(fixes, r.subject)
			} else {
				flags = append(flags, r.Accept)
			}
		}
	}
	if unsafe {
		return ""
	}
	cmd := v.typed.with(globbed(flags)...).command("", v.plan.Nodes...)
	if fixes = sorted(fixes); len(fixes) > 0 {
		return "Next: fix " + listed(fixes, most) + ", then\n  " + cmd + "\n"
	}
	return "Next:\n  " + cmd + "\n"
}

package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// planView is a plan with what its text needs besides: pure data, so that the text is a function of it.
type planView struct {
	plan  *guard.DrainPlan
	typed typed
	wide  bool
	// hooks are the descriptions of the hooks by name.
	hooks map[string]lbhooks.Description
	// settle and hookTimeout are the flags of those names; settle is nil when it is each hook's own.
	settle      *time.Duration
	hookTimeout time.Duration
	// hookTimeoutTyped: the flag wins over what a configuration states.
	hookTimeoutTyped bool
	// alone are the nodes of a refused plan when each could be drained by itself.
	alone []string
	// then says when a drain was refused, if not before anything changed.
	then string
}

// planText is what `safedrain plan` prints: the answer, the table, the reasons, what else happens, what to type.
func planText(v *planView) string {
	rs := reasons(v.plan)
	var b strings.Builder
	b.WriteString(v.answer(rs) + "\n")
	v.writeBody(&b, rs)
	return b.String()
}

// refusalText is what follows "error: " when a drain is refused.
func refusalText(v *planView) string {
	rs := reasons(v.plan)
	var b strings.Builder
	when := "nothing changed"
	if v.then != "" {
		when = v.then
	}
	fmt.Fprintf(&b, "%s refused, %s: %s\n", v.subject(), when, v.against(rs))
	v.writeBody(&b, rs)
	return b.String()
}

func (v *planView) subject() string {
	return strings.Join(slashed(ranges(v.plan.Nodes)), ", ")
}

// answer is the first line.
func (v *planView) answer(rs []reason) string {
	if v.plan.Refused() {
		return v.subject() + " would be refused: " + v.against(rs)
	}
	var parts []string
	withdrawn, accepted := 0, 0
	for i := range v.plan.Services {
		switch s := &v.plan.Services[i]; {
		case s.Verdict == guard.Withdraw:
			withdrawn++
		case s.Verdict == guard.Unproven || s.Verdict == guard.Unsafe || hasAccepted(s):
			accepted++
		}
	}
	if withdrawn > 0 {
		parts = append(parts, count(withdrawn, "Service")+" withdrawn first")
	}
	if accepted > 0 {
		parts = append(parts, fmt.Sprintf("%d accepted by flag", accepted))
	}
	parts = append(parts, count(v.podsGoing(), "pod")+" evicted")
	return v.subject() + " can be drained: " + strings.Join(parts, ", ")
}

func hasAccepted(s *guard.ServicePlan) bool {
	return slices.ContainsFunc(s.Findings, func(f guard.Finding) bool { return f.Accepted })
}

func (v *planView) against(rs []reason) string {
	if words := headline(rs); words != "" {
		return words
	}
	return "verdict " + string(v.plan.Verdict)
}

func (v *planView) podsGoing() int {
	n := 0
	for i := range v.plan.Pods {
		if a := v.plan.Pods[i].Action; a == guard.ActionEvict || a == guard.ActionDelete {
			n++
		}
	}
	return n
}

func (v *planView) writeBody(b *strings.Builder, rs []reason) {
	if t := v.services(); t != "" {
		b.WriteString("\n" + t)
	}
	if t := v.blocks(rs); t != "" {
		b.WriteString("\n" + t)
	}
	if t := v.facts(); t != "" {
		b.WriteString("\n" + t)
	}
	if t := v.next(rs); t != "" {
		b.WriteString("\n" + t)
	}
}

// rowsShown is the number of Services in a table that is not wide.
const rowsShown = 12

// services is the table of Local Services that change or block.
func (v *planView) services() string {
	head := []string{"SERVICE", "BALANCER"}
	nodes := v.plan.Nodes
	apart := len(nodes) <= 3 || v.wide
	if apart {
		for _, n := range nodes {
			head = append(head, "ON "+n)
		}
	} else {
		head = append(head, "ON THE NODES")
	}
	t := table{head: append(head, "LEFT", "HOW", "VERDICT")}
	left := 0
	for i := range v.plan.Services {
		s := &v.plan.Services[i]
		if !v.wide && len(t.rows) >= rowsShown && s.Verdict != guard.Unsafe {
			left++
			continue
		}
		cells := []string{s.Key().String(), s.Balancer.Hook}
		if apart {
			for _, n := range nodes {
				cells = append(cells, onNode(s, n))
			}
		} else {
			cells = append(cells, onNodes(s, nodes))
		}
		leftOf := fmt.Sprintf("%d/%d", s.Endpoints.After, s.Endpoints.Before)
		t.row(append(cells, leftOf, v.how(s), string(s.Verdict))...)
	}
	if len(t.rows) == 0 {
		return ""
	}
	if left > 0 {
		return t.String() + fmt.Sprintf("+%d (-o wide)\n", left)
	}
	return t.String()
}

func onNode(s *guard.ServicePlan, node string) string {
	for _, r := range s.Nodes {
		if r.Name != node {
			continue
		}
		if r.Before == r.After {
			return string(r.Before)
		}
		return string(r.Before) + " -> " + string(r.After)
	}
	return "-"
}

// onNodes counts the changes of many nodes.
func onNodes(s *guard.ServicePlan, nodes []string) string {
	n := map[string]int{}
	for _, node := range nodes {
		if c := onNode(s, node); c != "-" {
			n[c]++
		}
	}
	var out []string
	for _, c := range slices.Sorted(keys(n)) {
		out = append(out, fmt.Sprintf("%d %s", n[c], c))
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}

// how says by what means the nodes leave the rotation of a Service and what proves it.
func (v *planView) how(s *guard.ServicePlan) string {
	for _, f := range s.Findings {
		if f.Accepted {
			if f.Severity == guard.Block {
				return "forced by flag"
			}
			return "accepted, no proof" + v.settled(&s.Balancer)
		}
	}
	changes := slices.ContainsFunc(s.Nodes, func(r guard.NodeRow) bool {
		return slices.Contains(v.plan.Nodes, r.Name) && r.Before != r.After
	})
	switch s.Verdict {
	case guard.Unsafe:
		return "waiting does not help"
	case guard.Unproven:
		return "nobody can tell it is out"
	case guard.Safe:
		if !changes {
			return "nothing changes"
		}
		return "nothing sent there"
	}
	switch s.Balancer.Removal {
	case guard.RemovalHealthCheck:
		return "pods outlive the health check"
	case guard.RemovalHold:
		if s.Hold != nil {
			return fmt.Sprintf("hold by label %s, %s after 503", s.Hold.Label, s.Hold.Wait)
		}
	case guard.RemovalLabel, guard.RemovalHook:
		words := strings.ToLower(string(s.Balancer.Removal))
		if w := v.hooks[s.Balancer.Hook].Witness; w != "" {
			return words + ", proof by " + w + v.settled(&s.Balancer)
		}
		return words + ", no witness" + v.settled(&s.Balancer)
	}
	return strings.ToLower(string(s.Balancer.Removal))
}

func (v *planView) settled(b *guard.Balancer) string {
	if d := v.settleOf(b); d > 0 {
		return ", +" + seconds(d)
	}
	return ""
}

func (v *planView) settleOf(b *guard.Balancer) time.Duration {
	switch {
	case v.settle != nil:
		return *v.settle
	case b.Settle != nil:
		return *b.Settle
	}
	return v.hooks[b.Hook].Settle
}

// timeoutOf is the time that a balancer has for its proof.
func (v *planView) timeoutOf(b *guard.Balancer) time.Duration {
	if b.Timeout > 0 && !v.hookTimeoutTyped {
		return b.Timeout
	}
	return v.hookTimeout
}

// seconds writes a duration as people read it: 2s, 0.3s, 5m.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second && d%time.Second != 0:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d >= 2*time.Minute && d%time.Minute == 0:
		return strings.TrimSuffix(d.String(), "0s")
	default:
		return fmt.Sprintf("%ds", int(d.Round(time.Second).Seconds()))
	}
}

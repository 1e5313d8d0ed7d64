package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/rolling"
	"github.com/safedrain/safedrain/pkg/guard"
	guardrolling "github.com/safedrain/safedrain/pkg/guard/rolling"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// kindRollPlan is the document of --rolling --plan.
const kindRollPlan = "RollPlan"

// rollPlan is the order of a roll; its nodes are in the order of their turns.
type rollPlan struct {
	APIVersion     string         `json:"apiVersion"`
	Kind           string         `json:"kind"`
	MaxUnavailable int            `json:"maxUnavailable"`
	Nodes          []rollPlanNode `json:"nodes"`
	Time           rollPlanTime   `json:"time"`
}

type rollPlanNode struct {
	Name  string          `json:"name"`
	Turn  int             `json:"turn"`  // nodes of one turn may be away at the same time
	Drain float64         `json:"drain"` // seconds that its drain takes at most, unless a budget waits
	Plan  guard.DrainPlan `json:"plan"`  // of this node by itself
}

// rollPlanTime is how long a roll takes, and what that rests on.
type rollPlanTime struct {
	Drain   float64  `json:"drain"`             // seconds for all turns, at most
	Command *float64 `json:"command,omitempty"` // seconds for all turns, at most; absent without a command or without a limit
	RestsOn string   `json:"restsOn"`
}

// rollView is a roll with what its texts need besides.
type rollView struct {
	options  *rolling.Options
	typed    typed
	hooks    map[string]lbhooks.Description
	selected bool // the nodes were chosen by a selector
	outlook  *rolling.Outlook
	result   *rolling.Result
	reason   string // the text of the error, explained
}

// nodeView is the view of one node's plan.
func (v *rollView) nodeView(p *guard.DrainPlan) *planView {
	o := &v.options.Drain
	return &planView{plan: p, typed: v.typed, hooks: v.hooks, settle: o.Settle, hookTimeout: o.HookTimeout, hookTimeoutTyped: o.HookTimeoutTyped}
}

func (v *rollView) plan() *rollPlan {
	p := &rollPlan{APIVersion: guard.APIVersion, Kind: kindRollPlan, MaxUnavailable: v.options.AtOnce, Nodes: []rollPlanNode{}}
	plans := map[string]*guard.DrainPlan{}
	for i := range v.outlook.Plans {
		plans[v.outlook.Plans[i].Nodes[0]] = &v.outlook.Plans[i]
	}
	turns, drains := v.outlook.Turns(), time.Duration(0)
	for i, turn := range turns {
		longest := time.Duration(0)
		for _, name := range turn {
			bound, _ := v.nodeView(plans[name]).bounds()
			longest = max(longest, bound)
			p.Nodes = append(p.Nodes, rollPlanNode{Name: name, Turn: i + 1, Drain: bound.Seconds(), Plan: *plans[name]})
		}
		drains += longest
	}
	p.Time = v.time(drains, len(turns))
	return p
}

// time says how long it takes: what is known, and what is not.
func (v *rollView) time(drains time.Duration, turns int) rollPlanTime {
	t := rollPlanTime{Drain: drains.Seconds()}
	rests := []string{"each drain at its longest: proof, settle time and grace, unless a budget waits"}
	switch {
	case v.options.Command == "":
	case v.options.RunTimeout > 0:
		most := (time.Duration(turns) * v.options.RunTimeout).Seconds()
		t.Command = &most
		rests = append(rests, fmt.Sprintf("--run at its longest, %s, %s one after another", span2(v.options.RunTimeout), count(turns, "time")))
	default:
		rests = append(rests, "--run has no limit and is not counted")
	}
	rests = append(rests, "how long new pods take to start is not known and not counted")
	t.RestsOn = strings.Join(rests, "; ")
	return t
}

// planText is what --rolling --plan prints: the answer, the order, what it rests on, what to type.
func (v *rollView) planText(p *rollPlan, wide bool) string {
	var refused []guard.DrainPlan
	for i := range p.Nodes {
		if p.Nodes[i].Plan.Refused() {
			refused = append(refused, p.Nodes[i].Plan)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, at most %d at once: ", count(len(p.Nodes), "node"), p.MaxUnavailable)
	if len(refused) > 0 {
		fmt.Fprintf(&b, "%s would be refused\n\n", count(len(refused), "node"))
	} else {
		b.WriteString("all can be drained\n\n")
	}
	t := table{head: []string{"TURN", "NODE", "VERDICT", "PODS", "FEWEST LEFT", "WHY"}}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		t.row(fmt.Sprint(n.Turn), n.Name, string(n.Plan.Verdict), fmt.Sprint(v.nodeView(&n.Plan).podsGoing()), thinnest(&n.Plan), whyShort(&n.Plan))
	}
	b.WriteString(t.String() + "\n")
	order := "what loses least goes first, a last endpoint last; each node is judged anew before its turn"
	if !v.outlook.Placed {
		order += "; where pods may run next was not looked at"
	}
	writeLabelled(&b, "Order", order)
	words := "at most " + span2(time.Duration(p.Time.Drain*float64(time.Second))) + " of drains"
	if p.Time.Command != nil {
		words += " and " + span2(time.Duration(*p.Time.Command*float64(time.Second))) + " of --run"
	}
	writeLabelled(&b, "Time", words)
	writeLabelled(&b, "", "("+p.Time.RestsOn+")")
	b.WriteByte('\n')
	if len(refused) > 0 {
		v.writeRefused(&b, refused, wide)
		return b.String()
	}
	fmt.Fprintf(&b, "Next:\n  %s\n", v.again())
	return b.String()
}

// thinnest names the Service that has the fewest endpoints left.
func thinnest(p *guard.DrainPlan) string {
	s := guardrolling.Thinnest(p)
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%s %d of %d", s.Key(), s.Endpoints.After, s.Endpoints.Before)
}

// writeRefused says what stands against nodes, and what accepts it.
func (v *rollView) writeRefused(b *strings.Builder, refused []guard.DrainPlan, wide bool) {
	t := table{head: []string{"NODE", "VERDICT", "WHY"}}
	for _, r := range eachRows(refused, wide) {
		t.row(listed(ranges(r.nodes), 4), string(r.verdict), r.why)
	}
	b.WriteString(t.String())
	var accept, unsafe []string
	for i := range refused {
		for _, r := range reasons(&refused[i]) {
			switch {
			case r.Accept == "" || r.cause() == causeWarn:
			case r.cause() == causeUnsafe:
				unsafe = append(unsafe, refused[i].Nodes[0])
			default:
				accept = append(accept, r.Accept)
			}
		}
	}
	b.WriteByte('\n')
	if flags := globbed(sorted(accept)); len(flags) > 0 {
		writeField(b, "accept", strings.Join(flags, " "))
	}
	if unsafe = sorted(unsafe); len(unsafe) > 0 {
		writeField(b, "see", v.typed.only(whereFlags...).command("plan", unsafe[0])+"   (what is unsafe, and what mends it)")
		writeField(b, "leave out", "choose the other nodes: -l '...,kubernetes.io/hostname notin ("+strings.Join(unsafe, ",")+")'")
	}
}

// again is the command that goes on.
func (v *rollView) again() string {
	t := typed{name: v.typed.name}
	for _, f := range v.typed.flags {
		if f.name != "plan" {
			t.flags = append(t.flags, f)
		}
	}
	if v.selected {
		return t.command("")
	}
	return t.command("", v.options.Nodes...)
}

// endText is the end of a roll, for stderr.
func (v *rollView) endText() string {
	r := v.result
	done := 0
	for i := range r.Report.Nodes {
		if r.Report.Nodes[i].Step == rolling.Done {
			done++
		}
	}
	var b strings.Builder
	if r.Outcome == drain.Done {
		if len(r.Out) > 0 {
			writeField(&b, "Back", v.typed.only(whereFlags...).command("uncordon", r.Out...))
		}
		return b.String()
	}
	if len(r.Report.Refused) > 0 {
		fmt.Fprintf(&b, "error: %s\n\n", v.reason)
		v.writeRefused(&b, r.Report.Refused, false)
		return b.String()
	}
	if r.Outcome == drain.Refused {
		fmt.Fprintf(&b, "error: the roll is refused, nothing changed: %s\n", v.reason)
		return b.String()
	}
	fmt.Fprintf(&b, "error: the roll stopped, %d of %s done: %s\n", done, count(len(v.options.Nodes), "node"), v.reason)
	b.WriteByte('\n')
	for i := range r.Report.Nodes {
		n := &r.Report.Nodes[i]
		if n.Step != rolling.Done && slices.Contains(r.Out, n.Name) {
			writeField(&b, "node/"+n.Name, string(n.Step)+stateWords(r.States, n.Name))
		}
	}
	writeField(&b, "continue", v.again())
	if len(r.Out) > 0 {
		writeField(&b, "undo", v.typed.only(whereFlags...).command("uncordon", r.Out...))
	}
	return b.String()
}

// stateWords says what stands on a node whose drain has not ended well.
func stateWords(states []drain.NodeState, name string) string {
	i := slices.IndexFunc(states, func(s drain.NodeState) bool { return s.Name == name })
	if i < 0 {
		return ""
	}
	n, words := &states[i], ""
	if n.Cordoned {
		words += ", cordoned"
	}
	if len(n.OutOf) > 0 {
		words += ", out of " + strings.Join(n.OutOf, ", ")
	}
	if n.PodsTotal > 0 {
		words += fmt.Sprintf("; %d of %s gone", n.PodsGone, count(n.PodsTotal, "pod"))
	}
	return words
}

// span2 writes a time that may be hours, in its two largest units.
func span2(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%ds", int(d.Seconds()))
}

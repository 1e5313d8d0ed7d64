package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// hooksView is the rows of the command hooks with what their text needs.
type hooksView struct {
	rows  []hookRow
	typed typed
	wide  bool
	node  string // asked about; "" for all
}

// hooksText is the table: who fronts what, what it can prove, what is missing.
func hooksText(v *hooksView) string {
	if len(v.rows) == 0 {
		return v.none()
	}
	t := table{head: []string{"SERVICE", "HOOK", "IN ROTATION", "PROOF", "MISSING"}}
	if v.wide {
		t.head = append(t.head, "WHY", "EVIDENCE")
	}
	if v.node != "" {
		t.head = append(t.head, "ON "+v.node)
	}
	provable := 0
	for i := range v.rows {
		h := &v.rows[i]
		if h.Provable || h.Nobody || h.PodTargets {
			provable++
		}
		cells := []string{h.Namespace + "/" + h.Name, h.fronts(), v.rotation(h), proof(h), v.missing(h)}
		if v.wide {
			cells = append(cells, cmp.Or(h.Reason, "-"), cmp.Or(h.Evidence, "-"))
		}
		if v.node != "" {
			cells = append(cells, h.Seats[0].text())
		}
		t.row(cells...)
	}
	return t.String() + fmt.Sprintf("\n%d of %d provable. Why this hook: %s. Repairs: %s\n", provable, len(v.rows),
		v.typed.command("hooks", v.rows[0].Namespace+"/"+v.rows[0].Name), v.typed.with("--fix").command("hooks"))
}

func (v *hooksView) none() string {
	if v.node != "" {
		return fmt.Sprintf("no balancer sends to node %s\n", v.node)
	}
	return "no Service is reachable from outside\n"
}

// fronts names the hook, or all that claim the Service.
func (h *hookRow) fronts() string {
	if len(h.Conflict) > 0 {
		return strings.Join(h.Conflict, ", ")
	}
	return h.Hook
}

// text says whether a balancer sends to the node, and why.
func (s *hookSeat) text() string {
	text := string(s.In)
	if s.In == guard.No && s.Eligible {
		text = "No, could"
	}
	if s.Why != "" {
		text += ": " + s.Why
	}
	return text
}

func (v *hooksView) rotation(h *hookRow) string {
	switch {
	case h.Nobody:
		return "nobody sends"
	case h.Rotation == guard.Unknown:
		return "unknown"
	case len(h.InRotation) == 0:
		return "no node"
	}
	short := ranges(h.InRotation)
	text := strings.Join(short, ", ")
	if len(short) > 3 && !v.wide {
		text = count(len(h.InRotation), "node")
	}
	if h.OthersUnknown {
		text += ", others unknown"
	}
	return text
}

func proof(h *hookRow) string {
	switch {
	case h.Nobody:
		return "not needed"
	case h.PodTargets:
		return "sends to pods"
	case h.Provable && h.Witness != "":
		return h.Witness
	case h.Provable:
		return "hook"
	}
	return "none"
}

func (v *hooksView) missing(h *hookRow) string {
	if len(h.Missing) == 0 {
		return "-"
	}
	var parts []string
	for _, m := range h.Missing {
		parts = append(parts, m.What)
	}
	if len(parts) > 1 && !v.wide {
		return fmt.Sprintf("%s +%d (-o wide)", parts[0], len(parts)-1)
	}
	return strings.Join(parts, "; ")
}

// hookDetail says of one Service why this hook, and what it knows.
func hookDetail(v *hooksView) string {
	h := &v.rows[0]
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s is fronted by %s\n\n", h.Namespace, h.Name, h.fronts())
	policy := "Cluster: a node needs no endpoint to serve it"
	if h.Local {
		policy = "Local: a node without an endpoint drops what arrives"
	}
	for _, f := range []struct{ name, text string }{
		{"Why", h.Reason},
		{"Evidence", h.Evidence},
		{"Policy", policy},
		{"Rotation", v.rotation(h)},
		{"Removal", string(h.Removal)},
		{"Proof", proof(h)},
		{"Settle", h.Settle},
	} {
		if f.text != "" {
			writeLabelled(&b, f.name, f.text)
		}
	}
	for _, line := range seatLines(h.Seats) {
		writeLabelled(&b, "Nodes", line)
	}
	for _, m := range h.Missing {
		writeLabelled(&b, "Missing", m.text())
	}
	return b.String()
}

func (m *missing) text() string {
	if m.Why == "" {
		return m.What
	}
	return m.What + ": " + m.Why
}

// seatLines says of each node whether the balancer sends to it, those of which the same is known on one line; first those
// that it sends to.
func seatLines(seats []hookSeat) []string {
	nodes := map[string][]string{}
	var order []string
	for _, in := range []guard.InRotation{guard.Yes, guard.Unknown, guard.No} {
		for i := range seats {
			if seats[i].In != in {
				continue
			}
			text := seats[i].text()
			if nodes[text] == nil {
				order = append(order, text)
			}
			nodes[text] = append(nodes[text], seats[i].Node)
		}
	}
	var out []string
	for _, text := range order {
		out = append(out, strings.Join(ranges(nodes[text]), ", ")+"  "+text)
	}
	return out
}

// fixText prints the commands that make Services provable, or say that nobody sends: what is to be chosen is a comment.
func fixText(v *hooksView) string {
	var b strings.Builder
	asked := map[string]bool{}
	for i := range v.rows {
		h := &v.rows[i]
		name := h.Namespace + "/" + h.Name
		switch {
		case h.Nobody || len(h.Missing) == 0 && h.Provable:
			continue
		case h.Hook == "none":
			v.fixUnknown(&b, h)
		case len(h.Conflict) > 0:
			fixConflict(&b, h)
		case !h.Provable && h.Broken == "" && h.Removal == guard.RemovalLabel && h.Unsupported == "" && h.Local && !h.forbidden():
			fmt.Fprintf(&b, "# %s, behind %s: %s\nkubectl -n %s annotate svc %s %s=60s\n", name, h.Hook, h.whyNoProof(), h.Namespace, h.Name, lbhooks.AnnotationSettle)
		case len(h.Missing) > 0 && !asked[h.Hook]:
			asked[h.Hook] = true
			for j := range h.Missing {
				fmt.Fprintf(&b, "# %s, behind %s: %s\n", name, h.Hook, h.Missing[j].text())
			}
			if h.forbidden() {
				fmt.Fprintf(&b, "%s | kubectl apply -f -\n", v.typed.only().with("--hook="+h.Hook).command("rbac"))
			}
		}
	}
	if b.Len() == 0 {
		return "# nothing to mend: every Service is provable, or needs no proof\n"
	}
	return b.String()
}

// forbidden reports whether a role would mend something.
func (h *hookRow) forbidden() bool {
	return slices.ContainsFunc(h.Missing, func(m missing) bool { return m.Forbidden })
}

// whyNoProof says why nothing confirms a removal, and what a settle time does about it.
func (h *hookRow) whyNoProof() string {
	why := "nothing can confirm a removal"
	for _, m := range h.Missing {
		if m.Why != "" && !strings.HasPrefix(m.Why, lbhooks.AnnotationSettle) {
			why = m.Why
		}
	}
	return why + "; a settle time accepts that for good"
}

// fixConflict prints the commands that choose between the hooks that claim a Service.
func fixConflict(b *strings.Builder, h *hookRow) {
	fmt.Fprintf(b, "# %s/%s: claimed by more than one hook (%s); pick one\n", h.Namespace, h.Name, h.Reason)
	for _, hook := range h.Conflict {
		fmt.Fprintf(b, "kubectl -n %s annotate svc %s %s=%s\n", h.Namespace, h.Name, lbhooks.AnnotationHook, hook)
	}
}

func (v *hooksView) fixUnknown(b *strings.Builder, h *hookRow) {
	if !h.Local {
		return
	}
	var ports []string
	for _, p := range h.NodePorts {
		ports = append(ports, fmt.Sprint(p))
	}
	what := "the node ports " + strings.Join(ports, ", ")
	if len(ports) == 0 {
		what = "its addresses"
	}
	ask := fmt.Sprintf("kubectl -n %s annotate svc %s %s=http           # your balancer can be asked: docs/hooks/http.md, exec.md\n", h.Namespace, h.Name, lbhooks.AnnotationHook)
	if h.Declared {
		fmt.Fprintf(b, "# %s/%s: its nodes are declared, and nothing takes one of them out\n%s", h.Namespace, h.Name, ask)
		return
	}
	fmt.Fprintf(b, "# %s/%s: no balancer is known; pick one\n", h.Namespace, h.Name)
	fmt.Fprintf(b, "kubectl -n %s annotate svc %s %s=none          # nobody outside uses %s\n", h.Namespace, h.Name, lbhooks.AnnotationNodes, what)
	fmt.Fprintf(b, "kubectl -n %s annotate svc %s %s=role=edge     # these nodes, by label, are in your balancer\n", h.Namespace, h.Name, lbhooks.AnnotationNodes)
	b.WriteString(ask)
}

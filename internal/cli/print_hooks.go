package cli

import (
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
}

// hooksText is the table: who fronts what, what it can prove, what is missing.
func hooksText(v *hooksView) string {
	if len(v.rows) == 0 {
		return "no Service is reachable from outside\n"
	}
	t := table{head: []string{"SERVICE", "HOOK", "IN ROTATION", "PROOF", "MISSING"}}
	provable := 0
	for i := range v.rows {
		h := &v.rows[i]
		if h.Provable || h.Nobody {
			provable++
		}
		t.row(h.Namespace+"/"+h.Name, h.Hook, v.rotation(h), proof(h), v.missing(h))
	}
	return t.String() + fmt.Sprintf("\n%d of %d provable. Why this hook: %s. Repairs: %s\n", provable, len(v.rows),
		v.typed.command("hooks", v.rows[0].Namespace+"/"+v.rows[0].Name), v.typed.with("--fix").command("hooks"))
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
	if len(short) > 3 && !v.wide {
		return count(len(h.InRotation), "node")
	}
	return strings.Join(short, ", ")
}

func proof(h *hookRow) string {
	switch {
	case h.Nobody:
		return "not needed"
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
	fmt.Fprintf(&b, "%s/%s is fronted by %s\n\n", h.Namespace, h.Name, h.Hook)
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
	for _, m := range h.Missing {
		text := m.What
		if m.Why != "" {
			text += ": " + m.Why
		}
		writeLabelled(&b, "Missing", text)
	}
	return b.String()
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
		case len(h.Missing) > 0 && !asked[h.Hook]:
			asked[h.Hook] = true
			fmt.Fprintf(&b, "# %s, behind %s: %s\n", name, h.Hook, v.missing(h))
			if slices.ContainsFunc(h.Missing, func(m missing) bool { return m.Forbidden }) {
				fmt.Fprintf(&b, "%s | kubectl apply -f -\n", v.typed.only().with("--hook="+h.Hook).command("rbac"))
			}
		case len(h.Missing) == 0 && h.Local:
			fmt.Fprintf(&b, "# %s, behind %s: nothing can confirm a removal; a settle time accepts that for good\nkubectl -n %s annotate svc %s %s=60s\n",
				name, h.Hook, h.Namespace, h.Name, lbhooks.AnnotationSettle)
		}
	}
	if b.Len() == 0 {
		return "# nothing to mend: every Service is provable, or needs no proof\n"
	}
	return b.String()
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
	fmt.Fprintf(b, "# %s/%s: no balancer is known; pick one\n", h.Namespace, h.Name)
	fmt.Fprintf(b, "kubectl -n %s annotate svc %s %s=none          # nobody outside uses %s\n", h.Namespace, h.Name, lbhooks.AnnotationNodes, what)
	fmt.Fprintf(b, "kubectl -n %s annotate svc %s %s=role=edge     # these nodes, by label, are in your balancer\n", h.Namespace, h.Name, lbhooks.AnnotationNodes)
}

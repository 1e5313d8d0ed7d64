package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// hookRows asks the hooks about every Service that something outside can reach, of one namespace or name where these are
// not empty. The rows have the seats of the nodes named.
func (w *world) hookRows(only guard.Key, seats []string) []hookRow {
	descriptions := w.descriptions()
	rows := []hookRow{}
	for svc := range w.snap.Index(w.hooks, nil).Services() {
		rot := &svc.Rotation
		if only.Namespace != "" && svc.Key.Namespace != only.Namespace || only.Name != "" && svc.Key.Name != only.Name || !w.reachable(svc) {
			continue
		}
		row := w.hookRow(svc, descriptions[rot.Hook])
		for _, node := range seats {
			s := rot.Seat(node)
			row.Seats = append(row.Seats, hookSeat{Node: node, In: s.In, Eligible: s.Eligible, Why: s.Why})
		}
		rows = append(rows, row)
	}
	return rows
}

// reachable reports whether something outside can reach a Service, of whatever policy.
func (w *world) reachable(svc *guard.ServiceFacts) bool {
	if svc.External || svc.Rotation.Hook != "" {
		return true
	}
	object, ok := w.snap.RawService(svc.Key)
	return ok && (object.Spec.Type == corev1.ServiceTypeNodePort || object.Spec.Type == corev1.ServiceTypeLoadBalancer || len(object.Spec.ExternalIPs) > 0)
}

func (w *world) hookRow(svc *guard.ServiceFacts, d lbhooks.Description) hookRow {
	rot := &svc.Rotation
	row := hookRow{
		Namespace: svc.Key.Namespace, Name: svc.Key.Name, Local: svc.External, Hook: cmp.Or(rot.Hook, "none"), Conflict: rot.Conflict,
		Reason: rot.Reason, Evidence: rot.Evidence, Removal: cmp.Or(rot.Removal, guard.RemovalNone), Nobody: rot.Nobody, Declared: rot.Declared,
		PodTargets: rot.PodTargets != nil, Witness: d.Witness, Unsupported: rot.Unsupported, Broken: rot.Broken, NodePorts: svc.NodePorts,
		Provable: rot.Provable && rot.Broken == "" && rot.Unsupported == "" && len(rot.Conflict) == 0,
	}
	row.InRotation, row.Rotation, row.OthersUnknown = w.inRotation(rot)
	if rot.Settle != nil {
		row.Settle = seconds(*rot.Settle)
	} else if d.Settle > 0 {
		row.Settle = seconds(d.Settle)
	}
	row.Missing = w.missingOf(&row, rot, d.Needs)
	return row
}

// missingOf lists what stands between a Service and a proof.
func (w *world) missingOf(row *hookRow, rot *guard.Rotation, needs []lbhooks.Need) []missing {
	out := []missing{}
	lacks := w.lacks(rot.Hook)
	switch {
	case len(rot.Conflict) > 0:
		return append(out, missing{What: "HookConflict: " + lbhooks.AnnotationHook + " chooses"})
	case rot.Unsupported != "":
		out = append(out, missing{What: "UnsupportedBalancer: " + rot.Unsupported})
	}
	out = append(out, lacks...)
	for _, n := range needs {
		gk := schema.GroupKind{Group: n.Group, Kind: n.Kind}
		if what := w.snap.Unavailable(gk); what != "" && !w.elsewhere(n, needs) {
			out = append(out, missing{What: what, Why: n.Why, Forbidden: w.forbidden(gk)})
		}
	}
	if rot.Broken != "" && !slices.ContainsFunc(out, func(m missing) bool { return strings.Contains(rot.Broken, m.What) }) {
		out = append(out, missing{What: rot.Broken, Forbidden: strings.Contains(rot.Broken, notAllowed)})
	}
	if rot.NoProof != "" {
		out = append(out, missing{What: "proof of a removal", Why: rot.NoProof})
	}
	if len(out) == 0 && !row.Provable && !rot.Nobody && !row.PodTargets {
		out = append(out, noWitness(row))
	}
	return out
}

// elsewhere reports whether a kind is there in another group: Calico's kinds have two.
func (w *world) elsewhere(n lbhooks.Need, needs []lbhooks.Need) bool {
	return slices.ContainsFunc(needs, func(o lbhooks.Need) bool {
		return o.Kind == n.Kind && o.Group != n.Group && w.snap.Unavailable(schema.GroupKind{Group: o.Group, Kind: o.Kind}) == ""
	})
}

// noWitness says what to do about a Service of which nothing can be proven, though nothing is broken.
func noWitness(row *hookRow) missing {
	switch {
	case row.Hook == "none" && row.Declared:
		return missing{What: "a hook: nobody can take a declared node out"}
	case row.Hook == "none":
		return missing{What: "a hook, or " + lbhooks.AnnotationNodes}
	case row.Removal == guard.RemovalHealthCheck:
		return missing{What: "proof of a removal", Why: "the balancer's own check takes a node out, after its pods end: they have to outlive it, which the plan tells"}
	}
	return missing{What: "proof of a removal", Why: lbhooks.AnnotationSettle + " on the Service accepts a time in its place"}
}

// conflictText names the hooks that claim a Service and why each does.
func conflictText(h *hookRow) string {
	return fmt.Sprintf("%s/%s: HookConflict, every drain that needs it is refused: %s; annotate it with %s=%s, or another of them",
		h.Namespace, h.Name, h.Reason, lbhooks.AnnotationHook, h.Conflict[0])
}

// notAllowed begins what a snapshot says of a kind that may not be listed.
const notAllowed = "not allowed to "

// forbidden reports whether objects of a kind are missing for want of a permission.
func (w *world) forbidden(gk schema.GroupKind) bool {
	return strings.HasPrefix(w.snap.Unavailable(gk), notAllowed)
}

// inRotation lists the nodes that a balancer sends to; Unknown when nothing tells of any. unknown says that it may send to
// others too.
func (w *world) inRotation(rot *guard.Rotation) (nodes []string, in guard.InRotation, unknown bool) {
	nodes = []string{}
	for _, name := range w.snap.NodeNames() {
		switch rot.Seat(name).In {
		case guard.Yes:
			nodes = append(nodes, name)
		case guard.Unknown:
			unknown = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rot.Seats)) {
		if rot.Seats[name].In == guard.Yes && !slices.Contains(nodes, name) {
			nodes = append(nodes, name)
		}
	}
	switch {
	case unknown && len(nodes) == 0 && !rot.Nobody:
		return nodes, guard.Unknown, false
	case len(nodes) == 0:
		return nodes, guard.No, false
	}
	return nodes, guard.Yes, unknown
}

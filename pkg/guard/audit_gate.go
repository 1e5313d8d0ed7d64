package guard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// GateFacts is what the API server says of a gate that is installed.
type GateFacts struct {
	Broken []string          // what keeps its webhooks from judging: "webhook evict.safedrain.dev is not registered"; sorted
	Off    bool              // it judges nothing, unless a namespace or a Service says otherwise
	Apart  map[string]string // namespaces whose evictions it is not asked about, with the reason
	Gate   map[string]string // annotation safedrain.dev/gate of namespaces
}

// The values of safedrain.dev/gate, from the strictest on; a word that is none of them says nothing.
var gateModes = []string{"enforce", "warn", gateOff}

const gateOff = "off"

// Ungated names the Services of externalTrafficPolicy Local whose pods everybody may evict although a gate is installed.
func Ungated(ix Index, filter AuditFilter, gate *GateFacts) []Finding {
	var out []Finding
	if len(gate.Broken) > 0 {
		out = append(out, Finding{
			Code: NotGated, Severity: Warn, Message: "the gate is installed and does not judge: " + strings.Join(gate.Broken, ", "),
			Advice: "docs/gate-install.md says how it is installed",
		})
	}
	by := map[string][]string{}
	for svc := range ix.Services() {
		if !svc.External || svc.Rotation.Nobody || !filter.lets(svc.Key) {
			continue
		}
		if why := gate.leavesOut(svc); why != "" {
			by[why] = append(by[why], svc.Key.String())
		}
	}
	for _, why := range sortedKeys(by) {
		out = append(out, Finding{
			Code: NotGated, Severity: Info, Message: fmt.Sprintf("not covered by the gate, %s: %s", why, firstOf(by[why])),
			Advice: "anybody may evict their pods before the node is withdrawn; " + AnnotationGate + "=enforce on the Service or its namespace covers them",
		})
	}
	return out
}

// leavesOut says why the gate does not cover a Service; "" where it does.
func (g *GateFacts) leavesOut(svc *ServiceFacts) string {
	if why := g.Apart[svc.Key.Namespace]; why != "" {
		return why
	}
	own, namespace := modeWord(svc.Gate), modeWord(g.Gate[svc.Key.Namespace])
	switch {
	case own == gateOff:
		return AnnotationGate + "=off on the Service"
	case own == "" && namespace == gateOff:
		return AnnotationGate + "=off on namespace " + svc.Key.Namespace
	case cmp.Or(own, namespace) == "" && g.Off:
		return "which is off in this cluster"
	}
	return ""
}

func modeWord(word string) string {
	if slices.Contains(gateModes, word) {
		return word
	}
	return ""
}

// firstOf lists names, most of them, sorted.
func firstOf(names []string) string {
	const shown = 6
	slices.Sort(names)
	text := strings.Join(names[:min(shown, len(names))], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" +%d", more)
	}
	return text
}

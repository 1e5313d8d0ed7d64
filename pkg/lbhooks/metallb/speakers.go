package metallb

import (
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// nativeMode remembers whether the speakers speak BGP themselves, without FRR and its debounce.
type nativeMode struct{ atomic.Bool }

// speakers is what the speaker pods tell.
type speakers struct {
	known        bool // at least one is at hand; else every node is taken to run one
	byNode       map[string]*corev1.Pod
	hanging      map[string]bool // nodes whose speaker is not Ready although it has not ended
	ignoresLabel bool            // --ignore-exclude-lb: the exclude label does nothing
	class        *string         // --lb-class: only Services of that class are announced
	native       bool            // BGP without FRR, surely
}

func speakersOf(objects lbhooks.Objects) speakers {
	s := speakers{byNode: map[string]*corev1.Pod{}, hanging: map[string]bool{}}
	for _, hook := range []string{L2, BGP} {
		for _, pod := range objects.Agents(hook) {
			if pod.Spec.NodeName == "" {
				continue
			}
			s.known = true
			if old := s.byNode[pod.Spec.NodeName]; old == nil || !lbhooks.PodReady(old) {
				s.byNode[pod.Spec.NodeName] = pod
			}
			s.readFlags(pod)
		}
	}
	for node, pod := range s.byNode {
		if hangs(pod) {
			s.hanging[node] = true
		}
	}
	return s
}

func (s *speakers) readFlags(pod *corev1.Pod) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		for j, arg := range slices.Concat(c.Command, c.Args) {
			name, value, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			if !strings.HasPrefix(arg, "-") {
				continue
			}
			switch name {
			case "ignore-exclude-lb":
				s.ignoresLabel = !hasValue || value == "true" || value == "1" || value == "t"
			case "lb-class":
				if all := slices.Concat(c.Command, c.Args); !hasValue && j+1 < len(all) {
					value = all[j+1]
				}
				s.class = &value
			}
		}
		s.readMode(c)
	}
}

// readMode tells native mode by a METALLB_BGP_TYPE that says so or, as that is the default, is not among the variables
// of a speaker; only where other METALLB_ variables show that they are at hand at all.
func (s *speakers) readMode(c *corev1.Container) {
	ours := false
	for _, e := range c.Env {
		if e.Name == "METALLB_BGP_TYPE" {
			s.native = e.Value == "native"
			return
		}
		ours = ours || strings.HasPrefix(e.Name, "METALLB_")
	}
	s.native = s.native || ours
}

// missing says why the node cannot announce for want of a speaker; "" when it has one.
func (s *speakers) missing(node string) string {
	if !s.known {
		return ""
	}
	pod := s.byNode[node]
	switch {
	case pod == nil:
		return "no MetalLB speaker on it"
	case !lbhooks.PodReady(pod):
		return "its speaker " + pod.Namespace + "/" + pod.Name + " is not Ready"
	}
	return ""
}

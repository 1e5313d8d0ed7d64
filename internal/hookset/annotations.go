package hookset

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// nobody is the value of the annotation safedrain.dev/nodes that says that nothing outside sends to any node.
const nobody = "none"

// Every is the key of Deps.Override that stands for all Services.
const Every = "*"

// ParseOverrides reads the values of --hook: "namespace/name=hook" for one Service, "hook" for all. Hooks are those that
// there are with the settings.
func ParseOverrides(values []string, settings Settings) (map[string]string, error) {
	out := map[string]string{}
	for _, value := range values {
		service, hook, one := strings.Cut(value, "=")
		if !one {
			service, hook = Every, value
		}
		namespace, name, ok := strings.Cut(service, "/")
		if hook == "" || one && (!ok || namespace == "" || name == "" || strings.Contains(name, "/")) {
			return nil, fmt.Errorf("hook %q: write namespace/name=hook, or hook for every Service", value)
		}
		if !settings.known(hook) {
			return nil, fmt.Errorf("hook %q: %s", hook, settings.unknown())
		}
		if other, ok := out[service]; ok && other != hook {
			return nil, fmt.Errorf("hook %q: %s has the hook %q already", value, service, other)
		}
		out[service] = hook
	}
	return out, nil
}

// declareNodes puts what the annotation safedrain.dev/nodes says in place of the seats. The balancer it speaks of is taken
// to send to these nodes whether or not they have an endpoint.
func declareNodes(r *lbhooks.Rotation, svc *corev1.Service, objects lbhooks.Objects) {
	text, ok := svc.Annotations[lbhooks.AnnotationNodes]
	if !ok {
		return
	}
	text = strings.TrimSpace(text)
	if text == nobody {
		declared(r, nil)
		r.Nobody = true
		r.Evidence = "annotation " + lbhooks.AnnotationNodes + ": nobody outside sends to a node"
		return
	}
	selector, err := labels.Parse(text)
	if err != nil || text == "" {
		broken(r, fmt.Sprintf("annotation %s: %q is not a label selector: write role=edge, or %s", lbhooks.AnnotationNodes, text, nobody))
		return
	}
	seats := map[string]lbhooks.Seat{}
	for _, n := range objects.Nodes() {
		if selector.Matches(labels.Set(n.Labels)) {
			seats[n.Name] = lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "declared by " + lbhooks.AnnotationNodes}
		}
	}
	if len(seats) == 0 {
		broken(r, fmt.Sprintf("annotation %s: %q selects no node: mend it, or write %s", lbhooks.AnnotationNodes, text, nobody))
		return
	}
	declared(r, seats)
	r.Declared = true
	r.Evidence = fmt.Sprintf("annotation %s=%s, %d nodes", lbhooks.AnnotationNodes, text, len(seats))
}

func declared(r *lbhooks.Rotation, seats map[string]lbhooks.Seat) {
	r.Seats, r.Follows = seats, false
	r.Rest = lbhooks.Seat{In: lbhooks.No, Why: "not among the nodes of " + lbhooks.AnnotationNodes}
	if r.Removal == "" {
		r.Removal = lbhooks.RemovalNone
	}
}

// declareSettle reads the annotation safedrain.dev/settle, a duration.
func declareSettle(r *lbhooks.Rotation, svc *corev1.Service) {
	text, ok := svc.Annotations[lbhooks.AnnotationSettle]
	if !ok {
		return
	}
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d < 0 {
		broken(r, fmt.Sprintf("annotation %s: %q is not a duration: write 60s", lbhooks.AnnotationSettle, text))
		return
	}
	r.Settle, r.SettleBy = &d, "annotation "+lbhooks.AnnotationSettle
}

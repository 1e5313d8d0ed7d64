package surge

import (
	"context"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Victim picks the pod whose end costs least: see [guard.LeastMissed].
func (b *Bringer) Victim(ctx context.Context, l Lever, ix guard.Index) (*corev1.Pod, error) {
	pods, err := b.pods(ctx, l.Workload)
	if err != nil {
		return nil, err
	}
	own := map[types.UID]bool{}
	for _, p := range pods {
		own[p.UID] = true
	}
	var behind []*guard.ServiceFacts
	for svc := range ix.Services() {
		names := func(p guard.Port) bool {
			return slices.ContainsFunc(p.Endpoints, func(e guard.Endpoint) bool { return own[e.Pod] })
		}
		if svc.Key.Namespace == l.Workload.Namespace && svc.External && slices.ContainsFunc(svc.Ports, names) {
			behind = append(behind, svc)
		}
	}
	return guard.LeastMissed(pods, behind, ix), nil
}

// On lists the pods of a Deployment on some nodes.
func (b *Bringer) On(ctx context.Context, key guard.Key, nodes []string) (map[types.UID]bool, error) {
	pods, err := b.pods(ctx, key)
	if err != nil {
		return nil, err
	}
	out := map[types.UID]bool{}
	for _, p := range pods {
		if slices.Contains(nodes, p.Spec.NodeName) {
			out[p.UID] = true
		}
	}
	return out, nil
}

// Words says what was changed: "replicas 1 -> 2", "minReplicas of horizontalpodautoscaler/web 1 -> 3".
func (r *Raised) Words() string {
	from := absent
	if r.Mark.From != nil {
		from = itoa(*r.Mark.From)
	}
	return r.Lever.field() + " " + from + " -> " + itoa(r.Mark.To)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

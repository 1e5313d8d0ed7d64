package hookset

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Bounds of the question who else carries a Service: it costs a call or more for each. More nodes than these are no
// drain, but a survey of the cluster, each node for itself.
const (
	standbyNodes  = 8
	standbyAtOnce = 8
)

// question is one Service that some nodes are to leave.
type question struct {
	key     guard.Key
	hook    lbhooks.Standby
	service *corev1.Service
}

// askOthers asks the balancers that can tell whether somebody healthy carries the Services on some nodes without them,
// before anything is withdrawn. A Service that nobody else carries is asked about again each time, since a replacement may
// have come; any other once. What nobody can tell counts for nothing: the proof asks again.
func (s *Set) askOthers(ctx context.Context, snap *cluster.Snapshot, nodes []string) {
	if len(nodes) == 0 || len(nodes) > standbyNodes {
		return
	}
	var leaving []*corev1.Node
	for _, name := range nodes {
		if n, ok := snap.RawNode(name); ok {
			leaving = append(leaving, n)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(standbyAtOnce)
	for _, q := range s.questions(snap, nodes) {
		group.Go(func() error {
			alone := ""
			if err := q.hook.Others(ctx, q.service, leaving); errors.Is(err, lbhooks.ErrNobodyElse) {
				alone = err.Error()
			}
			s.checks.mu.Lock()
			defer s.checks.mu.Unlock()
			s.checks.alone[q.key] = alone
			return nil
		})
	}
	_ = group.Wait() // no question fails: what it found out is noted
}

// questions lists the Services on the nodes that a hook takes nodes out of and of which it is not known that others carry them.
func (s *Set) questions(snap *cluster.Snapshot, nodes []string) []question {
	var out []question
	seen := map[guard.Key]bool{}
	index := snap.Index(s, nodes)
	for _, node := range nodes {
		for svc := range index.ServicesOn(node) {
			r := &svc.Rotation
			hook, can := s.hooks[r.Hook].(lbhooks.Standby)
			lever := r.Removal == guard.RemovalLabel || r.Removal == guard.RemovalHook
			if !can || !lever || !r.Provable || r.Broken != "" || seen[svc.Key] || s.othersSeen(svc.Key) || r.Seat(node).In == guard.No {
				continue
			}
			if object, ok := snap.RawService(svc.Key); ok {
				seen[svc.Key] = true
				out = append(out, question{svc.Key, hook, object})
			}
		}
	}
	return out
}

func (s *Set) othersSeen(key guard.Key) bool {
	s.checks.mu.Lock()
	defer s.checks.mu.Unlock()
	why, asked := s.checks.alone[key]
	return asked && why == ""
}

// alone adds to a rotation that its balancer would have nobody else to send to.
func (s *Set) alone(r *lbhooks.Rotation, svc *corev1.Service) {
	s.checks.mu.Lock()
	why := s.checks.alone[guard.Key{Namespace: svc.Namespace, Name: svc.Name}]
	s.checks.mu.Unlock()
	if r.Provable && r.Broken == "" {
		r.Alone = why
	}
}

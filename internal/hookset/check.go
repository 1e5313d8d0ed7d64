package hookset

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// checkTime bounds what one hook may take to find out whether it could work.
const checkTime = 15 * time.Second

// checks are the answers of hooks that can tell whether they could work, and whether their balancers could do without
// some nodes.
type checks struct {
	mu      sync.Mutex
	missing map[string][]lbhooks.Missing // by hook; an entry without elements: nothing is missing
	alone   map[guard.Key]string         // by Service: why nobody else would carry it; "" when somebody would
}

// Check asks the hooks that front a Service on the nodes, of all nodes when none is named, and that can tell, whether they
// could work, and of each Service on nodes that are named whether its balancer has somewhere to go without them: Broken
// and Alone in the rotations of these Services say from then on what stands against it. Each hook is asked once; offline none is.
func (s *Set) Check(ctx context.Context, snap *cluster.Snapshot, nodes []string) {
	if !s.live {
		return
	}
	var wg sync.WaitGroup
	for name, targets := range s.fronted(snap, nodes) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, checkTime)
			defer cancel()
			missing := s.hooks[name].(lbhooks.Checker).Check(ctx, targets)
			s.checks.mu.Lock()
			defer s.checks.mu.Unlock()
			s.checks.missing[name] = missing
		})
	}
	wg.Wait()
	s.askOthers(ctx, snap, nodes)
}

// fronted lists, by hook that can be asked and was not yet, the Services that it fronts, each with a node that it may send to.
func (s *Set) fronted(snap *cluster.Snapshot, nodes []string) map[string][]lbhooks.Target {
	out := map[string][]lbhooks.Target{}
	index := snap.Index(s, nodes)
	seen := map[guard.Key]bool{}
	add := func(svc *guard.ServiceFacts) {
		name := svc.Rotation.Hook
		if _, can := s.hooks[name].(lbhooks.Checker); !can || s.wasChecked(name) || !svc.Rotation.Provable || seen[svc.Key] {
			return
		}
		object, ok := snap.RawService(svc.Key)
		if !ok {
			return
		}
		for _, node := range snap.NodeNames() {
			if seat := svc.Rotation.Seat(node); seat.In == guard.No && !seat.Eligible {
				continue
			}
			if n, ok := snap.RawNode(node); ok {
				out[name], seen[svc.Key] = append(out[name], lbhooks.Target{Service: object, Node: n}), true
				return
			}
		}
	}
	if len(nodes) == 0 {
		for svc := range index.Services() {
			add(svc)
		}
		return out
	}
	for _, node := range nodes {
		for svc := range index.ServicesOn(node) {
			add(svc)
		}
	}
	return out
}

func (s *Set) wasChecked(hook string) bool {
	s.checks.mu.Lock()
	defer s.checks.mu.Unlock()
	_, ok := s.checks.missing[hook]
	return ok
}

// Missing returns what a hook said is missing when it was asked by Check; nothing before.
func (s *Set) Missing(hook string) []lbhooks.Missing {
	s.checks.mu.Lock()
	defer s.checks.mu.Unlock()
	return s.checks.missing[hook]
}

// checked adds to a rotation what its hook cannot do without.
func (s *Set) checked(r *lbhooks.Rotation) {
	var lacks []string
	for _, m := range s.Missing(r.Hook) {
		if !m.Optional {
			lacks = append(lacks, m.What)
		}
	}
	if len(lacks) > 0 && r.Provable {
		broken(r, strings.Join(lacks, "; "))
	}
}

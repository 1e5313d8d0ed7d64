package metallb

import (
	"fmt"
	"sync"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// halfSeen is how often in a row a status has to be seen half taken over, unchanged, to be what it will stay.
const halfSeen = 2

// halfTaken knows the L2 statuses that were seen half taken over: a new label and the old content. A speaker that wins an
// address while the loser's object is still there takes that over: the label first; the content is immutable and stays the
// loser's for good. The label is written by a node's own speaker only, so it is that one's word that it announces. The zero
// value is ready.
type halfTaken struct {
	mu   sync.Mutex
	seen map[string]int // by object and version
}

// takenOver makes a proof of the only status of a Service when it stays half taken over from the node.
func (h *halfTaken) takenOver(found []status, node string) (lbhooks.Proof, bool) {
	if len(found) != 1 || found[0].node != node || found[0].labelled == "" || found[0].labelled == node {
		return lbhooks.Proof{}, false
	}
	s := &found[0]
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen == nil {
		h.seen = map[string]int{}
	}
	key := s.namespace + "/" + s.name + "@" + s.version
	h.seen[key]++
	p := lbhooks.Proof{Evidence: fmt.Sprintf("ServiceL2Status %s/%s: %s takes over, its label says; its content names %s still", s.namespace, s.name, s.labelled, node)}
	if h.seen[key] >= halfSeen {
		p.Out, p.By = true, s.labelled
	}
	return p, true
}

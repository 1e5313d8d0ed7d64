package admission

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
)

const (
	// noteEvery is how often the note on one node is written at most, by all replicas together as far as their stores agree.
	noteEvery = time.Minute
	// maxNotes bounds the nodes whose note is due.
	maxNotes = 1024
	// noteWithin bounds the writing of one note.
	noteWithin = 5 * time.Second
)

// NodeNotes writes the annotation safedrain.dev/refused on nodes where evictions are refused: whoever withdraws nodes goes by
// it.
type NodeNotes struct {
	client kubernetes.Interface
	store  *cluster.Store
	clock  clock.PassiveClock
	log    *slog.Logger

	wake chan struct{}
	mu   sync.Mutex
	due  map[string]struct{} // nodes
}

var _ Refusals = (*NodeNotes)(nil)

// NewNodeNotes returns notes that Run writes.
func NewNodeNotes(client kubernetes.Interface, store *cluster.Store, clk clock.PassiveClock, log *slog.Logger) *NodeNotes {
	return &NodeNotes{client: client, store: store, clock: clk, log: log, wake: make(chan struct{}, 1), due: map[string]struct{}{}}
}

// Note says that an eviction on a node was refused. It waits for nobody: with too many notes due this one is left out, and
// the next refusal brings it.
func (n *NodeNotes) Note(node string) {
	n.mu.Lock()
	if len(n.due) < maxNotes {
		n.due[node] = struct{}{}
	}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// take returns the nodes whose note is due, sorted.
func (n *NodeNotes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	nodes := slices.Sorted(maps.Keys(n.due))
	clear(n.due)
	return nodes
}

// Run writes notes until ctx ends. A note that cannot be written is left out: whoever is refused comes again.
func (n *NodeNotes) Run(ctx context.Context) error {
	written := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		for _, node := range n.take() {
			now := n.clock.Now()
			if now.Sub(n.last(node, written)) < noteEvery {
				continue
			}
			if err := n.write(ctx, node, now); err != nil && ctx.Err() == nil {
				n.log.Warn("cannot note a refusal on its node", "node", node, "error", err)
				continue
			}
			written[node] = now
		}
		forget(written, n.clock.Now())
	}
}

// last is when the note on a node was written last, by this replica or, as the store shows, by another one. A time that lies
// ahead is of a clock that is wrong.
func (n *NodeNotes) last(node string, written map[string]time.Time) time.Time {
	last := written[node]
	n.store.Read(func(v *cluster.StoreView) {
		seen, ok := v.RawNode(node)
		if !ok {
			return
		}
		at, err := time.Parse(time.RFC3339, seen.Annotations[claim.AnnotationRefused])
		if err == nil && at.After(last) && !at.After(n.clock.Now()) {
			last = at
		}
	})
	return last
}

// forget drops times that decide nothing any more.
func forget(written map[string]time.Time, now time.Time) {
	for node, at := range written {
		if now.Sub(at) >= noteEvery {
			delete(written, node)
		}
	}
}

func (n *NodeNotes) write(ctx context.Context, node string, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, noteWithin)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{claim.AnnotationRefused: now.UTC().Format(time.RFC3339)},
	}})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: claim.FieldManager})
	return err
}

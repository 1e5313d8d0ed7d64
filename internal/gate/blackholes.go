package gate

import (
	"context"
	"time"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/gate/metrics"
	"github.com/safedrain/safedrain/pkg/guard"
)

const (
	// blackholeEvery is how often the blackholed nodes of Services that changed are counted.
	blackholeEvery = 5 * time.Second
	// recountEvery is how often at most those of all Services are, when nodes or balancers changed.
	recountEvery = 30 * time.Second
)

// blackholes counts the blackholed nodes of every Local Service, in every replica.
type blackholes struct {
	store   *cluster.Store
	synced  func() bool
	metrics *metrics.Metrics

	counts    map[guard.Key]int
	recounted time.Time
	stale     bool // nodes or balancers changed since
}

// Start counts until ctx ends, in every replica: one that was elected a moment ago would show nothing yet.
func (b *blackholes) Start(ctx context.Context) error {
	changes, cancel := b.store.Subscribe()
	defer cancel()
	b.counts, b.stale = map[guard.Key]int{}, true
	tick := time.NewTicker(blackholeEvery)
	defer tick.Stop()
	for {
		if b.synced() {
			b.count(changes.Take(), time.Now())
			b.metrics.Blackholed(b.counts)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// count looks at one Service at a time, so that no review waits for all of them.
func (b *blackholes) count(change cluster.Change, now time.Time) {
	keys := change.Services
	b.stale = b.stale || change.Objects || len(change.Nodes) > 0
	if b.stale && now.Sub(b.recounted) >= recountEvery {
		b.stale, b.recounted = false, now
		b.store.Read(func(v *cluster.StoreView) { keys = append(keys, v.Reached()...) })
	}
	for _, key := range keys {
		b.store.Read(func(v *cluster.StoreView) {
			delete(b.counts, key)
			if svc, ok := v.ReachedService(key); ok {
				b.counts[key] = len(guard.Blackholed(svc, v))
			}
		})
	}
}

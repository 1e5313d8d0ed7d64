package admission

import (
	"context"
	"errors"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// firstReads is how many pods of a node are read at once to begin with; each further round doubles it. Most nodes have
// fewer of one Service, and reading ends with the first keepers that do.
const firstReads = 8

// withCompany reads the pods that the verdict rests on, until it is an allowance or all are read. One that is gone or that
// cannot be read counts as not there.
func (e *Evictions) withCompany(ctx context.Context, live Live, ev guard.Eviction) guard.Eviction {
	var keys []guard.Key
	e.Store.Read(func(v *cluster.StoreView) { keys = guard.Company(ev, v) })
	ev.Others = make(map[types.UID]guard.PodFacts, len(keys))
	for n := firstReads; len(keys) > 0; n *= 2 {
		n = min(n, len(keys))
		maps.Copy(ev.Others, readPods(ctx, live, keys[:n]))
		if keys = keys[n:]; len(keys) == 0 {
			break
		}
		var enough bool
		e.Store.Read(func(v *cluster.StoreView) { enough = guard.JudgeEviction(ev, v).Allow })
		if enough {
			break
		}
	}
	return ev
}

func readPods(ctx context.Context, live Live, keys []guard.Key) map[types.UID]guard.PodFacts {
	found := make(map[types.UID]guard.PodFacts, len(keys))
	var mu sync.Mutex
	var fault *safely.Panic
	var reading sync.WaitGroup
	for _, key := range keys {
		reading.Go(func() {
			var facts guard.PodFacts
			err := safely.Call(func() error {
				pod, err := live.Pod(ctx, key.Namespace, key.Name)
				if err == nil {
					facts = guard.PodFactsOf(pod)
				}
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.As(err, &fault), err != nil: // gone, or not known: nobody counts on it
			default:
				found[facts.UID] = facts
			}
		})
	}
	reading.Wait()
	if fault != nil {
		panic(fault) // as if it had been read here: whoever serves the review answers for it
	}
	return found
}

package gate

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/sweep"
)

// TestEvictCrowdWhileReplicasDie: the rounds of TestEvictCrowd through three processes of the gate that fail closed, of which in each
// round up to two are killed at random moments while all is under way, be it the elected one. What was asked of them is answered
// by 500, and no node loses its last endpoint.
func TestEvictCrowdWhileReplicasDie(t *testing.T) {
	rounds, total, killed := sweep.Size(t, 0, 20), 0, 0
	if rounds == 0 {
		t.Skip("part of make sweep")
	}
	t.Parallel()
	g := install(t, controlplane.New(t, controlplane.Options{}), "gate-killed", 3, "--mode=enforce", "--scale=clamp")
	t.Cleanup(g.uninstall)
	c := newCrowd(&evictScene{Env: g.cluster.Env(t)})
	c.fill()
	g.judges(c.Env)
	g.failClosed()
	codes := map[int]int{}
	for round := range rounds {
		c.fill()
		r := rand.New(rand.NewPCG(uint64(round), 2))
		pods := c.some(r)
		var killing sync.WaitGroup
		victims := g.all()[:1+r.IntN(2)]
		for i, victim := range victims {
			at := time.Duration(r.IntN(700)) * time.Millisecond * time.Duration(i+1)
			killing.Go(func() {
				time.Sleep(at)
				_ = victim.cmd.Process.Kill()
			})
			killed++
		}
		went, answers := c.burst(c.client, pods)
		total += went
		for code, n := range answers {
			codes[code] += n
		}
		killing.Wait()
		c.covered(round)
		for _, victim := range victims {
			<-victim.ended
			g.forget(victim)
			g.add().awaitReady(t)
		}
	}
	for code := range codes {
		switch code {
		case http.StatusCreated, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusNotFound, http.StatusConflict:
		default:
			t.Errorf("answers %v: nothing but 201, 429, 500 and, for a pod that went, 404 or 409 was to be", codes)
		}
	}
	if total < rounds*crowdServices/4 {
		t.Errorf("%d evictions were allowed in all: the test shows little", total)
	}
	t.Logf("%d of %d evictions were allowed in %d rounds in which %d replicas were killed; answers %v", total, rounds*crowdAtOnce, rounds, killed, codes)
}

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestC09TwoAtOnce: two runs on the two nodes of a Service with two endpoints, again and again. One goes on, the other
// undoes its claim and says whom it met.
func TestC09TwoAtOnce(t *testing.T) {
	const scenes, rounds = 4, 3
	var byTicket atomic.Int32
	t.Run("rounds", func(t *testing.T) {
		for i := range scenes {
			t.Run(fmt.Sprint(i), func(t *testing.T) { twoAtOnce(t, rounds, &byTicket) })
		}
	})
	t.Logf("%d of %d losers had claimed their node too and met the winner's ticket", byTicket.Load(), scenes*rounds)
	if least := int32(scenes * (rounds - 1)); byTicket.Load() < least {
		t.Errorf("%d rounds were decided by tickets, want %d or more", byTicket.Load(), least)
	}
}

func twoAtOnce(t *testing.T, rounds int, byTicket *atomic.Int32) {
	t.Helper()
	s := newScene(t, 2)
	s.Service("web")
	s.remember()
	r, direct := s.relay(nil), kubeconfig
	relayed := s.via
	pods := [2]*corev1.Pod{}
	for round := range rounds {
		s.via = relayed
		if round > 0 { // the first round is a race as it comes, in the others both are past their plans
			r.together()
		}
		for i := range pods {
			if pods[i] == nil {
				pods[i] = s.pod("web", fmt.Sprintf("web-%d-%d", i, round), s.nodes[i])
			}
		}
		s.EndpointsReady("web", 2)
		winner, loser := s.race(r, byTicket)
		s.via = direct
		s.gone(pods[winner])
		s.alive(pods[loser])
		s.standsAsBefore(s.nodes[loser])
		s.holds(s.nodes[winner], true, false, true)
		s.back(s.nodes[winner])
		pods[winner] = nil
	}
}

// race starts two runs within a moment and returns which one went on. It evicts when the other one has ended, which so sees
// whose endpoint it would miss, however late it comes.
func (s *scene) race(r *relay, byTicket *atomic.Int32) (winner, loser int) {
	s.Helper()
	const flag = "--accept-unproven=all"
	over := make(chan struct{})
	r.answer = func(string, int) http.HandlerFunc {
		select {
		case <-over:
		case <-s.Context().Done():
		}
		return nil
	}
	first := rand.IntN(2)
	runs := [2]flowRun{}
	runs[first] = s.start(s.nodes[first], "--force", flag)
	<-time.NewTimer(time.Duration(rand.IntN(50)) * time.Millisecond).C
	runs[1-first] = s.start(s.nodes[1-first], "--force", flag)
	var ends [2]flowEnd
	var both sync.WaitGroup
	oneEnded := sync.OnceFunc(func() { close(over) })
	for i := range runs {
		both.Go(func() {
			ends[i] = runs[i].end(s)
			oneEnded()
		})
	}
	both.Wait()
	for winner := range ends {
		loser := 1 - winner
		if ends[winner].code != 0 || ends[loser].code != 3 {
			continue
		}
		ends[loser].want(s, 3, "nothing changed", s.nodes[winner]) // whom it met
		if strings.Contains(ends[loser].stderr, "came first") {
			byTicket.Add(1)
		}
		return winner, loser
	}
	s.Fatalf("exit codes %d and %d, want 0 and 3\n%s\n%s", ends[0].code, ends[1].code, ends[0].stderr, ends[1].stderr)
	return 0, 0
}

package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestC09TwoAtOnce: two runs on the two nodes of a Service with two endpoints, again and again. One goes on, the other
// undoes its claim and says whom it met.
func TestC09TwoAtOnce(t *testing.T) {
	const rounds = 12
	s := newScene(t, 2)
	s.Service("web")
	pods := [2]*corev1.Pod{}
	s.remember()
	wins, met := [2]int{}, 0
	for round := range rounds {
		for i := range pods {
			if pods[i] == nil {
				pods[i] = s.pod("web", fmt.Sprintf("web-%d-%d", i, round), s.nodes[i])
			}
		}
		s.EndpointsReady("web", 2)
		winner, text := s.race(round)
		wins[winner]++
		met += text
		loser := 1 - winner
		s.gone(pods[winner])
		s.alive(pods[loser])
		s.standsAsBefore(s.nodes[loser])
		s.holds(s.nodes[winner], true, false, true)
		s.back(s.nodes[winner])
		pods[winner] = nil
	}
	t.Logf("wins: %v; %d of %d losers met the winner's ticket after their own plan", wins, met, rounds)
	if met == 0 {
		t.Errorf("in none of %d rounds did both runs get past their plans: nothing was decided by tickets", rounds)
	}
}

// race starts two runs within a moment and returns which one went on, and 1 if the other had claimed its node too.
func (s *scene) race(round int) (winner, met int) {
	s.Helper()
	const flag = "--accept-unproven=all"
	first := round % 2
	a := s.start(s.nodes[first], "--force", flag)
	pause := time.NewTimer(time.Duration(rand.IntN(60)) * time.Millisecond)
	<-pause.C
	b := s.start(s.nodes[1-first], "--force", flag)
	ends := [2]flowEnd{}
	ends[first], ends[1-first] = a.end(s), b.end(s)
	for i := range ends {
		if ends[i].code == 0 && ends[1-i].code == 3 {
			return i, s.lost(ends[1-i], s.nodes[i])
		}
	}
	s.Fatalf("round %d: exit codes %d and %d, want 0 and 3\n%s\n%s", round, ends[0].code, ends[1].code, ends[0].stderr, ends[1].stderr)
	return 0, 0
}

// lost checks what the loser of a race says, and returns 1 if it lost by its ticket.
func (s *scene) lost(e flowEnd, other string) int {
	s.Helper()
	e.want(s, 3, other)
	return 1
}

package e2e

import (
	"testing"
	"time"

	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
)

// TestC37Deadline: a node that its balancer never lets go is withdrawn at once, serves until the deadline less the grace
// period and the reserve, and then is emptied all the same; exit code 5 says so.
func TestC37Deadline(t *testing.T) {
	s := newScene(t, 2)
	s.metalLB(s.nodes...)
	n1 := s.nodes[0]
	gw := s.pod("gw", "gw-1", n1, graceOf(2, "1"))
	s.pod("gw", "gw-2", s.nodes[1])
	svc := s.loadBalancer(metallbtest.L2, "gw", localPolicy)
	s.EndpointsReady("gw", 2)
	s.speakers(metallbtest.L2, svc, n1, s.nodes[1])
	s.remember()
	started := time.Now()
	e := s.run(n1, "--ignore-daemonsets", "--force", "--deadline=16s")
	e.want(s, 5, "in time for the deadline")
	s.journal.inOrder("labelled "+n1, "evicted gw-1")
	s.journal.never("left gw " + n1)
	if after := s.journal.get("evicted gw-1").at.Sub(started); after < 3500*time.Millisecond || after > 14*time.Second {
		t.Errorf("evicted after %s: want 16s less a grace period of 2s and a reserve of 10s", after)
	}
	s.gone(gw)
	s.holds(n1, true, true, true)
	s.back(n1)
}

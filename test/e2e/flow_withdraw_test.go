package e2e

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
)

const (
	localPolicy   = corev1.ServiceExternalTrafficPolicyLocal
	clusterPolicy = corev1.ServiceExternalTrafficPolicyCluster
	forever       = time.Hour
)

// behindMetalLB is a Service gw announced from n1, with a pod on n1 and one on n2, and a pod on n1 that no Service needs.
func behindMetalLB(t *testing.T, kind metallbtest.Kind, steps ...lbStep) (s *scene, gw, other *corev1.Pod) {
	t.Helper()
	s = newScene(t, 3)
	s.metalLB(s.nodes...)
	gw = s.pod("gw", "gw-1", s.nodes[0])
	s.pod("gw", "gw-2", s.nodes[1])
	other = s.pod("other", "other-1", s.nodes[0])
	svc := s.loadBalancer(kind, "gw", localPolicy)
	s.EndpointsReady("gw", 2)
	s.speakers(kind, svc, s.nodes[0], s.nodes[1], steps...)
	s.remember()
	return s, gw, other
}

// TestC02NoEvictionBeforeTheProof: withdraw, wait while the balancer still sends, settle, and only then evict.
func TestC02NoEvictionBeforeTheProof(t *testing.T) {
	s, gw, other := behindMetalLB(t, metallbtest.L2, lbStep{1500 * time.Millisecond, hooktest.Moving}, lbStep{time.Second, hooktest.Out})
	n1 := s.nodes[0]
	e := s.run(n1, "--ignore-daemonsets", "--force", "-o", "json")
	e.want(s, 0)
	s.journal.inOrder("cordoned "+n1, "labelled "+n1, "left gw "+n1, "evicted gw-1")
	if settled := s.journal.get("evicted gw-1").at.Sub(s.journal.get("showing gw out").at); settled < 1900*time.Millisecond {
		t.Errorf("evicted %s after the proof, want the settle time of 2s between", settled)
	}
	s.journal.inOrder("evicted other-1", "left gw "+n1) // what no Service needs does not wait
	s.gone(gw, other)
	r := e.report(s)
	if r.Verdict != guard.Withdraw || !slices.ContainsFunc(r.Steps, func(p guard.Step) bool {
		return p.Name == "prove" && p.Service == s.Namespace+"/gw" && p.Outcome == "done" && p.Evidence != ""
	}) {
		t.Errorf("verdict %s, steps %+v: want Withdraw and a proof with its evidence", r.Verdict, r.Steps)
	}
	s.holds(n1, true, true, true)
	s.back(n1)
}

// TestC02StaysATarget: a node that never leaves its balancer is not removed, and no pod of the Service is evicted.
func TestC02StaysATarget(t *testing.T) {
	for name, rollback := range map[string]bool{"state kept": false, "rollback": true} {
		t.Run(name, func(t *testing.T) {
			s, gw, other := behindMetalLB(t, metallbtest.L2)
			n1 := s.nodes[0]
			args := []string{n1, "--ignore-daemonsets", "--force", "--hook-timeout=2s"}
			if rollback {
				args = append(args, "--rollback")
			}
			e := s.run(args...)
			e.want(s, 5, s.Namespace+"/gw is not proven out of metallb-l2", "ServiceL2Status")
			s.alive(gw)
			s.gone(other)
			s.journal.never("evicted gw-1")
			if rollback {
				s.standsAsBefore(n1)
				return
			}
			e.want(s, 5, " --force --ignore-daemonsets --hook-timeout=5m\n", "--accept-unproven="+s.Namespace+"/gw", "safedrain uncordon "+n1)
			s.holds(n1, true, true, true)
			s.back(n1)
		})
	}
}

// TestC13L2 and its BGP sister: the status names n1 for a while after the label; an eviction comes only after the move, and
// that the pod then goes on serving while it terminates has no effect.
func TestC13L2(t *testing.T) {
	s, gw, _ := behindMetalLB(t, metallbtest.L2, lbStep{2 * time.Second, hooktest.Out})
	n1 := s.nodes[0]
	e := s.run(n1, "--ignore-daemonsets", "--force")
	e.want(s, 0, s.nodes[1]+" took over")
	s.journal.inOrder("labelled "+n1, "left gw "+n1, "evicted gw-1")
	s.gone(gw)
	s.back(n1)
}

func TestC13BGP(t *testing.T) {
	s := newScene(t, 2)
	s.metalLB(s.nodes...)
	n1 := s.nodes[0]
	gw := s.pod("gw", "gw-1", n1, graceOf(20, "5"))
	s.pod("gw", "gw-2", s.nodes[1])
	svc := s.loadBalancer(metallbtest.BGP, "gw", localPolicy)
	s.EndpointsReady("gw", 2)
	s.speakers(metallbtest.BGP, svc, n1, s.nodes[1], lbStep{time.Second, hooktest.Lying}, lbStep{1500 * time.Millisecond, hooktest.Out})
	s.remember()
	e := s.run(n1, "--ignore-daemonsets", "--force", "-v=0")
	e.want(s, 0, "FRRNodeState")
	s.journal.inOrder("labelled "+n1, "left gw "+n1, "evicted gw-1", "gone gw-1")
	// The status left first; FRR ran the prefix for 1.5 s more, then the settle time.
	if after := s.journal.get("evicted gw-1").at.Sub(s.journal.get("showing gw lying").at); after < 3*time.Second {
		t.Errorf("evicted %s after the status left: what FRR runs was not waited for", after)
	}
	s.gone(gw)
	s.back(n1)
}

// TestC13NoSpeaker: nobody could take over, so nothing is touched.
func TestC13NoSpeaker(t *testing.T) {
	s := newScene(t, 2)
	n1 := s.nodes[0]
	s.metalLB(n1)
	gw := s.pod("gw", "gw-1", n1)
	s.pod("gw", "gw-2", s.nodes[1])
	svc := s.loadBalancer(metallbtest.L2, "gw", localPolicy)
	s.EndpointsReady("gw", 2)
	s.speakers(metallbtest.L2, svc, n1, s.nodes[1], lbStep{0, hooktest.Nobody})
	s.remember()
	e := s.run(n1, "--ignore-daemonsets", "--force", "-o", "json")
	e.want(s, 3)
	if f, ok := findingCodes(e.report(s))[guard.NoEligibleNode]; !ok || f.Severity != guard.Block {
		t.Errorf("no NoEligibleNode in %s", e.stdout)
	}
	s.alive(gw)
	s.journal.never("labelled "+n1, "cordoned "+n1)
	s.standsAsBefore(n1)
}

// twoAddresses is a Service api of policy Cluster by L2 and a Service web of policy Local by BGP, both announced from n1.
func twoAddresses(t *testing.T, api, web lbStep) (s *scene, pod *corev1.Pod) {
	t.Helper()
	s = newScene(t, 2)
	n1, n2 := s.nodes[0], s.nodes[1]
	s.metalLB(n1, n2)
	s.pod("api", "api-2", n2)
	pod = s.pod("web", "web-1", n1)
	s.pod("web", "web-2", n2)
	apiService := s.loadBalancer(metallbtest.L2, "api", clusterPolicy)
	webService := s.loadBalancer(metallbtest.BGP, "web", localPolicy)
	s.EndpointsReady("api", 1)
	s.EndpointsReady("web", 2)
	s.speakers(metallbtest.L2, apiService, n1, n2, api)
	s.speakers(metallbtest.BGP, webService, n1, n2, web)
	s.remember()
	return s, pod
}

// TestC14EveryAddress: both addresses leave, each with its own proof, before the run is done.
func TestC14EveryAddress(t *testing.T) {
	s, pod := twoAddresses(t, lbStep{time.Second, hooktest.Out}, lbStep{2500 * time.Millisecond, hooktest.Out})
	n1 := s.nodes[0]
	e := s.run(n1, "--ignore-daemonsets", "--force", "-o", "json")
	e.want(s, 0)
	s.journal.inOrder("labelled "+n1, "left api "+n1)
	s.journal.inOrder("labelled "+n1, "left web "+n1, "evicted web-1")
	s.gone(pod)
	r := e.report(s)
	var proven []string
	for _, p := range r.Steps {
		if p.Name == "prove" && p.Outcome == "done" {
			proven = append(proven, p.Service)
		}
	}
	slices.Sort(proven)
	if diff := cmp.Diff([]string{s.Namespace + "/api", s.Namespace + "/web"}, proven); diff != "" {
		t.Errorf("proofs (-want +got):\n%s", diff)
	}
	if len(r.Withdraw) != 1 || r.Withdraw[0].Name != "api" {
		t.Errorf("withdraw: %+v, want api", r.Withdraw)
	}
	s.back(n1)
}

// TestC14OneStays: a run whose node still announces one address is not done, whatever the other one does.
func TestC14OneStays(t *testing.T) {
	s, pod := twoAddresses(t, lbStep{forever, hooktest.Out}, lbStep{time.Second, hooktest.Out})
	n1 := s.nodes[0]
	e := s.run(n1, "--ignore-daemonsets", "--force", "--hook-timeout=10s") // time for web to leave and to settle
	e.want(s, 5, s.Namespace+"/api is not proven out of metallb-l2")
	s.gone(pod) // its own address left, and was proven to
	s.journal.inOrder("left web "+n1, "evicted web-1")
	s.journal.never("left api " + n1)
	s.holds(n1, true, true, true)
	s.back(n1)
}

// TestC21ForeignUncordon: somebody uncordons the node while its proof is awaited, and a new pod lands on it.
func TestC21ForeignUncordon(t *testing.T) {
	s, gw, _ := behindMetalLB(t, metallbtest.L2, lbStep{20 * time.Second, hooktest.Out})
	n1 := s.nodes[0]
	b := s.start(n1, "--ignore-daemonsets", "--force")
	s.labelledNow(n1)
	s.patchNode(n1, `{"spec":{"unschedulable":null}}`, "other-tool")
	landed := s.pod("landed", "landed", n1)
	e := b.end(s)
	// The API records nobody for a field that is removed, which is what an uncordon does.
	e.want(s, 4, "was uncordoned by somebody else", "safedrain uncordon "+n1)
	s.alive(gw, landed)
	s.journal.never("evicted gw-1")
	s.holds(n1, false, true, true)
	s.back(n1)
}

// TestC21ForeignUnlabel: somebody changes the label after the proof, while it settles, and is named.
func TestC21ForeignUnlabel(t *testing.T) {
	s, gw, _ := behindMetalLB(t, metallbtest.L2, lbStep{500 * time.Millisecond, hooktest.Out})
	n1 := s.nodes[0]
	b := s.start(n1, "--ignore-daemonsets", "--force", "--settle=30s")
	s.journal.get("proven " + n1 + " " + s.Namespace + "/gw")
	s.patchNode(n1, `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"false"}}}`, "label-tool")
	e := b.end(s)
	e.want(s, 4, "lost the label", "label-tool")
	s.alive(gw)
	s.journal.never("evicted gw-1")
	s.holds(n1, true, false, true)
	s.run("uncordon", n1).want(s, 0)
	s.former[n1].Labels["node.kubernetes.io/exclude-from-external-load-balancers"] = "false" // theirs by now
	s.standsAsBefore(n1)
}

// TestC21WhileHeld: somebody uncordons the node while a budget holds its last pod: noticed without any phase in between.
func TestC21WhileHeld(t *testing.T) {
	s := heldBack(t, 1)
	n1 := s.nodes[0]
	b := s.start(n1, "--force", "--timeout=60s")
	s.journal.get("cordoned " + n1)
	s.patchNode(n1, `{"spec":{"unschedulable":null}}`, "other-tool")
	patched := time.Now()
	e := b.end(s)
	noticed := time.Since(patched)
	landed := s.pod("landed", "landed", n1)
	e.want(s, 4, "was uncordoned by somebody else")
	t.Logf("noticed after %s", noticed)
	if noticed > claim.RenewEvery*3/4 {
		t.Errorf("noticed after %s: the watch did not tell", noticed)
	}
	s.alive(landed)
	s.journal.never("evicted db-0")
	s.back(n1)
}

// TestC21Signal: a signal while the proof is awaited evicts nothing of the Service; with --rollback all is as before, also
// where the node was cordoned and labelled by somebody else.
func TestC21Signal(t *testing.T) {
	for name, rollback := range map[string]bool{"kept": false, "rollback": true} {
		t.Run(name, func(t *testing.T) {
			s, gw, _ := behindMetalLB(t, metallbtest.L2)
			n1 := s.nodes[0]
			args := []string{n1, "--ignore-daemonsets", "--force"}
			if rollback {
				args = append(args, "--rollback")
			}
			b := s.start(args...)
			s.labelledNow(n1)
			s.journal.get("gone other-1")
			b.signal(s, syscall.SIGTERM)
			e := b.end(s)
			e.want(s, 130, "interrupted after")
			s.alive(gw)
			s.journal.never("evicted gw-1")
			if rollback {
				s.standsAsBefore(n1)
				return
			}
			e.want(s, 130, "continue", "safedrain uncordon "+n1)
			s.holds(n1, true, true, true)
			s.back(n1)
		})
	}
}

// TestC21CordonedBefore: a cordon that was there before stays in every outcome, and so does a label; only a typed uncordon
// uncordons, and it keeps the label.
func TestC21CordonedBefore(t *testing.T) {
	s, gw, _ := behindMetalLB(t, metallbtest.L2)
	n1 := s.nodes[0]
	s.patchNode(n1, `{"spec":{"unschedulable":true},"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"by-hand"}}}`, "hand")
	s.tainted(n1, 1)
	s.remember()
	args := []string{n1, "--ignore-daemonsets", "--force", "--hook-timeout=1500ms"}
	s.run(append(args, "--rollback")...).want(s, 5)
	s.standsAsBefore(n1)
	s.run(args...).want(s, 5)
	s.alive(gw)
	s.run("uncordon", n1).want(s, 0)
	s.former[n1].Spec.Unschedulable, s.former[n1].Spec.Taints = false, nil
	s.standsAsBefore(n1)
}

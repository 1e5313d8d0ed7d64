package guard

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// kept is a pod that is Ready since some minutes; marks as in the annotation.
func kept(name string, minutes int, marks string, change ...func(*KeptPod)) KeptPod {
	p := KeptPod{
		Key: Key{"a", name}, UID: types.UID(name), Usable: true, Addressed: true, Ranked: true,
		ReadySince: modelStart.Add(-time.Duration(minutes) * time.Minute),
	}
	p.Kept, p.Relied = KeeperOf(marks)
	for _, f := range change {
		f(&p)
	}
	return p
}

func cost(value string) func(*KeptPod) { return func(p *KeptPod) { p.Cost = &value } }

func notReady(p *KeptPod) { p.Usable, p.ReadySince = false, time.Time{} }

func portOf(service string, pods ...types.UID) Serving {
	return Serving{Service: service, Pods: pods, Sent: true}
}

// idle is a port on a node that nobody sends to, spare one of a Service that has such nodes.
func idle(s Serving) Serving  { s.Sent, s.Spare = false, true; return s }
func spare(s Serving) Serving { s.Spare = true; return s }

func unranked(p *KeptPod) { p.Ranked = false }

func TestKeepers(t *testing.T) {
	const after = 35 * time.Second
	before := func(d time.Duration, pod types.UID, service string) map[Mark]time.Time {
		return map[Mark]time.Time{{pod, service}: modelStart.Add(-d)}
	}
	tests := map[string]struct {
		serving   []Serving
		pods      []KeptPod
		since     map[Mark]time.Time
		changes   []KeeperChange
		standDown []Key
	}{
		"the elder of two, with a cost": {
			serving: []Serving{portOf("s", "p", "q")}, pods: []KeptPod{kept("p", 1, ""), kept("q", 2, "")},
			changes: []KeeperChange{{Key{"a", "q"}, "q", "s?", CostIsSet}},
		},
		"a cost for one that was marked before its owner adopted it": {
			serving: []Serving{portOf("s", "p", "q")}, pods: []KeptPod{kept("p", 1, "s"), kept("q", 2, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s", CostIsSet}},
		},
		"a single endpoint needs none": {
			serving: []Serving{portOf("s", "p")}, pods: []KeptPod{kept("p", 1, "")},
		},
		"and keeps the one it has": {
			serving: []Serving{portOf("s", "p")}, pods: []KeptPod{kept("p", 1, "s", cost(KeeperCost))},
		},
		"one that does not serve is none": {
			serving: []Serving{portOf("s", "p", "q")}, pods: []KeptPod{kept("p", 1, ""), kept("q", 2, "", notReady)},
		},
		"a keeper stays although another is elder": {
			serving: []Serving{portOf("s", "p", "q")}, pods: []KeptPod{kept("p", 1, "s", cost(KeeperCost)), kept("q", 9, "")},
		},
		"the keeper of one Service is preferred for another": {
			serving: []Serving{portOf("s", "p", "q"), portOf("t", "p", "q")},
			pods:    []KeptPod{kept("p", 1, "s", cost(KeeperCost)), kept("q", 9, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s,t?", CostStays}},
		},
		"one pod for several Services": {
			serving: []Serving{portOf("s", "p", "q"), portOf("t", "q", "r")},
			pods:    []KeptPod{kept("p", 9, ""), kept("q", 1, ""), kept("r", 9, "")},
			changes: []KeeperChange{{Key{"a", "q"}, "q", "s?,t?", CostIsSet}},
		},
		"ports that different pods serve have a keeper each": {
			serving: []Serving{portOf("s", "p", "q"), portOf("s", "r", "t")},
			pods:    []KeptPod{kept("p", 9, ""), kept("q", 1, ""), kept("r", 9, ""), kept("t", 1, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s?", CostIsSet}, {Key{"a", "r"}, "r", "s?", CostIsSet}},
		},
		"a port of its own beside other pods": {
			serving: []Serving{portOf("s", "p", "q"), portOf("s", "r")},
			pods:    []KeptPod{kept("p", 9, ""), kept("q", 1, ""), kept("r", 1, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s?", CostIsSet}, {Key{"a", "r"}, "r", "s?", CostIsSet}},
		},
		"two pods, a port each": {
			serving: []Serving{portOf("s", "p"), portOf("s", "q")}, pods: []KeptPod{kept("p", 9, ""), kept("q", 1, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s?", CostIsSet}, {Key{"a", "q"}, "q", "s?", CostIsSet}},
		},
		"alone, and others where nobody sends": {
			serving: []Serving{spare(portOf("s", "p"))}, pods: []KeptPod{kept("p", 1, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s?", CostIsSet}},
		},
		"alone, where nobody sends": {
			serving: []Serving{idle(portOf("s", "p"))}, pods: []KeptPod{kept("p", 1, "")},
		},
		"alone, and no scale-down chooses by costs": {
			serving: []Serving{spare(portOf("s", "p"))}, pods: []KeptPod{kept("p", 1, "", unranked)},
		},
		"alone, and others set costs": {
			serving: []Serving{spare(portOf("s", "p"))}, pods: []KeptPod{kept("p", 1, "", func(p *KeptPod) { p.OwnerCosts = true })},
		},
		"two, where nobody sends": {
			serving: []Serving{idle(portOf("s", "p", "q"))}, pods: []KeptPod{kept("p", 1, ""), kept("q", 2, "")},
			changes: []KeeperChange{{Key{"a", "q"}, "q", "s?", CostIsIdle}},
		},
		"a balancer sends there now": {
			serving: []Serving{portOf("s", "p", "q")}, pods: []KeptPod{kept("p", 1, "s", cost(IdleCost)), kept("q", 2, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s", CostIsSet}},
		},
		"a balancer sends there no more": {
			serving: []Serving{idle(portOf("s", "p", "q"))}, pods: []KeptPod{kept("p", 1, "s", cost(KeeperCost)), kept("q", 2, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s", CostIsIdle}},
		},
		"adopted after it was marked": {
			serving: []Serving{portOf("s", "p", "q")}, pods: []KeptPod{kept("p", 1, "s"), kept("q", 2, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s", CostIsSet}},
		},
		"young for long enough": {
			serving: []Serving{portOf("s", "p", "q")}, pods: []KeptPod{kept("p", 1, "s?", cost(KeeperCost)), kept("q", 9, "")},
			since: before(after, "p", "s"), changes: []KeeperChange{{Key{"a", "p"}, "p", "s", CostStays}},
		},
		"young, not for long enough": {
			serving: []Serving{portOf("s", "p", "q")}, pods: []KeptPod{kept("p", 1, "s?", cost(KeeperCost)), kept("q", 9, "")},
			since: before(after-time.Second, "p", "s"),
		},
		"the keeper is not Ready: the next one is young, the mark stays": {
			serving: []Serving{portOf("s", "p", "q", "r")},
			pods:    []KeptPod{kept("p", 1, "s", cost(KeeperCost), notReady), kept("q", 9, ""), kept("r", 1, "")},
			changes: []KeeperChange{{Key{"a", "q"}, "q", "s?", CostIsSet}},
		},
		"the next one is relied on: the mark goes, with its cost": {
			serving: []Serving{portOf("s", "p", "q", "r")},
			pods:    []KeptPod{kept("p", 1, "s", cost(KeeperCost), notReady), kept("q", 9, "s", cost(KeeperCost)), kept("r", 9, "")},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "", CostIsTaken}},
		},
		"two are relied on: one is enough": {
			serving: []Serving{portOf("s", "p", "q")},
			pods:    []KeptPod{kept("p", 1, "s", cost(KeeperCost)), kept("q", 9, "s", cost(KeeperCost))},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "", CostIsTaken}},
		},
		"a Service that needs none": {
			pods: []KeptPod{kept("p", 1, "s", cost(KeeperCost))}, since: before(after, "p", "s"),
			changes: []KeeperChange{{Key{"a", "p"}, "p", "", CostIsTaken}},
		},
		"costs of others stay, and come first": {
			serving: []Serving{portOf("s", "p", "q")}, pods: []KeptPod{kept("p", 1, "", cost("7")), kept("q", 2, "", cost("7"))},
			changes: []KeeperChange{{Key{"a", "q"}, "q", "s?", CostStays}}, standDown: []Key{{"a", "q"}},
		},
		"the owner's pods have costs of others": {
			serving: []Serving{portOf("s", "p", "q")},
			pods:    []KeptPod{kept("p", 1, ""), kept("q", 2, "", func(p *KeptPod) { p.OwnerCosts = true })},
			changes: []KeeperChange{{Key{"a", "q"}, "q", "s?", CostStays}}, standDown: []Key{{"a", "q"}},
		},
		"no ReplicaSet, no cost": {
			serving: []Serving{portOf("s", "p", "q")},
			pods:    []KeptPod{kept("p", 1, ""), kept("q", 2, "", func(p *KeptPod) { p.Ranked = false })},
			changes: []KeeperChange{{Key{"a", "q"}, "q", "s?", CostStays}},
		},
		"endpoints that need not be Ready": {
			serving: []Serving{{Service: "s", Pods: []types.UID{"p", "q"}, Unready: true, Sent: true}},
			pods:    []KeptPod{kept("p", 1, "", notReady), kept("q", 2, "", notReady)},
			changes: []KeeperChange{{Key{"a", "p"}, "p", "s?", CostIsSet}},
		},
		"one that is going is not written": {
			serving: []Serving{portOf("s", "p", "q", "r")},
			pods: []KeptPod{
				kept("p", 1, "s", cost(KeeperCost), func(p *KeptPod) { p.Usable, p.Addressed, p.Going = false, false, true }),
				kept("q", 9, "s", cost(KeeperCost)), kept("r", 1, ""),
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			plan := Keepers(&KeeperRequest{Serving: tc.serving, Pods: tc.pods, Since: tc.since, Began: modelStart, Read: modelStart, After: after})
			if diff := cmp.Diff(tc.changes, plan.Changes); diff != "" {
				t.Errorf("changes (-want +got): %s", diff)
			}
			if diff := cmp.Diff(tc.standDown, plan.StandDown); diff != "" {
				t.Errorf("stands down (-want +got): %s", diff)
			}
		})
	}
}

// Who empties a node bars it from its balancer with the same stroke: that the objects say it is out proves nothing yet.
func TestEvictionOfABarredNode(t *testing.T) {
	excluded := "karpenter"
	tests := map[string]struct {
		node, known func(*NodeFacts)
		allow       bool
	}{
		"excluded by somebody": {node: func(n *NodeFacts) { n.Excluded = &excluded }, allow: true},
		"tainted a moment ago": {node: func(n *NodeFacts) { n.Leaving = LeavingDisrupted }},
		"the gate has just begun": {node: func(n *NodeFacts) {
			n.Leaving, n.Claim = LeavingScaleDown, &Claim{Holder: GateHolder, Phase: "granted"}
		}},
		"the gate has noted others":   {node: func(n *NodeFacts) { n.Leaving, n.Claim = LeavingScaleDown, &Claim{Holder: GateHolder, Phase: "proven"} }, allow: true},
		"a drain has begun":           {node: func(n *NodeFacts) { n.Leaving, n.Claim = LeavingScaleDown, &Claim{Holder: "kim", Phase: "granted"} }, allow: true},
		"on its way back":             {node: func(n *NodeFacts) { n.Claim = &Claim{Holder: GateHolder, Phase: "closing"} }},
		"back, and the objects lag":   {known: func(n *NodeFacts) { n.Excluded = &excluded }},
		"never in rotation, at rest":  {allow: true},
		"out of service, not emptied": {node: func(n *NodeFacts) { n.Leaving = LeavingOutOfSvc }, allow: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n", "m")
			live, _ := w.Node("n")
			copied := *live
			if tc.node != nil {
				tc.node(&copied)
			}
			if tc.known != nil {
				w.node("n", tc.known)
			}
			svc := modelService(1)
			svc.Rotation = Rotation{Hook: "h", Removal: RemovalLabel, Seats: map[string]Seat{"n": {In: No, Why: "barred"}}, Rest: Seat{In: Yes, Eligible: true}}
			pod := modelPod{There: true, Ready: true}.facts(0)
			v := JudgeEviction(Eviction{Pod: pod, Node: &copied}, modelIndex{w, svc})
			if v.Allow != tc.allow {
				t.Errorf("%+v", v)
			}
		})
	}
}

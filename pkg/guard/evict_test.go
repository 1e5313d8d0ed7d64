package guard

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var _ EvictionIndex = (*world)(nil)

// ServicesOf lists the Services whose slices name the pod, and those that select it while no slice names it.
func (w *world) ServicesOf(pod types.UID, key Key, labels map[string]string) iter.Seq[*ServiceFacts] {
	return func(yield func(*ServiceFacts) bool) {
		for s := range w.Services() {
			named := slices.ContainsFunc(s.Ports, func(p Port) bool {
				return slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return e.Pod == pod })
			})
			if (named || s.Key.Namespace == key.Namespace && Selects(s.Selector, labels)) && s.Local() && !yield(s) {
				return
			}
		}
	}
}

// eviction builds the eviction of a pod, with everything read live as the world has it.
func (w *world) eviction(pod string) Eviction {
	p, ok := w.Pod(types.UID(pod))
	if !ok {
		panic("no pod " + pod)
	}
	e := Eviction{Pod: PodFactsOf(p), Node: w.nodes[p.Spec.NodeName]}
	e.Others = w.live(Company(e, w))
	return e
}

func (w *world) live(keys []Key) map[types.UID]PodFacts {
	out := map[types.UID]PodFacts{}
	for _, p := range w.pods {
		if f := PodFactsOf(p); slices.Contains(keys, f.Key) {
			out[f.UID] = f
		}
	}
	return out
}

// keeps marks a pod as the keeper of Services.
func keeps(services ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{AnnotationKeeper: strings.Join(services, ",")} }
}

func addressed(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.244.0.9"}} }

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

// underClaim puts a claim on a node as a run leaves it once the node is withdrawn.
func underClaim(phase string, services map[Key]ClaimedService) func(*NodeFacts) {
	return func(n *NodeFacts) {
		excluded := "true"
		n.Cordoned, n.Excluded, n.Leaving = true, &excluded, LeavingClaimed
		n.Claim = &Claim{Run: "other", Phase: phase, Labelled: true, Services: services}
	}
}

// TestEviction has a row for each rule about one eviction, with the reason for the answer in its name. The pod p is on n1.
func TestEviction(t *testing.T) {
	s := Key{"a", "s"}
	at := time.Date(2026, 11, 30, 14, 2, 7, 0, time.UTC)
	since := &at
	cordoned := func(n *NodeFacts) { n.Cordoned = true }
	// two is a Service with two endpoints on n1 and one on n2, behind a balancer that sends to both nodes.
	two := func(pods ...func(*corev1.Pod)) *world {
		return newWorld("n1", "n2").pod("n1", "p", pods...).pod("n1", "k", keeps("s")).pod("n2", "o").
			service("s", announced([]string{"n1", "n2"}), "n1:RS=p", "n1:RS=k", "n2:RS=o")
	}
	one := func(change func(*ServiceFacts)) *world {
		return newWorld("n1", "n2").pod("n1", "p").pod("n2", "o").
			service("s", all(announced([]string{"n1", "n2"}), change), "n1:RS=p", "n2:RS=o")
	}
	tainted := func(n *NodeFacts) { n.Leaving = LeavingScaleDown }
	nothing := func(*ServiceFacts) {}
	for name, tc := range map[string]struct {
		world *world
		want  EvictionReason
		allow bool
	}{
		"terminating":          {one(nothing).change("p", dying), PodPasses, true},
		"finished":             {one(nothing).change("p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), PodPasses, true},
		"not bound":            {one(nothing).change("p", func(p *corev1.Pod) { p.Spec.NodeName = "" }), PodPasses, true},
		"its node is gone":     {one(nothing).without("n1"), NodeGone, true},
		"not Ready":            {one(nothing).change("p", unready), NotAnEndpoint, true},
		"behind no Service":    {newWorld("n1").pod("n1", "p").service("s", nil, "n1:RS=other"), NotAnEndpoint, true},
		"clients inside only":  {one(func(s *ServiceFacts) { s.External, s.Internal = false, true }), NotAnEndpoint, true},
		"not Ready, published": {one(func(s *ServiceFacts) { s.PublishNotReady = true }).change("p", unready).change("p", addressed), OnlyEndpoint, false},

		"the only one on a node in rotation":          {one(nothing), OnlyEndpoint, false},
		"the only one, cordoned":                      {one(nothing).node("n1", cordoned), OnlyEndpoint, false},
		"the last one anywhere":                       {newWorld("n1").pod("n1", "p").service("s", announced([]string{"n1"}), "n1:RS=p"), LastAnywhere, false},
		"others only where the balancer cannot send":  {one(func(s *ServiceFacts) { s.Rotation.Seats["n2"] = Seat{In: No} }), LastAnywhere, false},
		"others only on a node that leaves":           {one(nothing).node("n2", tainted), LastAnywhere, false},
		"others only on a node that is not Ready":     {one(nothing).node("n2", func(n *NodeFacts) { n.Ready = false }), LastAnywhere, false},
		"nothing is known of the balancer":            {one(func(s *ServiceFacts) { s.Rotation = Rotation{Rest: Seat{In: Unknown, Eligible: true}} }), OnlyEndpoint, false},
		"nobody sends":                                {one(func(s *ServiceFacts) { s.Rotation.Nobody = true }), NotInRotation, true},
		"no machine":                                  {one(nothing).node("n1", func(n *NodeFacts) { n.Virtual = true }), NotInRotation, true},
		"not announced, and others are":               {one(func(s *ServiceFacts) { s.Rotation.Seats["n1"] = Seat{In: No, Eligible: true} }), NotInRotation, true},
		"not announced, and it would be the next one": {one(func(s *ServiceFacts) { s.Rotation.Seats["n1"] = Seat{In: No, Eligible: true} }).node("n2", tainted), LastAnywhere, false},
		"not declared":                                {one(func(s *ServiceFacts) { s.Rotation.Seats["n1"] = Seat{In: No} }), NotInRotation, true},

		"another one is kept":                        {two(), KeeperStays, true},
		"another one is kept, cordoned":              {two().node("n1", cordoned), KeeperStays, true},
		"it is the one that is kept":                 {two(keeps("s", "t")), Keeper, false},
		"nobody is kept yet":                         {two().change("k", keeps("t")), NoKeeper, false},
		"another one is kept, not relied on yet":     {two().change("k", keeps("s?")), NoKeeper, false},
		"it is kept, not relied on yet":              {two(keeps("s?")), Keeper, false},
		"the kept one is terminating":                {two().change("k", dying), OnlyEndpoint, false},
		"the kept one is not Ready":                  {two().change("k", unready), OnlyEndpoint, false},
		"the kept one is on another node":            {two().change("k", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }), OnlyEndpoint, false},
		"slices do not show the kept one yet":        {two().endpoints("s", "n1:RS=p", "n1:S=k", "n2:RS=o"), OnlyEndpoint, false},
		"one slice of two says the kept one ends":    {two().endpoints("s", "n1:RS=p", "n1:RS=k", "n1:ST=k", "n2:RS=o"), OnlyEndpoint, false},
		"the kept one is gone":                       {two().endpoints("s", "n1:RS=p", "n1:RS=gone", "n2:RS=o"), OnlyEndpoint, false},
		"another one is kept, slices do not show it": {two(addressed).selects("s").endpoints("s", "n1:RS=k", "n2:RS=o"), KeeperStays, true},
		"no slice shows it yet, and it is alone": {
			newWorld("n1", "n2").pod("n1", "p", addressed).pod("n2", "o").service("s", announced([]string{"n1", "n2"}), "n2:RS=o").selects("s"),
			OnlyEndpoint, false,
		},
		"no slice shows it yet, and the rotation follows them": {
			newWorld("n1", "n2").pod("n1", "p", addressed).pod("n2", "o").service("s", announced([]string{"n2"}, "n1"), "n2:RS=o").selects("s"),
			OnlyEndpoint, false,
		},
		"held, and the rotation follows": {one(checked).endpoints("s", "n1:ST=p", "n2:RS=o").seat("s", "n1", Seat{In: No, Eligible: true}), OnlyEndpoint, false},

		"tainted, not claimed":                         {two().node("n1", tainted), NodeLeaving, false},
		"tainted, not claimed, the last anywhere":      {one(nothing).node("n1", tainted).node("n2", tainted), LastAnywhere, false},
		"tainted, and barred":                          {two().node("n1", tainted).seat("s", "n1", Seat{In: No}), NodeLeaving, false},
		"tainted, and could enter only":                {two().node("n1", tainted).seat("s", "n1", Seat{In: No, Eligible: true}), NotInRotation, true},
		"claimed, the claim does not name the Service": {two().node("n1", underClaim("granted", nil)), KeeperStays, true},
		"the same, alone":                              {one(nothing).node("n1", underClaim("granted", nil)), OnlyEndpoint, false},
		"claimed, not released":                        {two().node("n1", underClaim("withdrawn", map[Key]ClaimedService{s: {Since: since}})), NodeLeaving, false},
		"claimed and proven, not settled":              {two().node("n1", underClaim("withdrawn", map[Key]ClaimedService{s: {Since: since, ProofAt: since}})), NodeLeaving, false},
		"not released, though objects show it out":     {two().node("n1", underClaim("withdrawn", map[Key]ClaimedService{s: {Since: since}})).seat("s", "n1", Seat{In: No}), NodeLeaving, false},
		"released":                                  {one(nothing).node("n1", underClaim("withdrawn", map[Key]ClaimedService{s: {Released: true}})), Released, true},
		"released, the one that is kept":            {two(keeps("s")).node("n1", underClaim("proven", map[Key]ClaimedService{s: {Released: true}})), Released, true},
		"released, and tainted":                     {one(nothing).node("n1", underClaim("proven", map[Key]ClaimedService{s: {Released: true}})).node("n1", tainted), Released, true},
		"released, and on the way back":             {one(nothing).node("n1", underClaim("closing", map[Key]ClaimedService{s: {Released: true}})), OnlyEndpoint, false},
		"on the way back, another one is kept":      {two().node("n1", underClaim("closing", map[Key]ClaimedService{s: {Released: true}})), KeeperStays, true},
		"released, but somebody took the label off": {one(nothing).node("n1", underClaim("proven", map[Key]ClaimedService{s: {Released: true}})).node("n1", func(n *NodeFacts) { n.Excluded = nil }), OnlyEndpoint, false},
		"released, but somebody uncordoned it":      {one(nothing).node("n1", underClaim("proven", map[Key]ClaimedService{s: {Released: true}})).node("n1", func(n *NodeFacts) { n.Cordoned = false }), OnlyEndpoint, false},
		"the run ended without a proof":             {one(nothing).node("n1", underClaim("withdrawn", map[Key]ClaimedService{s: {Since: since}})).node("n1", func(n *NodeFacts) { n.Claim.Ended = true }), NotProven, false},
		"the same, the last anywhere":               {one(nothing).node("n2", tainted).node("n1", underClaim("withdrawn", map[Key]ClaimedService{s: {Since: since}})).node("n1", func(n *NodeFacts) { n.Claim.Ended = true }), LastAnywhere, false},
		"a claim that nobody can read":              {one(nothing).node("n1", func(n *NodeFacts) { n.Cordoned, n.Leaving, n.Claim = true, LeavingClaimed, &Claim{} }), OnlyEndpoint, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := JudgeEviction(tc.world.eviction("p"), tc.world)
			if v.Allow != tc.allow || v.Reason != tc.want {
				t.Errorf("allow %t, %s; want %t, %s: %+v", v.Allow, v.Reason, tc.allow, tc.want, v.Blocks)
			}
			if (len(v.Blocks) == 0) != tc.allow {
				t.Errorf("%d blocks", len(v.Blocks))
			}
		})
	}
}

// change changes a pod.
func (w *world) change(pod string, change func(*corev1.Pod)) *world {
	p, _ := w.Pod(types.UID(pod))
	change(p)
	return w
}

func (w *world) without(node string) *world {
	delete(w.nodes, node)
	return w
}

// endpoints replaces the endpoints of a Service.
func (w *world) endpoints(service string, endpoints ...string) *world {
	p := &w.services[Key{"a", service}].Ports[0]
	p.Endpoints = nil
	for i, e := range endpoints {
		p.Endpoints = append(p.Endpoints, parseEndpoint(e, i))
	}
	return w
}

// selects makes a Service select the pod p.
func (w *world) selects(service string) *world {
	w.services[Key{"a", service}].Selector = map[string]string{"app": "p"}
	return w
}

func (w *world) rotation(service string, change func(*Rotation)) *world {
	change(&w.services[Key{"a", service}].Rotation)
	return w
}

func (w *world) seat(service, node string, seat Seat) *world {
	return w.rotation(service, func(r *Rotation) { r.Seats[node] = seat })
}

// TestEvictionPorts: another pod keeps a node only for the ports and families that it serves.
func TestEvictionPorts(t *testing.T) {
	w := newWorld("n1", "n2").pod("n1", "p").pod("n1", "k", keeps("s")).pod("n1", "m").pod("n2", "o").
		service("s", announced([]string{"n1", "n2"}), "n1:RS=p", "n1:RS=k", "n2:RS=o")
	svc := w.services[Key{"a", "s"}]
	second := func(family corev1.IPFamily, endpoints ...string) {
		svc.Ports = svc.Ports[:1]
		p := Port{Name: "metrics", Protocol: corev1.ProtocolTCP, Family: family}
		for i, e := range endpoints {
			p.Endpoints = append(p.Endpoints, parseEndpoint(e, i))
		}
		svc.Ports = append(svc.Ports, p)
	}
	for name, tc := range map[string]struct {
		family    corev1.IPFamily
		endpoints []string
		want      EvictionReason
	}{
		"the keeper serves both":             {corev1.IPv4Protocol, []string{"n1:RS=p", "n1:RS=k", "n2:RS=o"}, KeeperStays},
		"the keeper lacks a port":            {corev1.IPv4Protocol, []string{"n1:RS=p", "n2:RS=o"}, OnlyEndpoint},
		"the keeper lacks a family":          {corev1.IPv6Protocol, []string{"n1:RS=p", "n2:RS=o"}, OnlyEndpoint},
		"one that is not kept has it":        {corev1.IPv4Protocol, []string{"n1:RS=p", "n1:RS=m", "n2:RS=o"}, NoKeeper},
		"the keeper has one more than it":    {corev1.IPv4Protocol, []string{"n1:RS=k", "n2:RS=o"}, KeeperStays},
		"the keeper does not serve it Ready": {corev1.IPv4Protocol, []string{"n1:RS=p", "n1:ST=k", "n2:RS=o"}, OnlyEndpoint},
	} {
		t.Run(name, func(t *testing.T) {
			second(tc.family, tc.endpoints...)
			if v := JudgeEviction(w.eviction("p"), w); v.Reason != tc.want {
				t.Errorf("%s, want %s", v.Reason, tc.want)
			}
		})
	}
}

// TestEvictionServices: each Service of a pod is judged, and those that stand against it come sorted, each with its parts.
func TestEvictionServices(t *testing.T) {
	w := newWorld("n1", "n2").pod("n1", "p").pod("n2", "o")
	for _, name := range []string{"z", "b", "c"} {
		w.service(name, announced([]string{"n1", "n2"}), "n1:RS=p", "n2:RS=o")
	}
	w.services[Key{"a", "c"}].Rotation.Nobody = true
	w.services[Key{"a", "z"}].Gate = "warn"
	v := JudgeEviction(w.eviction("p"), w)
	want := []EvictionBlock{
		{Service: Key{"a", "b"}, Reason: OnlyEndpoint, Node: "n1", Rotation: Yes, Hook: "test"},
		{Service: Key{"a", "z"}, Reason: OnlyEndpoint, Node: "n1", Rotation: Yes, Hook: "test", Gate: "warn"},
	}
	if diff := cmp.Diff(want, v.Blocks); diff != "" || v.Allow {
		t.Errorf("allow %t, blocks (-want +got):\n%s", v.Allow, diff)
	}
}

func TestPodFacts(t *testing.T) {
	w := newWorld("n1").pod("n1", "p", keeps(" z, b?,,z"), func(p *corev1.Pod) {
		p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}, {IP: "::ffff:10.0.0.2"}, {IP: "x"}}
	})
	got := PodFactsOf(w.pods[0])
	want := PodFacts{
		Key: Key{"a", "p"}, UID: "p", Node: "n1", Ready: true, Keeper: []string{"b", "z"}, Relied: []string{"z"},
		Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, Labels: map[string]string{"app": "p"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// randomEvictions draws Services of two ports whose endpoints are pods in any state, with any marks, beside claims in any
// state on their nodes.
func randomEvictions(t *rapid.T) *world {
	nodes := []string{"n1", "n2"}
	w := newWorld(nodes...)
	services := []string{"s0", "s1"}
	for _, name := range services {
		w.service(name, randomRotation(t, nodes))
		svc := w.services[Key{"a", name}]
		svc.Ports = append(svc.Ports, Port{Name: "metrics", Protocol: corev1.ProtocolTCP, Family: corev1.IPv4Protocol})
	}
	for i := range rapid.IntRange(1, 7).Draw(t, "pods") {
		pod := fmt.Sprintf("p%d", i)
		marks := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"s0", "s1", "s0?", "s1?"}), rapid.ID[string]).Draw(t, "marks")
		node := rapid.SampledFrom([]string{"n1", "n1", "n2"}).Draw(t, "node")
		w.pod(node, pod, keeps(marks...), addressed, rapid.SampledFrom([]func(*corev1.Pod){
			addressed, addressed, addressed, unready, dying,
		}).Draw(t, "state"))
		for _, name := range services {
			for k := range 2 {
				flags := rapid.SampledFrom([]string{"RS", "RS", "RS", "", "ST", "-"}).Draw(t, "endpoint")
				if flags != "-" {
					p := &w.services[Key{"a", name}].Ports[k]
					p.Endpoints = append(p.Endpoints, parseEndpoint(node+":"+flags+"="+pod, i))
				}
			}
		}
	}
	for _, n := range nodes {
		w.node(n, func(f *NodeFacts) {
			f.Leaving = rapid.SampledFrom([]Leaving{Stays, Stays, LeavingScaleDown}).Draw(t, "leaving")
			if rapid.IntRange(0, 2).Draw(t, "claimed") == 0 {
				underClaim(rapid.SampledFrom([]string{"granted", "withdrawn", "proven", "closing"}).Draw(t, "phase"), map[Key]ClaimedService{
					{"a", "s0"}: {Released: rapid.Bool().Draw(t, "released")},
				})(f)
			}
		})
	}
	return w
}

// TestEvictionProperties: of any world, everything that is allowed at one moment may be carried out at once without leaving
// a node in rotation with nothing of a port that it served; and the pods of Company are all that a verdict rests on.
func TestEvictionProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := randomEvictions(t)
		var everyone []Key
		for _, p := range w.pods {
			everyone = append(everyone, Key{p.Namespace, p.Name})
		}
		gone := map[types.UID]bool{}
		for _, p := range w.pods {
			e := w.eviction(p.Name)
			v := JudgeEviction(e, w)
			gone[p.UID] = v.Allow
			e.Others = w.live(everyone)
			if again := JudgeEviction(e, w); !cmp.Equal(again, v) {
				t.Fatalf("%s: with every pod of the cluster at hand %+v, with its company %+v", p.Name, again, v)
			}
		}
		for svc := range w.Services() {
			for _, node := range w.nodes {
				checkKept(t, w, svc, node, gone)
			}
		}
	})
}

// checkKept fails when a node in rotation, not released for the Service, served a port by pods that serve in truth, and all
// of those may go.
func checkKept(t *rapid.T, w *world, svc *ServiceFacts, node *NodeFacts, gone map[types.UID]bool) {
	released := node.Claim.inForce(node) && node.Claim.Services[svc.Key].Released
	if !svc.External || svc.Rotation.Nobody || released || svc.Rotation.Seat(node.Name).In == No {
		return
	}
	for i := range svc.Ports {
		serving, left := map[types.UID]bool{}, false
		for _, e := range svc.Ports[i].Endpoints {
			pod, _ := w.Pod(e.Pod)
			facts := PodFactsOf(pod)
			if e.Node == node.Name && e.stays() && facts.serves(svc) {
				serving[e.Pod] = true
				left = left || !gone[e.Pod]
			}
		}
		if len(serving) > 0 && !left {
			t.Fatalf("%s port %s on %s: all of %v may go at once", svc.Key, svc.Ports[i].Name, node.Name, slices.Sorted(maps.Keys(serving)))
		}
	}
}

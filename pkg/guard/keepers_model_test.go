package guard

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// The model is one node in rotation with some pods of one Service. Evictions are reviewed by replicas whose slices lag, read
// live pod by pod, the target's before or after the others, and are carried out later; the controller reads pod by pod, plans, and patches pod by pod; pods crash.
// With two pods every order of these steps is tried, but for the controller's reads, which are one step there; with three
// pods many random ones. A tick is the time that an eviction takes at most from its review on.

const (
	modelPods = 3
	reviewFor = 1 // ticks that an eviction takes at most
	crashes   = 2 // one that goes and comes back
)

// modelPod is a pod as the API has it.
type modelPod struct {
	There, Ready bool
	Mark         modelMark
}

type modelMark int8

const (
	unmarked modelMark = iota
	young
	relied
)

// modelEviction is an eviction under way: its target, the replica that reviews it, and what was read so far.
type modelEviction struct {
	Stage   int8 // 0: to come; 1: the pod was read; 2..: others were read; allowed
	Target  int8
	Age     int8
	Last    bool // the target is read last
	Crashed bool // a pod crashed since its review began
	Read    [modelPods]modelPod
}

const (
	evictionReads   = 1
	evictionAllowed = 10
)

// modelController is the elected controller: what it read so far, the patches it still has to write, and for how long marks
// have been as they are.
type modelController struct {
	Reading int8 // how many pods were read; -1: it is at rest or writes
	Began   int8 // ticks since the reading began
	Listed  uint8
	Read    [modelPods]modelPod
	Writes  [modelPods]bool
	Mark    [modelPods]modelMark // to write
	Since   [modelPods]int8      // ticks; -1: nothing that time will change
}

type modelState struct {
	Pods      [modelPods]modelPod
	Listed    [2]uint8 // the pods in the slices that each replica has seen
	Evictions [2]modelEviction
	Control   modelController
	Crashes   int8
}

// model explores.
type model struct {
	after   int8
	pods    int
	atOnce  bool // the controller reads all pods in one step
	seen    map[modelState]bool
	queue   []modelState
	nodes   *world
	allowed int // evictions that were carried out
	verdict map[modelReview]bool
	plans   map[modelController]modelController
	rests   map[modelController]error
}

// modelReview is what a review rests on.
type modelReview struct {
	target int8
	listed uint8
	read   [modelPods]modelPod
}

func newModel(after int8, pods int) *model {
	return &model{
		after: after, pods: pods, seen: map[modelState]bool{}, nodes: newWorld("n", "m"), verdict: map[modelReview]bool{},
		plans: map[modelController]modelController{}, rests: map[modelController]error{},
	}
}

func (m *model) allows(e *modelEviction, listed uint8) bool {
	key := modelReview{e.Target, listed, e.Read}
	v, ok := m.verdict[key]
	if !ok {
		v = e.allows(m.nodes, listed)
		m.verdict[key] = v
	}
	return v
}

var modelStart = time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC)

func modelUID(i int) types.UID { return types.UID(rune('a' + i)) }

// service is the Service as a replica has seen it.
func modelService(listed uint8) *ServiceFacts {
	port := Port{Protocol: corev1.ProtocolTCP, Family: corev1.IPv4Protocol}
	for i := range modelPods {
		if listed&(1<<i) != 0 {
			port.Endpoints = append(port.Endpoints, Endpoint{
				Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Port: 80, Node: "n", Pod: modelUID(i),
				PodKey: Key{"a", string(modelUID(i))}, Ready: true, Serving: true,
			})
		}
	}
	port.Endpoints = append(port.Endpoints, Endpoint{Addr: netip.MustParseAddr("10.0.1.1"), Port: 80, Node: "m", Ready: true, Serving: true})
	return &ServiceFacts{
		Key: Key{"a", "s"}, External: true, Type: corev1.ServiceTypeNodePort, Ports: []Port{port},
		Rotation: Rotation{Rest: Seat{In: Yes, Eligible: true}},
	}
}

// modelIndex is what a replica knows.
type modelIndex struct {
	*world
	svc *ServiceFacts
}

func (ix modelIndex) ServicesOf(types.UID, Key, map[string]string) iter.Seq[*ServiceFacts] {
	return slices.Values([]*ServiceFacts{ix.svc})
}

func (p modelPod) facts(i int) PodFacts {
	f := PodFacts{
		Key: Key{"a", string(modelUID(i))}, UID: modelUID(i), Node: "n", Ready: p.Ready, Families: []corev1.IPFamily{corev1.IPv4Protocol},
	}
	if p.Mark != unmarked {
		f.Keeper = []string{"s"}
	}
	if p.Mark == relied {
		f.Relied = f.Keeper
	}
	return f
}

// allows is the rule of the gate on what a review read.
func (e *modelEviction) allows(nodes *world, listed uint8) bool {
	others := map[types.UID]PodFacts{}
	for i, p := range e.Read {
		if i != int(e.Target) && p.There {
			others[modelUID(i)] = p.facts(i)
		}
	}
	node, _ := nodes.Node("n")
	ev := Eviction{Pod: e.Read[e.Target].facts(int(e.Target)), Node: node, Others: others}
	return JudgeEviction(ev, modelIndex{nodes, modelService(listed)}).Allow
}

// plan is the decision of the controller on what it read.
func (c *modelController) plan(after int8) (p modelController) {
	tick := func(n int8) time.Duration { return time.Duration(n) * time.Second }
	r := KeeperRequest{
		Since: map[Mark]time.Time{}, Began: modelStart.Add(-tick(c.Began)), Read: modelStart, After: tick(after),
	}
	s := Serving{Service: "s"}
	for i, p := range c.Read {
		if !p.There {
			continue
		}
		k := KeptPod{Key: Key{"a", string(modelUID(i))}, UID: modelUID(i), Usable: p.Ready, ReadySince: modelStart.Add(tick(int8(i)))}
		facts := p.facts(i)
		k.Kept, k.Relied = facts.Keeper, facts.Relied
		if c.Listed&(1<<i) != 0 {
			s.Pods = append(s.Pods, k.UID)
		}
		if c.Since[i] >= 0 {
			r.Since[Mark{k.UID, "s"}] = modelStart.Add(-tick(c.Since[i]))
		}
		r.Pods = append(r.Pods, k)
	}
	r.Serving = []Serving{s}
	plan := Keepers(&r)
	p = *c
	p.Writes, p.Mark = [modelPods]bool{}, [modelPods]modelMark{}
	for i := range modelPods {
		p.Since[i] = -1
		if since, ok := plan.Since[Mark{modelUID(i), "s"}]; ok {
			p.Since[i] = int8(modelStart.Sub(since) / time.Second)
		}
		for _, change := range plan.Changes {
			if change.UID == modelUID(i) {
				p.Writes[i] = true
				p.Mark[i] = map[string]modelMark{"": unmarked, "s?": young, "s": relied}[change.Value]
			}
		}
	}
	return p
}

func (s *modelState) live() (listed uint8) {
	for i, p := range s.Pods {
		if p.There && p.Ready {
			listed |= 1 << i
		}
	}
	return listed
}

func (s *modelState) there() (n int) {
	for _, p := range s.Pods {
		if p.There {
			n++
		}
	}
	return n
}

// visit remembers a state that is new.
func (m *model) visit(s modelState) {
	if !m.seen[s] {
		m.seen[s] = true
		m.queue = append(m.queue, s)
	}
}

// steps visits every state that one step leads to, and returns what is wrong with one of them.
func (m *model) steps(s modelState) error {
	for e := range s.Evictions {
		if err := m.evict(s, e); err != nil {
			return err
		}
	}
	m.control(s)
	m.others(s)
	return nil
}

// plan is the controller with its decision.
func (m *model) plan(c modelController) modelController {
	planned, ok := m.plans[c]
	if !ok {
		planned = c.plan(m.after)
		m.plans[c] = planned
	}
	return planned
}

// evict takes the next step of an eviction.
func (m *model) evict(s modelState, n int) error {
	e := &s.Evictions[n]
	switch {
	case e.Stage == 0:
		for target := range int8(m.pods) {
			next := s
			p := next.Pods[target]
			if !p.There || !p.Ready {
				continue // the gate has nothing against it
			}
			ev := &next.Evictions[n]
			*ev = modelEviction{Stage: evictionReads, Target: target}
			ev.Read[target] = p
			m.visit(next)
			*ev = modelEviction{Stage: evictionReads, Target: target, Last: true}
			m.visit(next)
		}
	case e.Stage < int8(evictionReads+m.pods):
		i := int(e.Stage - evictionReads)
		if i != int(e.Target) {
			e.Read[i] = s.Pods[i]
		}
		e.Stage++
		if e.Stage == int8(evictionReads+m.pods) {
			if e.Last {
				e.Read[e.Target] = s.Pods[e.Target]
			}
			serves := e.Read[e.Target].There && e.Read[e.Target].Ready // else the gate has nothing against it
			if !serves || !m.allows(e, s.Listed[n]) {
				*e = modelEviction{} // it is tried again
			} else {
				*e = modelEviction{Stage: evictionAllowed, Target: e.Target, Age: e.Age, Crashed: e.Crashed}
			}
		}
		m.visit(s)
	case e.Stage == evictionAllowed:
		was := s.Pods[e.Target].There
		s.Pods[e.Target] = modelPod{}
		crashed := e.Crashed
		*e = modelEviction{}
		if was {
			m.allowed++
			// A crash since the review may have taken the one that was to stay; two evictions never may.
			if s.live() == 0 && (!crashed || s.there() == 0) {
				return fmt.Errorf("an eviction that was allowed left nothing on the node: %+v", s)
			}
		}
		m.visit(s)
	}
	return nil
}

// control takes the next step of the controller.
func (m *model) control(s modelState) {
	c := &s.Control
	if c.Reading >= 0 {
		for again := true; again; again = m.atOnce && int(c.Reading) < m.pods {
			c.Read[c.Reading] = s.Pods[c.Reading]
			c.Reading++
		}
		if int(c.Reading) == m.pods {
			*c = m.plan(*c)
			c.Reading, c.Began, c.Listed = -1, 0, 0
			for i := range c.Read {
				if !c.Writes[i] {
					c.Read[i] = modelPod{}
				}
			}
		}
		m.visit(s)
		return
	}
	writes := false
	for i := range modelPods {
		if !c.Writes[i] {
			continue
		}
		writes = true
		next := s
		if next.Pods[i] == c.Read[i] && next.Pods[i].There { // else a conflict: it changed since it was read
			next.Pods[i].Mark = c.Mark[i]
		}
		next.Control.Writes[i], next.Control.Mark[i], next.Control.Read[i] = false, unmarked, modelPod{}
		m.visit(next)
	}
	if !writes {
		c.Reading, c.Listed = 0, s.Listed[0]
		m.visit(s)
	}
}

// others lets time pass, slices arrive, and pods crash or come back.
func (m *model) others(s modelState) {
	for r := range s.Listed {
		next := s
		next.Listed[r] = s.live()
		m.visit(next)
	}
	if s.Crashes < crashes {
		for i := range s.Pods {
			if !s.Pods[i].There {
				continue
			}
			next := s
			next.Pods[i].Ready = !next.Pods[i].Ready
			next.Crashes++
			for e := range next.Evictions {
				next.Evictions[e].Crashed = next.Evictions[e].Stage != 0
			}
			m.visit(next)
		}
	}
	next := s
	for e := range next.Evictions {
		ev := &next.Evictions[e]
		if ev.Stage == 0 {
			continue
		}
		if ev.Age++; ev.Age > reviewFor {
			*ev = modelEviction{} // the API server gave it up
		}
	}
	if next.Control.Reading >= 0 {
		next.Control.Began = min(next.Control.Began+1, m.after+1)
	}
	for i := range next.Control.Since {
		if next.Control.Since[i] >= 0 {
			next.Control.Since[i] = min(next.Control.Since[i]+1, m.after+1)
		}
	}
	m.visit(next)
}

// start is where a model begins.
func (m *model) start(pods []modelPod) modelState {
	s := modelState{Control: modelController{Reading: -1, Since: [modelPods]int8{-1, -1, -1}}}
	copy(s.Pods[:], pods)
	s.Listed[0], s.Listed[1] = s.live(), s.live()
	return s
}

// explore tries every order and returns the first thing that is wrong.
func (m *model) explore(from modelState) error {
	m.visit(from)
	for len(m.queue) > 0 {
		s := m.queue[0]
		m.queue = m.queue[1:]
		if err := m.check(s); err != nil {
			return err
		}
	}
	return nil
}

// check takes every step of a state and lets it come to rest.
func (m *model) check(s modelState) error {
	if err := m.steps(s); err != nil {
		return err
	}
	return freed(s, m)
}

// freed lets a state come to rest, with slices that arrive and a controller that goes on, and fails if then no pod of two or
// more may be evicted, or more than one is kept.
func freed(s modelState, m *model) error {
	idle := [2]modelEviction{}
	if s.Control.Reading >= 0 || s.Control.Writes != [modelPods]bool{} || s.Evictions != idle {
		return nil // what follows from it is visited
	}
	c := modelController{Read: s.Pods, Listed: s.live(), Since: s.Control.Since}
	known, ok := m.rests[c]
	if !ok {
		known = comesToRest(s, c, m)
		m.rests[c] = known
	}
	return known
}

func comesToRest(s modelState, c modelController, m *model) error {
	for range 6 {
		c.Read, c.Listed, c.Began = s.Pods, s.live(), 0
		c.Writes, c.Mark = [modelPods]bool{}, [modelPods]modelMark{}
		c = m.plan(c)
		for i := range c.Writes {
			if c.Writes[i] {
				s.Pods[i].Mark = c.Mark[i]
			}
			if c.Since[i] >= 0 {
				c.Since[i] = m.after + 1
			}
		}
	}
	usable, marked, free := 0, 0, 0
	for i, p := range s.Pods {
		if !p.There || !p.Ready {
			continue
		}
		usable++
		if p.Mark != unmarked {
			marked++
		}
		e := modelEviction{Target: int8(i), Read: s.Pods}
		if m.allows(&e, s.live()) {
			free++
		}
	}
	if usable >= 2 && (marked != 1 || free != usable-1) {
		return fmt.Errorf("at rest, of %d pods %d are kept and %d may go: %+v", usable, marked, free, s)
	}
	return nil
}

func TestKeepersInEveryOrder(t *testing.T) {
	starts := map[string][]modelPod{
		"two pods":               {{true, true, unmarked}, {true, true, unmarked}},
		"one is kept, one comes": {{true, true, relied}, {true, false, unmarked}},
	}
	for name, pods := range starts {
		t.Run(name, func(t *testing.T) {
			m := newModel(reviewFor+1, len(pods))
			m.atOnce = true
			from := m.start(pods)
			from.Crashes = crashes - 1
			err := m.explore(from)
			t.Logf("%d states, %d evictions", len(m.seen), m.allowed)
			if err != nil {
				t.Error(err)
			}
			if m.allowed == 0 {
				t.Error("nothing was ever evicted: the model shows nothing")
			}
		})
	}
}

// inFlight is where the time matters that marks stay: an eviction was let go for the sake of a keeper that is not Ready any
// more and comes back. The next keeper is the very pod that is about to go.
func (m *model) inFlight() modelState {
	s := m.start([]modelPod{{true, false, relied}, {true, true, unmarked}, {true, true, unmarked}})
	s.Evictions[0] = modelEviction{Stage: evictionAllowed, Target: 1, Crashed: true}
	s.Crashes = crashes - 1
	return s
}

func TestKeepersInRandomOrders(t *testing.T) {
	allowed := 0
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(reviewFor+1, modelPods)
		s := m.inFlight()
		if rapid.Bool().Draw(rt, "at rest before") {
			var pods []modelPod
			for range modelPods {
				pods = append(pods, modelPod{true, rapid.IntRange(0, 3).Draw(rt, "ready") > 0, modelMark(rapid.IntRange(0, 2).Draw(rt, "mark"))})
			}
			s = m.start(pods)
		}
		for range 80 {
			m.queue, m.seen = nil, map[modelState]bool{}
			if err := m.check(s); err != nil {
				rt.Fatal(err)
			}
			if len(m.queue) == 0 {
				break
			}
			s = m.queue[rapid.IntRange(0, len(m.queue)-1).Draw(rt, "next")]
		}
		allowed += m.allowed
	})
	if allowed == 0 {
		t.Error("nothing was ever evicted: the model shows nothing")
	}
}

// A mark on a pod that is about to go must not be relied on before it has gone: with no time in between the model finds the
// node without an endpoint, in the same order of steps in which nothing goes wrong with it.
func TestModelFindsMarksReliedOnTooEarly(t *testing.T) {
	for after, wrong := range map[int8]bool{0: true, reviewFor + 1: false} {
		m := newModel(after, modelPods)
		m.atOnce = true
		s := m.inFlight()
		take := func(step func(modelState), pick func(modelState) bool) {
			m.queue, m.seen = nil, map[modelState]bool{}
			step(s)
			s = m.queue[slices.IndexFunc(m.queue, pick)]
		}
		any := func(modelState) bool { return true }
		for range 9 { // the controller looks three times and writes what it has to
			take(m.control, any)
		}
		var err error
		evict := func(n int) func(modelState) {
			return func(s modelState) { err = errors.Join(err, m.evict(s, n)) }
		}
		take(evict(1), func(s modelState) bool { return s.Evictions[1].Target == 2 })
		for range modelPods {
			take(evict(1), any)
		}
		take(evict(0), any) // the one that was let go before
		if s.Evictions[1].Stage == evictionAllowed {
			m.queue = nil
			evict(1)(s)
		}
		if (err != nil) != wrong {
			t.Errorf("after %d ticks: %v", after, err)
		}
	}
}

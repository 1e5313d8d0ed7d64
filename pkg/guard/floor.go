package guard

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// AnnotationFloor on a Service states the floor of the workloads behind it: a number of replicas, "N%" of the nodes that
// its balancer sends to or could, or "off".
const AnnotationFloor = "safedrain.dev/floor"

// floorOff is the value of that annotation that says that there is no floor.
const floorOff = "off"

// settledAfter is how long a node has to be Ready before it raises a floor: a node that an autoscaler has just made has
// no pod yet, and may be gone as fast.
const settledAfter = 10 * time.Minute

// Floor is the least number of replicas that a workload may be scaled down to.
type Floor struct {
	Value   int32    `json:"value"`
	Source  string   `json:"source"`            // where the number comes from, as messages say it: "3 nodes send for Service shop/checkout"
	Service string   `json:"service,omitempty"` // namespace/name of the Service whose floor is the largest; "" when there is none
	Nodes   []string `json:"nodes"`             // those that its balancer sends to or could and that can run the workload; sorted
}

// floors finds the floor of the workload: the largest of its Services'.
func (s *scaling) floors() {
	floor := Floor{Source: "no Local Service sends to it from outside", Nodes: []string{}}
	s.off = make([]bool, len(s.judgements))
	for i, j := range s.judgements {
		if !j.svc.External {
			continue
		}
		f, off := s.floorOf(j)
		s.off[i] = off
		if floor.Service == "" || f.Value > floor.Value {
			floor = f
		}
	}
	s.plan.Floor = floor
}

// floorOf is the floor for one Service: what it needs of all workloads behind it, less what the others give.
func (s *scaling) floorOf(j *judgement) (floor Floor, off bool) {
	key := j.svc.Key.String()
	nodes := s.nodesOf(j)
	floor = Floor{Service: key, Nodes: nodes}
	others, covered := s.others(j, nodes)
	stated, ok := parseFloor(j.svc.Floor)
	var need, given int32
	switch {
	case !ok:
		s.plan.Findings = append(s.plan.Findings, Finding{
			Code: FloorUnreadable, Severity: Warn,
			Message: fmt.Sprintf("%s on Service %s: %q is no floor: taken for auto", AnnotationFloor, key, j.svc.Floor),
			Advice:  "write a number, N%, or off",
		})
		fallthrough
	case stated.auto:
		need, floor.Source = s.auto(j, nodes)
		given = covered
	case stated.off:
		floor.Source = fmt.Sprintf("%s=off on Service %s", AnnotationFloor, key)
		return floor, true
	case stated.percent:
		need = (int32(len(nodes))*stated.number + 99) / 100 //nolint:gosec // a number of nodes
		floor.Source = fmt.Sprintf("%s=%d%% of %s for Service %s", AnnotationFloor, stated.number, plural(len(nodes), "node"), key)
		given = covered
	default:
		need = stated.number
		floor.Source = fmt.Sprintf("%s=%d on Service %s", AnnotationFloor, need, key)
		given = others
	}
	floor.Value = max(0, need-given)
	if given > 0 && need > 0 {
		floor.Source += fmt.Sprintf(", other workloads give %d", min(given, need))
	}
	return floor, false
}

// auto is the number of nodes that have to keep an endpoint of a Service for nothing to be dropped: all of them where the
// balancer sends whether or not there is one; all of them, too, where it follows the endpoints and every node has one now,
// since that is how the Service is run here; else one.
func (s *scaling) auto(j *judgement, nodes []string) (need int32, source string) {
	key := j.svc.Key.String()
	r := &j.svc.Rotation
	switch {
	case r.Nobody:
		return 0, fmt.Sprintf("nobody outside sends for Service %s", key)
	case len(nodes) == 0:
		return 1, fmt.Sprintf("no node is known to send for Service %s, which needs an endpoint all the same", key)
	case (r.Follows || r.HealthCheck != nil) && !s.allServe(j, nodes):
		return 1, fmt.Sprintf("the balancer of Service %s follows its endpoints, and not every node has one now", key)
	}
	verb := "send"
	if len(nodes) == 1 {
		verb = "sends"
	}
	return int32(len(nodes)), fmt.Sprintf("%s %s for Service %s", plural(len(nodes), "node"), verb, key) //nolint:gosec // a number of nodes
}

func (s *scaling) allServe(j *judgement, nodes []string) bool {
	return !slices.ContainsFunc(nodes, func(n string) bool {
		state, _ := j.cover.State(n)
		return state != StateServing
	})
}

// nodesOf lists the nodes that the balancer of a Service sends to or could, that stay, have been Ready for a while, and
// can run the workload.
func (s *scaling) nodesOf(j *judgement) []string {
	nodes := []string{}
	var spec *corev1.PodSpec
	if s.target.Template != nil {
		spec = &s.target.Template.Spec
	}
	for n := range s.ix.Nodes() {
		switch {
		case j.svc.Rotation.Nobody, !n.Ready, n.leaves(""), !j.eligible(n.Name):
		case !n.ReadySince.IsZero() && s.now.Sub(n.ReadySince) < settledAfter:
		case spec != nil && !canRun(spec, n):
		default:
			nodes = append(nodes, n.Name)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// others counts the endpoints of a Service that stay and are of other workloads, and of some nodes those that have one.
func (s *scaling) others(j *judgement, nodes []string) (endpoints, covered int32) {
	own := s.target.owns()
	var of []Endpoint
	on := map[string]bool{}
	for i := range j.cover.ports {
		for k := range j.cover.ports[i].left {
			if e := &j.cover.ports[i].left[k]; !own[e.Pod] && j.remains(e) {
				of = append(of, *e)
				on[e.Node] = true
			}
		}
	}
	for _, n := range nodes {
		if on[n] {
			covered++
		}
	}
	return int32(distinct(of)), covered //nolint:gosec // a number of endpoints
}

// statedFloor is a value of the annotation.
type statedFloor struct {
	auto, off, percent bool
	number             int32
}

// parseFloor reads the annotation safedrain.dev/floor; false when it means nothing.
func parseFloor(text string) (statedFloor, bool) {
	text = strings.TrimSpace(text)
	switch text {
	case "", "auto":
		return statedFloor{auto: true}, true
	case floorOff:
		return statedFloor{off: true}, true
	}
	digits, percent := strings.CutSuffix(text, "%")
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n < 0 || percent && n > 100 {
		return statedFloor{}, false
	}
	return statedFloor{percent: percent, number: int32(n)}, true
}

// belowFloor blocks a scale-down to less than the floor.
func (s *scaling) belowFloor() {
	floor := &s.plan.Floor
	if s.after >= s.target.Replicas || s.after >= floor.Value {
		return
	}
	s.plan.Findings = append(s.plan.Findings, Finding{
		Code: BelowFloor, Severity: Block, Nodes: floor.Nodes,
		Message: fmt.Sprintf("%s needs %d: %s", s.target.title(), floor.Value, floor.Source),
		Advice:  fmt.Sprintf("ask for %d or more, or state another floor: annotation %s on Service %s", floor.Value, AnnotationFloor, floor.Service),
	})
}

// autoscalers warns of HorizontalPodAutoscalers that may ask for less than the floor, or never for as much.
func (s *scaling) autoscalers() {
	floor := s.plan.Floor.Value
	autoscalers := slices.SortedFunc(slices.Values(s.target.Autoscalers), func(a, b Autoscaler) int { return a.Key.Compare(b.Key) })
	for _, a := range autoscalers {
		f := Finding{Code: AutoscalerBelowFloor, Severity: Warn}
		name := "HorizontalPodAutoscaler " + a.Key.String()
		switch {
		case a.Max < floor:
			f.Message = fmt.Sprintf("%s: maxReplicas %d is below the floor of %d, so it never scales up that far", name, a.Max, floor)
			f.Advice = fmt.Sprintf("raise maxReplicas to %d or more, or state another floor", floor)
		case a.Min < floor:
			f.Message = fmt.Sprintf("%s: minReplicas %d is below the floor of %d, so it may ask for less", name, a.Min, floor)
			f.Advice = fmt.Sprintf("raise minReplicas to %d", floor)
		default:
			continue
		}
		s.plan.Findings = append(s.plan.Findings, f)
	}
}

// plural writes a number with its noun: "1 node", "3 nodes".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

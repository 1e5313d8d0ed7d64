package guard

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// spot is a node of a Service, by its place in scaling.judgements.
type spot struct {
	service int
	node    string
}

// foothold is a port of a Service on a node that keeps no endpoint once all its holders are gone: all of them are pods among
// which the controller chooses. A spot has a foothold for each set of holders that its ports have.
type foothold struct {
	spot
	holders []types.UID // sorted
}

// footholds finds what a scaling can empty, on the nodes that count for a Service.
func (s *scaling) footholds(counts func(*judgement, string) bool) []foothold {
	own := s.target.owns()
	var out []foothold
	for i, j := range s.judgements {
		for k := range j.cover.ports {
			holders, foreign := map[string][]types.UID{}, map[string]bool{}
			for _, e := range j.cover.ports[k].left {
				if j.podLives(&e) {
					holders[e.Node] = append(holders[e.Node], e.Pod)
					foreign[e.Node] = foreign[e.Node] || !own[e.Pod]
				}
			}
			for node, pods := range holders {
				if !foreign[node] && counts(j, node) {
					slices.Sort(pods)
					out = append(out, foothold{spot{i, node}, slices.Compact(pods)})
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b foothold) int { return cmp.Or(a.compare(b.spot), slices.Compare(a.holders, b.holders)) })
	return slices.CompactFunc(out, func(a, b foothold) bool { return a.spot == b.spot && slices.Equal(a.holders, b.holders) })
}

func (s spot) compare(o spot) int {
	return cmp.Or(cmp.Compare(s.service, o.service), strings.Compare(s.node, o.node))
}

// sentTo reports whether a balancer sends to a node, or may.
func (j *judgement) sentTo(node string) bool {
	if !j.svc.External {
		return false
	}
	in := j.seat(node).In
	return in == Yes || in == Unknown && j.eligible(node)
}

// emptying is what a draw does to footholds.
type emptying struct {
	certain  map[spot]bool // emptied in every case
	possible map[spot]bool // emptied in some case
	worst    map[int]int   // by Service: the most of its nodes that one case empties
}

func emptied(footholds []foothold, d *draw) emptying {
	out := emptying{certain: map[spot]bool{}, possible: map[spot]bool{}, worst: map[int]int{}}
	times := map[spot]int{}
	for i := range d.cases {
		c := &d.cases[i]
		worst := map[int]int{}
		left := map[int][]int{} // by Service, of each tie
		for _, p := range c.prices(footholds) {
			if p.total == 0 {
				times[p.spot]++
			}
			if fits(p.each, c.takes()) {
				out.possible[p.spot] = true
			}
			if left[p.service] == nil {
				left[p.service] = c.takes()
			}
			if fits(p.each, left[p.service]) {
				worst[p.service]++
				for k, n := range p.each {
					left[p.service][k] -= n
				}
			}
		}
		for service, n := range worst {
			out.worst[service] = max(out.worst[service], n)
		}
	}
	for at, n := range times {
		out.certain[at] = n == len(d.cases)
	}
	return out
}

// price is how many pods of each tie have to be drawn for a spot to be emptied.
type price struct {
	spot
	each  []int
	total int
}

// prices lists the spots that ties can empty, the cheapest first. On one Service's nodes no pod counts twice, so those that
// can be paid for in this order are the most that can be.
func (c *drawn) prices(footholds []foothold) []price {
	in := map[types.UID]int{} // the tie that a pod is in; -1: it surely goes
	for _, v := range c.sure {
		in[v.pod.UID] = -1
	}
	for i, t := range c.ties {
		for _, p := range t.pods {
			in[p.UID] = i
		}
	}
	cheapest := map[spot]price{}
	for _, p := range footholds {
		cost := price{spot: p.spot, each: make([]int, len(c.ties))}
		stays := false
		for _, u := range p.holders {
			switch i, goes := in[u]; {
			case !goes:
				stays = true
			case i >= 0:
				cost.each[i]++
				cost.total++
			}
		}
		if old, ok := cheapest[p.spot]; !stays && (!ok || cost.total < old.total) {
			cheapest[p.spot] = cost
		}
	}
	out := make([]price, 0, len(cheapest))
	for _, p := range cheapest {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b price) int { return cmp.Or(cmp.Compare(a.total, b.total), a.compare(b.spot)) })
	return out
}

// takes is how many pods each tie takes.
func (c *drawn) takes() []int {
	out := make([]int, len(c.ties))
	for i := range c.ties {
		out[i] = c.ties[i].take
	}
	return out
}

func fits(price, purse []int) bool {
	for i := range price {
		if price[i] > purse[i] {
			return false
		}
	}
	return true
}

// Package rolling are the rules of a roll through many nodes: in which order they go, and which may be away at the same
// time. Pure, as guard is.
package rolling

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Order sorts plans, each for one node by itself, so that coverage stays as high as it can for as long as it can: first
// the nodes that no Service loses an endpoint on, last those that leave a Service without any. In between go first the
// nodes whose pods find another place, then those that leave more endpoints to the Service that has fewest left. Nodes
// without endpoints first also means that pods move once: they find nodes that are done.
func Order(plans []guard.DrainPlan) {
	slices.SortStableFunc(plans, func(a, b guard.DrainPlan) int {
		x, y := lossOf(&a), lossOf(&b)
		return cmp.Or(
			cmp.Compare(x.bare, y.bare), cmp.Compare(x.homeless, y.homeless), cmp.Compare(y.left, x.left),
			cmp.Compare(x.touched, y.touched), slices.CompareFunc(a.Nodes, b.Nodes, byNumber),
		)
	})
}

// loss is what the cluster loses with a node.
type loss struct {
	bare     int // Services that have no endpoint left
	homeless int // pods whose replacements fit nowhere
	left     int // endpoints of the Service with the fewest left; math.MaxInt when none loses one
	touched  int // Services that lose an endpoint
}

func lossOf(p *guard.DrainPlan) loss {
	l := loss{left: math.MaxInt}
	for i := range p.Services {
		s := &p.Services[i]
		if s.Replacements != nil {
			for k := range s.Replacements.Pods {
				if s.Replacements.Pods[k].Reason != "" {
					l.homeless++
				}
			}
		}
		if s.Endpoints.After >= s.Endpoints.Before {
			continue
		}
		l.touched++
		l.left = min(l.left, s.Endpoints.After)
		if s.Endpoints.After == 0 {
			l.bare++
		}
	}
	return l
}

// Thinnest returns the Service of a plan that has the fewest endpoints left of those that lose one; nil when none does.
func Thinnest(p *guard.DrainPlan) *guard.ServicePlan {
	var thinnest *guard.ServicePlan
	for i := range p.Services {
		s := &p.Services[i]
		if s.Endpoints.After < s.Endpoints.Before && (thinnest == nil || s.Endpoints.After < thinnest.Endpoints.After) {
			thinnest = s
		}
	}
	return thinnest
}

// byNumber compares names as people count: node-2 comes before node-10.
func byNumber(a, b string) int {
	x, y := strings.TrimRight(a, digits), strings.TrimRight(b, digits)
	if x != y {
		return strings.Compare(a, b)
	}
	n, m := a[len(x):], b[len(y):]
	return cmp.Or(cmp.Compare(len(n), len(m)), strings.Compare(n, m))
}

const digits = "0123456789"

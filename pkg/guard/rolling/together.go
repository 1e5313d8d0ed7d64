package rolling

import (
	"fmt"
	"slices"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Against says why the nodes of a plan may not be away at the same time; "" when they may: every Service keeps an endpoint
// that its balancer sends to, and every zone of a balancer that balances within zones keeps one. What flags accept of one
// node is no leave to take several: a Service that is given up is given up by one node alone.
func Against(together *guard.DrainPlan) string {
	for i := range together.Services {
		s := &together.Services[i]
		if s.Endpoints.Before > 0 && s.Endpoints.After == 0 {
			return fmt.Sprintf("%s would have no endpoint left", s.Key())
		}
		if f := unsafe(s.Findings, len(together.Nodes)); f != nil {
			return fmt.Sprintf("%s: %s", s.Key(), f.Message)
		}
	}
	for i := range together.Withdraw {
		e := &together.Withdraw[i]
		if e.Left == 0 {
			return fmt.Sprintf("%s would have no node left as a way in", e.Key())
		}
	}
	if together.Refused() {
		return "a drain of both is refused"
	}
	return ""
}

// unsafe finds what stands against several nodes at once, whether or not it is accepted.
func unsafe(findings []guard.Finding, nodes int) *guard.Finding {
	i := slices.IndexFunc(findings, func(f guard.Finding) bool {
		return f.Severity == guard.Block || f.Code == guard.ZoneLosesLastBackend && nodes > 1 && len(f.Nodes) > 1
	})
	if i < 0 {
		return nil
	}
	return &findings[i]
}

// Turns predicts which nodes of an order are away together when at most so many are: each turn takes the next nodes that
// may go beside those it has. may is asked about turns of two nodes and more.
func Turns(order []string, most int, may func(nodes []string) bool) [][]string {
	var turns [][]string
	left := slices.Clone(order)
	for len(left) > 0 {
		turn := []string{left[0]}
		rest := left[:0:0]
		for _, n := range left[1:] {
			if with := append(slices.Clone(turn), n); len(turn) < most && may(with) {
				turn = with
			} else {
				rest = append(rest, n)
			}
		}
		turns, left = append(turns, turn), rest
	}
	return turns
}

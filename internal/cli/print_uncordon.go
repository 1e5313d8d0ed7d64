package cli

import (
	"fmt"
	"strings"

	"github.com/safedrain/safedrain/internal/drain"
)

// uncordonView is the end of an uncordon with what its text needs besides.
type uncordonView struct {
	nodes    []string
	restored []drain.Restored
	result   *drain.Result
	typed    typed
	reason   string // the text of the error, explained
}

// uncordonResult is the result for stdout: a line for each node that had something to put back and is all back.
func uncordonResult(v *uncordonView) string {
	var b strings.Builder
	for i := range v.restored {
		n := &v.restored[i]
		if len(n.Services) == 0 || !allBack(n) {
			continue
		}
		fmt.Fprintf(&b, "node/%s restored", n.Node)
		if len(v.restored) == 1 {
			fmt.Fprintf(&b, " in %s", seconds(v.result.Took))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func allBack(n *drain.Restored) bool {
	if len(n.StaysOut) > 0 {
		return false
	}
	for _, s := range n.Services {
		if !s.Back {
			return false
		}
	}
	return true
}

// uncordonText is what is left to say on stderr when not all is back: what stays out and why, and the command that goes
// on. Warnings were said as they came.
func uncordonText(v *uncordonView) string {
	var b strings.Builder
	if v.result.Outcome == drain.Done {
		return ""
	}
	fmt.Fprintf(&b, "error: %s\n", v.reason)
	for i := range v.restored {
		n := &v.restored[i]
		for _, s := range n.Services {
			state := "back in"
			if !s.Back {
				state = "stays out of"
			}
			detail := ""
			if s.Detail != "" {
				detail = ": " + s.Detail
			}
			writeField(&b, "node/"+n.Node, fmt.Sprintf("%s %s %s%s", s.Service, state, s.Hook, oneLine(detail)))
		}
	}
	if len(v.nodes) > 0 {
		b.WriteByte('\n')
		writeField(&b, "continue", v.typed.only(append([]string{"wait-timeout", "rebalance"}, whereFlags...)...).command("uncordon", v.nodes...))
	}
	return b.String()
}

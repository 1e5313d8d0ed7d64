package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// reasonsShown is how many different reasons a text names.
const reasonsShown = 4

// Reason is why some nodes are refused.
type Reason struct {
	Text   string
	Nodes  int
	Advice string
}

// Reasons counts the refusals by reason, the most frequent first.
func (a *Answer) Reasons() []Reason {
	at := map[string]int{}
	var out []Reason
	for i := range a.Refused {
		r := &a.Refused[i]
		k, ok := at[r.Reason]
		if !ok {
			k = len(out)
			at[r.Reason] = k
			out = append(out, Reason{Text: r.Reason, Advice: r.Advice})
		}
		out[k].Nodes++
	}
	slices.SortFunc(out, func(a, b Reason) int { return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), strings.Compare(a.Text, b.Text)) })
	return out
}

// String says why a pod can go nowhere: "0 of 5 nodes: 3 too little cpu, 2 taint dedicated"; and of one that can, on how
// many nodes.
func (a *Answer) String() string {
	if a.Unknown != "" {
		return a.Unknown
	}
	reasons := a.Reasons()
	parts := make([]string, 0, len(reasons))
	for i, r := range reasons {
		if i == reasonsShown {
			parts = append(parts, fmt.Sprintf("+%d", len(reasons)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%d %s", r.Nodes, r.Text))
	}
	fits := len(a.Nodes) + len(a.Unread)
	text := fmt.Sprintf("%d of %d nodes", fits, fits+len(a.Refused))
	if fits+len(a.Refused) == 1 {
		text = strings.TrimSuffix(text, "s")
	}
	if len(parts) == 0 {
		return text
	}
	return text + ": " + strings.Join(parts, ", ")
}

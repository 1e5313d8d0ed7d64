package claim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pageSize is the number of nodes that one LIST returns.
const pageSize = 500

// earlier lists the tickets that were committed before resourceVersion. A ticket that wants one of this run's nodes is
// *LostTo, unless it may be overwritten.
func (a *attempt) earlier(ctx context.Context, resourceVersion string) (Earlier, error) {
	byRun := map[string]*Ticket{}
	opts := metav1.ListOptions{
		Limit: pageSize, ResourceVersion: resourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}
	for {
		page, err := a.c.Nodes.List(ctx, opts)
		if err != nil {
			return Earlier{}, fmt.Errorf("list the nodes at resourceVersion %s, to see who claimed before: %w", resourceVersion, err)
		}
		for i := range page.Items {
			if err := a.collect(&page.Items[i], byRun); err != nil {
				return Earlier{}, err
			}
		}
		if page.Continue == "" {
			break
		}
		opts = metav1.ListOptions{Limit: pageSize, Continue: page.Continue}
	}
	var e Earlier
	for _, t := range byRun {
		slices.Sort(t.Nodes)
		t.Nodes = slices.Compact(t.Nodes)
		e.Tickets = append(e.Tickets, *t)
	}
	slices.SortFunc(e.Tickets, func(x, y Ticket) int { return strings.Compare(x.Run, y.Run) })
	return e, nil
}

// collect adds the claim on one node to the tickets, if it is another run's. A run that has ended takes no further node,
// so only the node that bears its claim counts; of a live one, every node that it names.
func (a *attempt) collect(node *corev1.Node, byRun map[string]*Ticket) error {
	text, ok := node.Annotations[Annotation]
	if !ok {
		return nil
	}
	wanted := slices.Contains(a.names, node.Name)
	c, err := Of(node)
	if err != nil && wanted {
		return err
	}
	if err != nil {
		// Newer or broken: whoever wrote it means at least this node.
		c = &Claim{Run: "unreadable:" + node.Name, Nodes: []string{node.Name}}
	}
	if c.Run == a.c.Run || wanted && a.mayTake(text, c) {
		return nil
	}
	nodes := []string{node.Name}
	if c.Live() && !a.deadRun(c.Run) {
		nodes = append(nodes, c.Nodes...)
	}
	mine := func(n string) bool { return slices.Contains(a.names, n) }
	if slices.ContainsFunc(nodes, mine) && !a.c.TakeOver {
		return &LostTo{Run: c.Run, Holder: c.Holder, Nodes: c.Nodes}
	}
	nodes = slices.DeleteFunc(nodes, mine)
	if t := byRun[c.Run]; t != nil {
		t.Nodes = append(t.Nodes, nodes...)
	} else {
		byRun[c.Run] = &Ticket{Run: c.Run, Holder: c.Holder, Nodes: nodes}
	}
	return nil
}

// mayTake reports whether a claim of another run may be overwritten: it ended, was seen to be dead, or the user said so.
func (a *attempt) mayTake(text string, c *Claim) bool {
	return a.c.TakeOver || !c.Live() || a.free[text]
}

// deadRun reports whether a run was seen to be dead on one of its nodes.
func (a *attempt) deadRun(run string) bool {
	for text := range a.free {
		if c, err := Parse(text); err == nil && c.Run == run {
			return true
		}
	}
	return false
}

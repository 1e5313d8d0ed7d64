package claim

import (
	"fmt"
	"strings"
)

// LostTo says that another run claimed first and that both cannot go on. What this run had set is undone.
type LostTo struct {
	Run    string
	Holder string
	Nodes  []string // of the other run
	Cause  error    // what the guard says of both together; nil when a node is wanted by both
}

func (e *LostTo) Error() string {
	if e.Cause != nil {
		return e.Winner() + ": " + e.Cause.Error()
	}
	return e.holds() + "; if that run is dead, --take-over goes on in its place"
}

// Winner says which run came first.
func (e *LostTo) Winner() string { return e.holds() + " and came first" }

func (e *LostTo) holds() string {
	return fmt.Sprintf("run %s of %s holds node %s", e.Run, orUnknown(e.Holder), strings.Join(e.Nodes, ", "))
}

// Unwrap returns what the guard said.
func (e *LostTo) Unwrap() error { return e.Cause }

// TakenOver says that the claim of this run is gone from a node or is another run's now.
type TakenOver struct {
	Node   string
	Run    string // "" when the claim was removed
	Holder string
}

func (e *TakenOver) Error() string {
	if e.Run == "" {
		return fmt.Sprintf("node %q: somebody removed the claim of this run", e.Node)
	}
	return fmt.Sprintf("node %q: run %s of %s took over", e.Node, e.Run, orUnknown(e.Holder))
}

// Changed says that somebody else undid what this run needs on a node.
type Changed struct {
	Node string
	What string // "was uncordoned", "lost the label ..."
	Who  string // field manager and time where the API records them, else ""
}

func (e *Changed) Error() string {
	if e.Who == "" {
		return fmt.Sprintf("node %q %s by somebody else; the API does not record by whom", e.Node, e.What)
	}
	return fmt.Sprintf("node %q %s by somebody else; last writer: %s", e.Node, e.What, e.Who)
}

func orUnknown(holder string) string {
	if holder == "" {
		return "an unknown holder"
	}
	return holder
}

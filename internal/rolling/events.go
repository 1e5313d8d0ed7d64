package rolling

import "time"

// Event is a progress value of a roll, beside the events of its drains.
type Event interface{ event() }

// Began says which roll this is, and its nodes in the order of their turns.
type Began struct {
	Roll    string
	Resumed bool
	AtOnce  int
	Order   []string
	Done    []string // by earlier runs of the same roll, sorted
}

// Moved says that a node came to a step.
type Moved struct {
	Node string
	Step Step
	// Again says that the step was under way when an earlier run ended, and is begun once more.
	Again bool
	Gone  bool          // it was deleted before its turn; with Done
	Took  time.Duration // of the whole node, with Done
}

// Held says why a node has to wait although one more could be under way.
type Held struct{ Node, Why string }

// Uncovered says for which Services a node that is through still waits.
type Uncovered struct {
	Node    string
	Missing []string // "shop/web 2 of 3"
	Elapsed time.Duration
	Timeout time.Duration
}

// CommandFailed says that the command failed on a node, with the end of its output.
type CommandFailed struct {
	Node   string
	Why    string
	Output string
}

// Stopping says that nothing new is begun any more.
type Stopping struct{ Why string }

// Warned is a warning that ends nothing.
type Warned struct{ Text string }

func (Began) event()         {}
func (Moved) event()         {}
func (Held) event()          {}
func (Uncovered) event()     {}
func (CommandFailed) event() {}
func (Stopping) event()      {}
func (Warned) event()        {}

// Package rolling takes many nodes through a drain, a maintenance command and the way back, one after another or several at
// once where guard says that they do not depend on each other. Where each node is stands in an annotation on it, so that
// the same command goes on after a crash. It never prints: it emits typed values and returns a report.
package rolling

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// Unfinished says what becomes of a roll that another command has left unfinished on the nodes.
type Unfinished string

// By default nobody guesses: the command is refused.
const (
	UnfinishedRefused Unfinished = ""
	UnfinishedResume  Unfinished = "resume"
	UnfinishedRestart Unfinished = "restart"
)

// Options are one run of `safedrain NODE... --rolling`.
type Options struct {
	Nodes       []string
	Selection   string        // how the nodes were chosen, as typed
	Drain       drain.Options // of each node; its Nodes are set by the roll
	AtOnce      int           // the most nodes that may be under way at the same time, 1 or more
	Command     string        // run by the shell once a node is drained; "": nothing
	RunTimeout  time.Duration // of the command on one node; 0: none
	Uncordon    bool          // nodes return before the next one is begun
	Rebalance   []string      // as in drain.RestoreOptions
	WaitTimeout time.Duration // until a node is back, and until every Service is covered again
	Unfinished  Unfinished
}

// work is the Mark's Work: what has to be the same for a command to go on where another one has ended.
func (o *Options) work() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %t", o.Selection, o.Command, o.Uncordon))
	return hex.EncodeToString(sum[:6])
}

// request asks guard about some of the nodes.
func (o *Options) request(nodes ...string) guard.Request {
	req := guard.Request{Nodes: nodes, StayUp: o.Drain.StayUp, Flags: o.Drain.Flags}
	req.Flags.Together = len(nodes) > 1
	if s := o.Drain.PodSelector; s != nil && !s.Empty() {
		req.SkipPod = func(l map[string]string) bool { return !s.Matches(labels.Set(l)) }
	}
	return req
}

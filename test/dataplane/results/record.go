package results

import (
	"cmp"
	"fmt"
	"time"

	"github.com/safedrain/safedrain/test/dataplane/load"
)

// Tools that are measured beside each other.
const (
	Kubectl   = "kubectl"
	Safedrain = "safedrain"
	Gate      = "gate" // kubectl, or another client, with safedrain's gate in the cluster
)

// Key names one measurement: what was done, to which Service, by which tool, and the how-manieth time.
type Key struct {
	Experiment string `json:"experiment"`
	Balancer   string `json:"balancer"`
	Mode       string `json:"mode"` // kube-proxy's
	Tool       string `json:"tool"`
	Run        int    `json:"run"` // from 1
}

// String is the key in one word.
func (k Key) String() string {
	return fmt.Sprintf("%s/%s/%s/%s/%d", k.Experiment, k.Balancer, k.Mode, k.Tool, k.Run)
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Experiment, b.Experiment), cmp.Compare(a.Balancer, b.Balancer),
		cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.Tool, b.Tool), cmp.Compare(a.Run, b.Run))
}

// Record is what happened to the requests of one Service in one run. Moments are seconds since the action began.
type Record struct {
	Key
	// Commit is the state of the sources, and Build the digest of the safedrain that was run.
	Commit  string    `json:"commit"`
	Build   string    `json:"build"`
	Started time.Time `json:"started"`
	// Rate is how many new connections a second the Service got.
	Rate float64 `json:"rate"`
	// Way is how safedrain took the node out: "hook", "label", "health-check", or "hold".
	Way string `json:"way,omitempty"`
	// Fault says that something went wrong on purpose.
	Fault bool `json:"fault,omitempty"`
	// Nodes is between how many nodes its pods were spread.
	Nodes int `json:"nodes"`
	// Exit is the exit code of the tool, the worst where it ran several times.
	Exit int `json:"exit"`
	// Problems says what was not as the experiment expects it; empty when it passed.
	Problems []string `json:"problems,omitempty"`

	// New and Kept count the requests from the action on; Steady those of the seconds before it.
	New    load.Counts `json:"new"`
	Kept   load.Counts `json:"kept,omitzero"`
	Steady load.Counts `json:"steady"`
	// Broken and Closed are kept connections that were lost, or ended in order, from the action on.
	Broken int `json:"broken"`
	Closed int `json:"closed"`
	// First and Last are the moments of the first and last failed new connection; zero when none failed.
	First float64 `json:"first,omitempty"`
	Last  float64 `json:"last,omitempty"`
	// Latency is the worst second's.
	Latency load.Latency `json:"latency"`
	// Preserved and Translated count the answers by whether the pod saw the right source address.
	Preserved  int `json:"preserved"`
	Translated int `json:"translated"`
	// Pressure is the share of time, in percent, in which something on the machine waited for a processor.
	Pressure float64 `json:"pressure"`
	// Lag is by how many milliseconds the generator itself was late at worst.
	Lag float64 `json:"lagMs"`

	// Failures are the first failed new connections, one by one; not of kubectl, which loses many.
	Failures []Failure `json:"failures,omitempty"`

	Series Series `json:"series"`
	// Steps are what happened when, in the order of time.
	Steps []Step `json:"steps,omitempty"`
	// Times are of a safe drain.
	Times *Times `json:"times,omitempty"`
}

// Failed is how many new connections failed, those left out that were open already and were cut.
func (r *Record) Failed() int { return r.New.Failed() - r.New.Cut }

// Span is how many seconds lie between the first and the last failed new connection.
func (r *Record) Span() float64 { return r.Last - r.First }

// Failure is one new connection that failed.
type Failure struct {
	At     float64    `json:"at"` // its scheduled moment
	Class  load.Class `json:"class"`
	Source string     `json:"source,omitempty"` // the connection's own address and port
	Error  string     `json:"error"`
	Seen   []string   `json:"seen,omitempty"` // what the nodes' connection tracking had of it
}

// Series are new connections by the second of their scheduled moment.
type Series struct {
	From   int   `json:"from"` // the second of the first value, relative to the action
	OK     []int `json:"ok"`
	Failed []int `json:"failed"`
}

// Step is something that happened.
type Step struct {
	At   float64 `json:"at"`
	What string  `json:"what"`
}

// Times are the parts of one safe drain, in seconds. Removed and Switched are seen at the balancer itself, not taken from
// safedrain.
type Times struct {
	Told       float64 `json:"told"`       // from the start until the balancer was told
	Removed    float64 `json:"removed"`    // from then until the balancer said that it does not send to the node any more
	Switched   float64 `json:"switched"`   // from then until its data plane did not send there any more
	Proven     float64 `json:"proven"`     // from then until safedrain had its proof
	Settle     float64 `json:"settle"`     // from the proof to the first eviction
	Terminated float64 `json:"terminated"` // from the first eviction until the last pod was gone
	Total      float64 `json:"total"`      // the whole command
	Bound      float64 `json:"bound"`      // what Total may be at most
}

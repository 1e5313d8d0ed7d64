package load

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// Line is one line of the output: exactly one of its fields is set.
type Line struct {
	Second  *Second  `json:"second,omitempty"`
	Failure *Failure `json:"failure,omitempty"`
	Summary *Summary `json:"summary,omitempty"`
}

// Traffic is what became of the requests of a target in some time.
type Traffic struct {
	// New are the requests with a connection of their own.
	New Counts `json:"new"`
	// Kept are the requests on kept connections.
	Kept Counts `json:"kept,omitzero"`
	// Broken is how many kept connections were reset or failed a request, after they had answered one.
	Broken int `json:"broken,omitempty"`
	// Closed is how many kept connections the other side ended in order between two requests; nothing is lost by it.
	Closed int `json:"closed,omitempty"`
	// Latency is that of the new connections with an answer, from the scheduled moment to the end of the answer.
	Latency Latency `json:"latency"`
	// Preserved and Translated say how many answers named the expected source address, or another one.
	Preserved  int `json:"preserved,omitempty"`
	Translated int `json:"translated,omitempty"`
	// Pods and Nodes count the answers by the pod and the node that gave them.
	Pods  map[string]int `json:"pods,omitempty"`
	Nodes map[string]int `json:"nodes,omitempty"`
	// LagMS is by how many milliseconds the latest request was sent after its moment: the generator's own delay.
	LagMS float64 `json:"lagMs"`
}

// Latency is in milliseconds; zero when nothing was answered.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Second is what became of the requests that were scheduled within one second. It is written when all have ended.
type Second struct {
	Target string    `json:"target"`
	Index  int       `json:"index"` // from the start of the run
	Start  time.Time `json:"start"`
	Traffic
}

// Failure is one request that did not end well.
type Failure struct {
	Target string    `json:"target"`
	At     time.Time `json:"at"` // its scheduled moment
	Class  Class     `json:"class"`
	Kept   bool      `json:"kept,omitempty"` // on a kept connection
	// Source is the connection's own address; not valid when none was opened.
	Source netip.AddrPort `json:"source,omitzero"`
	Error  string         `json:"error"`
}

// Summary is what became of all requests of a target.
type Summary struct {
	Target  Target    `json:"target"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Traffic
	// First and Last are the scheduled moments of the first and last failure of a new connection.
	First time.Time `json:"first,omitzero"`
	Last  time.Time `json:"last,omitzero"`
}

// Decode reads lines until the end and hands each over.
func Decode(r io.Reader, each func(Line) error) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var line Line
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			return fmt.Errorf("line %q: %w", scanner.Text(), err)
		}
		if err := each(line); err != nil {
			return err
		}
	}
	return scanner.Err()
}

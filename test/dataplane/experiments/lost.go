package experiments

import (
	"context"
	"strconv"
	"strings"

	"github.com/safedrain/safedrain/test/dataplane/load"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// maxLost is how many lost requests of a record are followed up.
const maxLost = 20

// lost describes the new connections that failed within a window, by what is known of each where it was sent from, and by
// what the nodes' connection tracking still has of it.
func (s *scene) lost(ctx context.Context, failures []*load.Failure, w window) []results.Failure {
	var out []results.Failure
	for _, f := range failures {
		if f.At.Before(w.begin) || f.At.After(w.end) || f.Kept || f.Class == load.Cut {
			continue
		}
		if len(out) == maxLost {
			break
		}
		lost := results.Failure{At: inSeconds(f.At.Sub(w.begin)), Class: f.Class, Error: f.Error}
		if f.Source.IsValid() {
			lost.Source = f.Source.String()
			lost.Seen = s.tracked(ctx, f.Source.Port())
		}
		out = append(out, lost)
	}
	return out
}

// tracked lists what each node knows of the connections from a port of the client: "node-2: SYN_SENT to 10.64.130.5".
func (s *scene) tracked(ctx context.Context, port uint16) []string {
	var out []string
	for _, n := range s.lab.Nodes {
		table, err := n.Run(ctx, "conntrack", "-L", "-p", "tcp", "--orig-src", s.client.Addr.String(), "--sport", strconv.Itoa(int(port)))
		if err != nil {
			continue // what cannot be asked for is not known
		}
		for line := range strings.Lines(table) {
			if entry := trackedEntry(line); entry != "" {
				out = append(out, n.Name+": "+entry)
			}
		}
	}
	return out
}

// trackedEntry reads a line such as
//
//	tcp      6 118 SYN_SENT src=10.64.0.101 dst=198.51.100.3 sport=40000 dport=80 [UNREPLIED] src=10.64.130.5 dst=10.64.0.101 sport=8080 dport=40000 mark=0 use=1
func trackedEntry(line string) string {
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "tcp" {
		return ""
	}
	entry := fields[3]
	var ends []string // of both directions: the address that was dialled, and the pod
	for _, field := range fields[4:] {
		for _, name := range []string{"src=", "dst="} {
			if value, ok := strings.CutPrefix(field, name); ok {
				ends = append(ends, value)
			}
		}
	}
	if len(ends) >= 3 {
		entry += " of " + ends[1] + " to " + ends[2]
	}
	if strings.Contains(line, "[UNREPLIED]") {
		entry += ", no answer"
	}
	return entry
}

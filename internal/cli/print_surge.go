package cli

import (
	"fmt"
	"strings"

	"github.com/safedrain/safedrain/internal/drain"
)

// surges says of which workloads one more replica is started first, and of which none can be.
func (v *planView) surges() string {
	var out []string
	for i := range v.plan.Surges {
		s := &v.plan.Surges[i]
		if !s.Possible() {
			out = append(out, "none of "+s.Title()+": "+s.Reason)
			continue
		}
		text := fmt.Sprintf("%s first: one more replica, %d -> %d, by its %s", s.Title(), s.Replicas.Before, s.Replicas.After, s.By)
		if s.May != "" {
			text += "; may run on " + s.May
		}
		out = append(out, text+"; taken back when its pod here is evicted")
	}
	return strings.Join(out, "\n")
}

// surge says how far a replica is that was started first.
func (n *narrator) surge(ev drain.Event) []line {
	switch e := ev.(type) {
	case drain.Surging:
		verb := "starting one more replica of"
		if e.Taken {
			verb = "taking over the further replica of"
		}
		return []line{stamped("%s: %s %s: %s", e.Node, verb, e.Workload, e.What)}
	case drain.SurgePending:
		minute := fmt.Sprint(int(e.Elapsed.Minutes()))
		if !n.changed("surge "+e.Node+" "+e.Workload, e.For+" "+minute) {
			return nil
		}
		return []line{stamped("%s: %s has no further replica yet, %s of %s: %s", e.Node, e.Workload, seconds(e.Elapsed), seconds(e.Timeout), e.For)}
	case drain.Surged:
		return []line{stamped("%s: further replica of %s Ready after %s; serving on %s", e.Node, e.Workload, seconds(e.After), listed(ranges(e.On), 4))}
	case drain.Unsurged:
		return []line{stamped("%s has as many replicas as before", strings.TrimPrefix(e.Node+": "+e.Workload, ": "))}
	}
	return nil
}

package cli

import (
	"fmt"
	"strings"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// narrator turns events into lines; it remembers what it has said, so that a line comes on change only.
type narrator struct {
	suffix  string
	deleted map[guard.Key]bool
	said    map[string]string // what was said last, by subject
}

// lines says an event.
func (n *narrator) lines(ev drain.Event) []line {
	switch e := ev.(type) {
	case drain.Planned:
		return n.planned(e.Plan)
	case drain.Cordoned:
		return []line{resultLine("node/%s %scordoned%s", e.Node, already(e.Already), n.suffix)}
	case drain.Uncordoned:
		return []line{resultLine("node/%s %suncordoned%s", e.Node, already(e.Already), n.suffix)}
	case drain.Resumed:
		return []line{stamped("%s: taking up run %s of %s, which was %s", e.Node, e.Run, e.Holder, e.Phase)}
	case drain.Withdrawing, drain.ProofPending, drain.Proven, drain.NotProven, drain.Relied, drain.Held, drain.Returned, drain.ReturnPending, drain.Rebalanced:
		return n.rotation(ev)
	case drain.Wave, drain.PodEvicted, drain.PodGone, drain.PodBlocked, drain.Waiting:
		return n.pods(ev)
	case drain.Surging, drain.SurgePending, drain.Surged, drain.Unsurged:
		return n.surge(ev)
	case drain.Verified:
		return []line{stamped("%s: verified: no pod left that was to go, every Service covered", e.Node)}
	case drain.Drained:
		return n.drained(e)
	case drain.RolledBack:
		return []line{stamped("%s: rolled back: %s", e.Node, strings.Join(e.Removed, ", "))}
	case drain.Warned:
		return []line{{text: "Warning: " + oneLine(e.Text)}}
	}
	return nil
}

func already(b bool) string {
	if b {
		return "already "
	}
	return ""
}

func (n *narrator) planned(p *guard.DrainPlan) []line {
	if p == nil || p.Refused() {
		return nil
	}
	v := planView{plan: p}
	_, words, _ := strings.Cut(v.answer(nil), ": ")
	words = strings.Replace(words, " evicted", " to evict", 1)
	out := []line{stamped("%s: %s", strings.Join(ranges(p.Nodes), ", "), strings.Replace(words, " withdrawn first", " to withdraw", 1))}
	for i := range p.Services {
		for _, f := range p.Services[i].Findings {
			if aboutReplacements[f.Code] {
				out = append(out, line{text: "Warning: " + p.Services[i].Key().String() + ": " + oneLine(f.Message)})
			}
		}
	}
	return out
}

// aboutReplacements are the findings that a run says beforehand: nothing of what it shows later would tell them.
var aboutReplacements = map[guard.Code]bool{guard.ReplacementUnschedulable: true, guard.HotSpot: true}

// changed remembers what is said of a subject and reports whether it is new.
func (n *narrator) changed(subject, text string) bool {
	if n.said == nil {
		n.said = map[string]string{}
	}
	if n.said[subject] == text {
		return false
	}
	n.said[subject] = text
	return true
}

func (n *narrator) rotation(ev drain.Event) []line {
	switch e := ev.(type) {
	case drain.Withdrawing:
		if noBalancer(e.Hook) {
			return nil
		}
		return []line{stamped("%s: withdrawing %s from %s (timeout %s)", e.Node, e.Service, e.Hook, seconds(e.Timeout))}
	case drain.ProofPending:
		minute := fmt.Sprint(int(e.Elapsed.Minutes()))
		if !n.changed("proof "+e.Node+" "+e.Service, e.Evidence+" "+minute) {
			return nil
		}
		return []line{stamped("%s: %s", e.Node, pendingText(e))}
	case drain.Proven:
		return []line{stamped("%s: %s", e.Node, provenText(e))}
	case drain.NotProven:
		return []line{stamped("%s: %s", e.Node, notProvenText(e))}
	case drain.Relied:
		return []line{stamped("%s: %s leaves by its health check while its pods terminate: %s", e.Node, e.Service, e.Evidence)}
	case drain.Held:
		return []line{stamped("%s: %s", e.Node, heldText(e))}
	case drain.Returned:
		return []line{stamped("%s: %s", e.Node, returnedText(e))}
	case drain.Rebalanced:
		return []line{stamped("%s: %s", e.Node, rebalancedText(e))}
	case drain.ReturnPending:
		if !n.changed("return "+e.Node+" "+e.Service, e.For) {
			return nil
		}
		return []line{stamped("%s: %s", e.Node, returnPendingText(e))}
	}
	return nil
}

// noBalancer reports whether there is nothing to withdraw from.
func noBalancer(hook string) bool { return hook == "" || hook == "none" }

func pendingText(e drain.ProofPending) string {
	return fmt.Sprintf("%s leaving %s, %s of %s: %s", e.Service, e.Hook, seconds(e.Elapsed), seconds(e.Timeout), e.Evidence)
}

func provenText(e drain.Proven) string {
	text := fmt.Sprintf("%s out of %s after %s", e.Service, e.Hook, seconds(e.After))
	switch {
	case e.By != "":
		text += ", " + e.By + " took over"
	case e.Evidence != "":
		text += ": " + e.Evidence
	}
	if e.Settle > 0 {
		text += "; settling " + seconds(e.Settle)
	}
	return text
}

func heldText(e drain.Held) string {
	text := fmt.Sprintf("%s held by label %s of %s", e.Service, e.Label, count(e.Pods, "pod"))
	if !e.Exact {
		text += ", goes only forward"
	}
	return text
}

func notProvenText(e drain.NotProven) string {
	text := fmt.Sprintf("%s not proven, accepted %s", e.Service, e.Accepted)
	if e.Settle > 0 {
		text += "; settling " + seconds(e.Settle)
	}
	return text
}

func returnedText(e drain.Returned) string {
	text := fmt.Sprintf("%s back in %s", e.Service, e.Hook)
	if e.After > 0 {
		text += " after " + seconds(e.After)
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

func rebalancedText(e drain.Rebalanced) string {
	text := fmt.Sprintf("%s: %s evicted from node/%s", e.Service, e.Pod, e.From)
	if e.To != "" {
		text += fmt.Sprintf(", %s comes to node/%s", e.New, e.To)
	}
	return text
}

func returnPendingText(e drain.ReturnPending) string {
	if e.Service == "" {
		return fmt.Sprintf("not back yet: %s (timeout %s)", e.For, seconds(e.Timeout))
	}
	return fmt.Sprintf("%s not back in %s yet: %s (timeout %s)", e.Service, e.Hook, e.For, seconds(e.Timeout))
}

func (n *narrator) pods(ev drain.Event) []line {
	switch e := ev.(type) {
	case drain.Wave:
		return []line{stamped("%s: %s", e.Node, waveText(e))}
	case drain.PodEvicted:
		if e.Deleted {
			if n.deleted == nil {
				n.deleted = map[guard.Key]bool{}
			}
			n.deleted[e.Pod] = true
		}
		if n.suffix != "" { // nothing will be seen to go
			return []line{n.gone(e.Pod)}
		}
	case drain.PodGone:
		return []line{n.gone(e.Pod)}
	case drain.PodBlocked:
		if !n.changed("blocked "+e.Node+" "+e.By, e.By) {
			return nil
		}
		return []line{stamped("%s: %s held by %s", e.Node, e.Pod, e.By)}
	case drain.Waiting:
		return []line{stamped("%s: %s", e.Node, waitingText(e))}
	}
	return nil
}

// gone is kubectl's own line, with the namespace after it.
func (n *narrator) gone(pod guard.Key) line {
	verb := "evicted"
	if n.deleted[pod] {
		verb = "deleted"
	}
	return resultLine("pod/%s %s from %s namespace%s", pod.Name, verb, pod.Namespace, n.suffix)
}

func waveText(e drain.Wave) string {
	text := "evicting " + count(e.Pods, "pod")
	if len(e.After) > 0 {
		return text + " of " + strings.Join(e.After, ", ")
	}
	text += " that need not wait"
	if e.Waiting > 0 {
		text += fmt.Sprintf("; %d wait for a withdrawal", e.Waiting)
	}
	return text
}

// waitingText is the heartbeat: how long, for what, until when.
func waitingText(e drain.Waiting) string {
	var parts []string
	if e.Terminating > 0 {
		part := fmt.Sprintf("%d terminating", e.Terminating)
		if e.Longest != (guard.Key{}) {
			part += ", longest " + e.Longest.String()
			if e.LongestRemaining > 0 {
				part += " " + seconds(e.LongestRemaining)
			}
		}
		parts = append(parts, part)
	}
	for _, b := range e.Blocked {
		parts = append(parts, count(len(b.Pods), "pod")+" held by "+b.By)
	}
	until := "no timeout set"
	if e.Timeout > 0 {
		until = "timeout " + seconds(e.Timeout)
	}
	if len(parts) == 0 {
		parts = append(parts, count(e.Total-e.Gone, "pod"))
	}
	return fmt.Sprintf("%s waiting, %d of %d pods gone: %s, %s", seconds(e.Elapsed), e.Gone, e.Total, strings.Join(parts, "; "), until)
}

func (n *narrator) drained(e drain.Drained) []line {
	out := []line{resultLine("node/%s drained%s", e.Node, n.suffix)}
	if e.Deleted {
		return append([]line{stamped("%s: the node was deleted meanwhile", e.Node)}, out...)
	}
	return out
}

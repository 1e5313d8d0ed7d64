package admission

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// maxMessage is the most that a refusal says, in characters: kubectl prints some 150 before it, on one line.
const maxMessage = 120

// maxCauses bounds the Services that a refusal names.
const maxCauses = 10

// gravity orders reasons: what somebody has to do something about before what passes by itself.
var gravity = map[guard.EvictionReason]int{
	guard.LastAnywhere: 0, guard.NotProven: 1, guard.OnlyEndpoint: 2, guard.Keeper: 3, guard.NodeLeaving: 4, guard.NoKeeper: 5,
}

func byGravity(blocks []guard.EvictionBlock) {
	slices.SortStableFunc(blocks, func(a, b guard.EvictionBlock) int { return cmp.Compare(gravity[a.Reason], gravity[b.Reason]) })
}

// refusal refuses an eviction: 429, which every client that evicts takes for "later". It says the same at each try.
func refusal(pod guard.Key, blocks []guard.EvictionBlock) *answer {
	return denied(http.StatusTooManyRequests, string(blocks[0].Reason), message(&blocks[0]), refusalDetails(pod.Name, blocks))
}

func refusalDetails(pod string, blocks []guard.EvictionBlock) *metav1.StatusDetails {
	d := &metav1.StatusDetails{Name: pod, RetryAfterSeconds: retryAfter}
	for i := range blocks[:min(len(blocks), maxCauses)] {
		d.Causes = append(d.Causes, metav1.StatusCause{Type: metav1.CauseType(blocks[i].Reason), Message: message(&blocks[i])})
	}
	return d
}

// warnings are what is said where an eviction passes that would be refused.
func warnings(blocks []guard.EvictionBlock) []string {
	var out []string
	for i := range blocks[:min(len(blocks), maxCauses)] {
		out = append(out, "safedrain would wait: "+message(&blocks[i])+" (gate=warn)")
	}
	return out
}

// message says in one line why an eviction waits and what ends that.
func message(b *guard.EvictionBlock) string {
	text := map[guard.EvictionReason]func(*guard.EvictionBlock) []string{
		guard.NodeLeaving:  leavingText,
		guard.NotProven:    notProvenText,
		guard.LastAnywhere: lastText,
		guard.OnlyEndpoint: onlyText,
		guard.Keeper:       onlyText,
		guard.NoKeeper:     noKeeperText,
	}[b.Reason]
	var variants []string
	for _, t := range text(b) {
		variants = append(variants, b.Service.String()+": "+t)
	}
	return fit(variants...)
}

// fit returns the first text that is short enough, else the last one, cut.
func fit(variants ...string) string {
	last := ""
	for _, last = range variants {
		if utf8.RuneCountInString(last) <= maxMessage {
			return last
		}
	}
	return string([]rune(last)[:maxMessage-1]) + "…"
}

const override = "annotate node %s " + guard.AnnotationGate + "=off"

func leavingText(b *guard.EvictionBlock) []string {
	c := b.Claimed
	switch {
	case c == nil:
		return []string{
			fmt.Sprintf("%s is to leave (%s) and still in rotation, eviction allowed once it is out of %s", b.Node, b.Leaving, front(b)),
			fmt.Sprintf("%s is to leave, eviction allowed once it is out of %s", b.Node, front(b)),
			"its node is to leave, eviction allowed once it is out",
		}
	case c.Unproven && c.Until != nil:
		return []string{
			fmt.Sprintf("nobody can prove %s is out, eviction allowed at %s (settle %s)", b.Node, clockTime(c.Until), span(c.Since, c.Until)),
			fmt.Sprintf("eviction allowed at %s, after the settle time", clockTime(c.Until)),
		}
	case c.ProofAt != nil && c.Until != nil:
		return []string{
			fmt.Sprintf("%s is out of %s, eviction allowed at %s (settle %s)", b.Node, front(b), clockTime(c.Until), span(c.ProofAt, c.Until)),
			fmt.Sprintf("eviction allowed at %s, after the settle time", clockTime(c.Until)),
		}
	case c.Since != nil && c.Until != nil:
		return []string{
			fmt.Sprintf("%s is leaving %s since %s, eviction allowed once proven, at most %s", b.Node, front(b), clockTime(c.Since), span(c.Since, c.Until)),
			fmt.Sprintf("leaving %s since %s, eviction allowed once proven", front(b), clockTime(c.Since)),
			"its node is leaving, eviction allowed once proven",
		}
	}
	return []string{
		fmt.Sprintf("%s is leaving %s, eviction allowed once proven", b.Node, front(b)),
		"its node is leaving, eviction allowed once proven",
	}
}

func notProvenText(b *guard.EvictionBlock) []string {
	after := ""
	if c := b.Claimed; c != nil && c.Since != nil && c.Until != nil {
		after = " after " + span(c.Since, c.Until)
	}
	return []string{
		fmt.Sprintf("%s not proven out of %s%s; override: "+override, b.Node, front(b), after, b.Node),
		fmt.Sprintf("not proven out of %s%s; override: "+override, front(b), after, b.Node),
		fmt.Sprintf("not proven; override: "+override, b.Node),
		"not proven out of rotation",
	}
}

func lastText(b *guard.EvictionBlock) []string {
	return []string{
		fmt.Sprintf("last endpoint anywhere; add a replica, or "+override, b.Node),
		"last endpoint anywhere; add a replica",
	}
}

func onlyText(b *guard.EvictionBlock) []string {
	what := "last endpoint on"
	if b.Reason == guard.Keeper {
		what = "the endpoint kept on"
	}
	rotation := "still in rotation"
	if b.Rotation == guard.Unknown {
		rotation = "which may be in rotation"
	}
	end := "cordon the node to move it out first"
	if b.Cordoned {
		end = "eviction allowed once it is withdrawn"
	}
	return []string{
		fmt.Sprintf("%s %s, %s; %s", what, b.Node, rotation, end),
		fmt.Sprintf("%s %s; %s", what, b.Node, end),
		fmt.Sprintf("%s its node; %s", what, end),
		what + " its node",
	}
}

func noKeeperText(b *guard.EvictionBlock) []string {
	return []string{
		fmt.Sprintf("no other endpoint is kept on %s yet, which is in rotation; try again", b.Node),
		fmt.Sprintf("no other endpoint is kept on %s yet; try again", b.Node),
		"no other endpoint is kept on its node yet; try again",
	}
}

// front names the balancer.
func front(b *guard.EvictionBlock) string { return cmp.Or(b.Hook, "rotation") }

func clockTime(t *time.Time) string { return t.UTC().Format("15:04:05Z") }

func span(from, to *time.Time) string {
	if from == nil {
		return "unknown"
	}
	return to.Sub(*from).Round(time.Second).String()
}

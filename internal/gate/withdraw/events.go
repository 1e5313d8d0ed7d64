package withdraw

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// Reasons of the events on a Node.
const (
	ReasonStarted  = "WithdrawStarted"
	ReasonProven   = "WithdrawProven"
	ReasonUnproven = "WithdrawUnproven"
	ReasonRefused  = "WithdrawRefused" // a Service would be left without an endpoint, or a hook cannot work
	ReasonLeft     = "WithdrawLeft"    // to the run that holds the claim, or to people
	ReasonReturned = "NodeReturned"
	ReasonWaits    = "NodeReturnWaits"
)

// maxNote is the length of the note of an event that the API takes.
const maxNote = 1000

// event tells something about a node, once while it does not change. about names what the event is about.
func (c *Controller) event(node *corev1.Node, about, kind, reason, format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	if len(note) > maxNote {
		note = note[:maxNote] + "..."
	}
	c.mu.Lock()
	if c.told[node.Name] == nil {
		if c.told == nil {
			c.told = map[string]map[string]string{}
		}
		c.told[node.Name] = map[string]string{}
	}
	known := c.told[node.Name][about] == reason+" "+note
	c.told[node.Name][about] = reason + " " + note
	c.mu.Unlock()
	if known {
		return
	}
	c.Log.Info("withdrawal", "node", node.Name, "reason", reason, "note", note)
	if c.Events != nil {
		// Events about nodes name them by their name, in the field of the UID too, as the kubelet's do.
		about := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: types.UID(node.Name)}}
		c.Events.Eventf(about, nil, kind, reason, "Withdraw", "%s", note)
	}
}

// forget drops what is remembered of a node: everything about it is told anew.
func (c *Controller) forget(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.told, node)
	delete(c.pauses, node)
}

// teller turns the progress of one withdrawal into events.
type teller struct {
	c    *Controller
	node *corev1.Node
	why  string

	mu       sync.Mutex
	leaves   []string // what the node leaves, for people
	unproven bool
}

// tell takes a progress value; it may be called from several goroutines.
func (t *teller) tell(e drain.Event) {
	switch e := e.(type) {
	case drain.Planned:
		t.planned(e.Plan)
	case drain.Cordoned:
		t.mu.Lock()
		leaves := strings.Join(t.leaves, ", ")
		t.mu.Unlock()
		t.c.event(t.node, "start", corev1.EventTypeNormal, ReasonStarted, "%s empties it: leaving %s", t.why, leaves)
	case drain.Proven:
		t.c.event(t.node, e.Service, corev1.EventTypeNormal, ReasonProven, "%s out of %s after %s", e.Service, e.Hook, rounded(e.After))
	case drain.Relied:
		t.c.event(t.node, e.Service, corev1.EventTypeNormal, ReasonProven,
			"%s: the health check of %s takes the node out while the pods terminate", e.Service, e.Hook)
	case drain.NotProven:
		t.notProven(e)
	case drain.Warned:
		t.c.Log.Warn(e.Text, "node", t.node.Name)
	}
}

func (t *teller) planned(plan *guard.DrainPlan) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range plan.Services {
		s := &plan.Services[i]
		if slices.ContainsFunc(s.Findings, func(f guard.Finding) bool { return f.Code == guard.LosesLocalEndpoint }) {
			t.leaves = append(t.leaves, fmt.Sprintf("%s for %s", s.Balancer.Hook, s.Key()))
		}
	}
	if n := len(plan.Withdraw); n > 0 {
		t.leaves = append(t.leaves, fmt.Sprintf("the balancers of %d Services of policy Cluster", n))
	}
}

func (t *teller) notProven(e drain.NotProven) {
	if e.Accepted == acceptedEntry {
		return // no pod waits for it
	}
	t.mu.Lock()
	t.unproven = true
	t.mu.Unlock()
	t.c.event(t.node, e.Service, corev1.EventTypeWarning, ReasonUnproven,
		"%s: nobody can prove the node out of %s, evictions allowed after %s", e.Service, e.Hook, e.Settle)
}

// acceptedEntry is why a Service of policy Cluster goes on without a proof.
const acceptedEntry = "policy Cluster"

func (t *teller) outcome() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unproven {
		return "unproven"
	}
	return "proven"
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

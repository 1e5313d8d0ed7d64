package claim

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Version is the version of the annotation that this package writes, and the newest that it reads.
const Version = 1

// ErrNewer says that a claim was written in a version that this program does not know.
var ErrNewer = errors.New("written by a newer safedrain")

// Parse reads the annotation. It is lenient: unknown fields are left out and missing ones are zero, so that {"run":"x"}
// is a claim; a version above [Version] is ErrNewer.
func Parse(value string) (*Claim, error) {
	c := &Claim{}
	if err := json.Unmarshal([]byte(value), c); err != nil {
		return nil, fmt.Errorf("annotation %s is not a claim: %w", Annotation, err)
	}
	if c.V > Version {
		return nil, fmt.Errorf("annotation %s has version %d: %w; use that version of safedrain on this node", Annotation, c.V, ErrNewer)
	}
	c.V = Version
	return c, nil
}

// String is the value of the annotation.
func (c *Claim) String() string {
	w := *c
	w.V = Version
	if w.Set == nil {
		w.Set = []string{}
	}
	if w.Nodes == nil {
		w.Nodes = []string{}
	}
	if w.Prev == nil {
		w.Prev = map[string]string{}
	}
	// A Claim holds nothing that cannot be encoded.
	b, _ := json.Marshal(&w)
	return string(b)
}

// Of returns the claim on a node, nil when there is none. The error names the node.
func Of(node *corev1.Node) (*Claim, error) {
	value, ok := node.Annotations[Annotation]
	if !ok {
		return nil, nil
	}
	c, err := Parse(value)
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", node.Name, err)
	}
	return c, nil
}

// Live reports whether a run may still be working under the claim: it did not say that it ended.
func (c *Claim) Live() bool { return c.Ended == nil }

// Has reports whether the claim says that its runs set something.
func (c *Claim) Has(set string) bool { return slices.Contains(c.Set, set) }

// clone returns a copy that shares nothing with c.
func (c *Claim) clone() *Claim {
	w := *c
	w.Nodes, w.Set, w.Free = slices.Clone(c.Nodes), slices.Clone(c.Set), slices.Clone(c.Free)
	w.Prev, w.Services = maps.Clone(c.Prev), maps.Clone(c.Services)
	return &w
}

// Add records that the run sets something, with what stood there before ("" and false: nothing).
func (c *Claim) Add(set, prev string, had bool) {
	if c.Has(set) {
		return
	}
	c.Set = append(c.Set, set)
	slices.Sort(c.Set)
	if had {
		if c.Prev == nil {
			c.Prev = map[string]string{}
		}
		c.Prev[set] = prev
	}
}

// Remove forgets that something was set.
func (c *Claim) Remove(set string) {
	c.Set = slices.DeleteFunc(slices.Clone(c.Set), func(s string) bool { return s == set })
	delete(c.Prev, set)
}

// HookSet is the value of Claim.Set for a withdrawal by a call of a hook; service is namespace/name.
func HookSet(hook, service string) string { return "hook:" + hook + ":" + service }

// ParseHookSet is the inverse of [HookSet]; false for every other value of Claim.Set.
func ParseHookSet(set string) (hook, service string, ok bool) {
	rest, ok := strings.CutPrefix(set, "hook:")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ":")
}

// State is what a claim can set on a node.
type State struct {
	Cordoned bool
	Label    *string // value of the exclude label, nil when it is absent
}

// stateOf reads the state of a node.
func stateOf(node *corev1.Node) State {
	s := State{Cordoned: node.Spec.Unschedulable}
	if v, ok := node.Labels[lbhooks.ExcludeLabel]; ok {
		s.Label = &v
	}
	return s
}

package rolling

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Annotation is the key of the mark that a roll leaves on a Node from its turn until the whole roll is done.
const Annotation = "safedrain.dev/roll"

// Step is how far a node is.
type Step string

// A node without a mark waits. One that failed is begun again by the same command.
const (
	Waiting   Step = "waiting" // never in a mark
	Draining  Step = "draining"
	Running   Step = "running"   // the command
	Failed    Step = "failed"    // the command, or what came before it
	Returning Step = "returning" // the command succeeded; back into rotation, until every Service is covered again
	Done      Step = "done"
)

// markVersion is the version of the annotation.
const markVersion = 1

// Mark is the value of the annotation.
type Mark struct {
	V       int       `json:"v"`
	Roll    string    `json:"roll"`    // identity of the roll, the same over all its runs
	Started time.Time `json:"started"` // of the roll
	Holder  string    `json:"holder"`
	// Work stands for what the roll does: the nodes as they were chosen, the command, whether nodes return.
	Work string `json:"work"`
	Step Step   `json:"step"`
	Run  string `json:"run"` // the process that works at the node, and under whose name it claims it
	// Renewed is written again and again while that process lives, Ended when it ends in order.
	Renewed *time.Time `json:"renewed,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
	// Services are the endpoints that each Service of the node had before, by namespace/name.
	Services map[string]int `json:"services,omitempty"`
	// Complete stands on the last node of a roll once all are done: what is left of its marks means nothing any more.
	Complete bool `json:"complete,omitempty"`
}

var errNewer = errors.New("written by a newer safedrain")

// markOf reads the mark of a node; nil when there is none.
func markOf(node *corev1.Node) (*Mark, error) {
	value, ok := node.Annotations[Annotation]
	if !ok {
		return nil, nil
	}
	m := &Mark{}
	if err := json.Unmarshal([]byte(value), m); err != nil {
		return nil, fmt.Errorf("node %q: annotation %s is not a mark of a roll: %w; remove it if no roll is under way", node.Name, Annotation, err)
	}
	if m.V > markVersion {
		return nil, fmt.Errorf("node %q: annotation %s has version %d: %w", node.Name, Annotation, m.V, errNewer)
	}
	return m, nil
}

// String is the value of the annotation.
func (m *Mark) String() string {
	m.V = markVersion
	b, _ := json.Marshal(m) // a Mark holds nothing that cannot be encoded
	return string(b)
}

// order compares marks by when their rolls began.
func (m *Mark) order(o *Mark) int {
	return cmp.Or(m.Started.Compare(o.Started), cmp.Compare(m.Roll, o.Roll))
}

// atWork reports whether a process may be at work on the node: it has begun and did not say that it ended.
func (m *Mark) atWork() bool { return m.Step != Done && m.Ended == nil }

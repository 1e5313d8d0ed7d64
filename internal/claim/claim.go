// Package claim is the annotation safedrain.dev/drain on a Node: who drains it, how far the run is, and what was set.
// It is a contract between the command line, the gate and uncordon, and changes only with its v.
package claim

import (
	"time"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Annotation is the key of the claim on a Node.
const Annotation = lbhooks.AnnotationDrain

// AnnotationRefused on a Node is when the gate last refused an eviction there, in RFC 3339. It is rewritten at most once a
// minute.
const AnnotationRefused = "safedrain.dev/refused"

// Phase is how far a run is with a node.
type Phase string

// A ticket is claimed; granted once no earlier ticket stands against it; then withdrawn, proven; closing while it is undone.
const (
	Claimed   Phase = "claimed"
	Granted   Phase = "granted"
	Withdrawn Phase = "withdrawn"
	Proven    Phase = "proven"
	Closing   Phase = "closing"
)

// What a run can have set on a node; the values of Claim.Set, besides "hook:<name>:<ns>/<service>".
const (
	SetUnschedulable = "unschedulable"
	SetLabel         = "label"
)

// Claim is the value of the annotation, version 1.
type Claim struct {
	V        int                `json:"v"`
	Run      string             `json:"run"`
	Holder   string             `json:"holder"`
	Nodes    []string           `json:"nodes"`
	Phase    Phase              `json:"phase"`
	Set      []string           `json:"set"`
	Prev     map[string]string  `json:"prev"`               // what stood there before, by the names of Set; absent: nothing
	Services map[string]Service `json:"services,omitempty"` // by namespace/name
	// Free are the Services, as namespace/name and sorted, whose pods on the node never had to wait: the run judged that no
	// balancer sends to the node for them.
	Free []string `json:"free,omitempty"`
	// Renewed is written again and again while the run lives, so that whoever watches sees the claim change.
	Renewed *time.Time `json:"renewed,omitempty"`
	// Ended is set at every orderly end of a run that keeps its claim: the next run may take it up at once.
	Ended *time.Time `json:"ended,omitempty"`
}

// Service is a withdrawal recorded in a claim.
type Service struct {
	Hook    string     `json:"hook"`
	ProofAt *time.Time `json:"proofAt,omitempty"` // nil while it is not proven
	// Since is when the withdrawal began.
	Since *time.Time `json:"since,omitempty"`
	// Until is when the proof is given up; once it has come, or where none is to come, when the settle time will have passed.
	Until *time.Time `json:"until,omitempty"`
	// Unproven says that no proof is to come: that was accepted, and a time is waited for in its place.
	Unproven bool `json:"unproven,omitempty"`
	// Released says that the run let the Service's pods on the node go: proven, or accepted without a proof, and settled. Until then
	// nobody may evict them; the gate holds everybody to it.
	Released bool `json:"released,omitempty"`
}

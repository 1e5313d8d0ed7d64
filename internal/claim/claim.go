// Package claim is the annotation safedrain.dev/drain on a Node: who drains it, how far the run is, and what was set.
// It is a contract between the command line, the gate and uncordon, and changes only with its v.
package claim

import (
	"time"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Annotation is the key of the claim on a Node.
const Annotation = lbhooks.AnnotationDrain

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
	// Renewed is written again and again while the run lives, so that whoever watches sees the claim change.
	Renewed *time.Time `json:"renewed,omitempty"`
	// Ended is set at every orderly end of a run that keeps its claim: the next run may take it up at once.
	Ended *time.Time `json:"ended,omitempty"`
}

// Service is a withdrawal recorded in a claim.
type Service struct {
	Hook    string     `json:"hook"`
	ProofAt *time.Time `json:"proofAt,omitempty"` // nil while it is not proven
}

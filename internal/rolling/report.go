package rolling

import (
	"time"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// KindRollReport is the document of a roll.
const KindRollReport = "RollReport"

// Report is what a run of a roll did; its nodes are in the order of their turns.
type Report struct {
	APIVersion     string       `json:"apiVersion"`
	Kind           string       `json:"kind"`
	Roll           string       `json:"roll"`
	Resumed        bool         `json:"resumed"`
	MaxUnavailable int          `json:"maxUnavailable"`
	Outcome        string       `json:"outcome"` // done, refused, unfinished, hookFailed, interrupted, failed
	Error          string       `json:"error,omitempty"`
	Nodes          []NodeReport `json:"nodes"`
	// Steps are the parts of each node's turn in this run, by when they began: drain, run, return, cover. Their outcomes are
	// those of a DrainReport.
	Steps []guard.Step `json:"steps"`
	// Refused are the plans of nodes that guard refuses; only then, and then nothing was changed.
	Refused []guard.DrainPlan `json:"refused,omitempty"`
}

// NodeReport is one node of a roll.
type NodeReport struct {
	Name    string             `json:"name"`
	Step    Step               `json:"step"`
	Before  bool               `json:"before,omitempty"` // done by an earlier run of the same roll
	Deleted bool               `json:"deleted,omitempty"`
	Started *time.Time         `json:"started,omitempty"`
	Ended   *time.Time         `json:"ended,omitempty"`
	Error   string             `json:"error,omitempty"`
	Command *CommandReport     `json:"command,omitempty"`
	Drain   *guard.DrainReport `json:"drain,omitempty"`
	Back    *BackReport        `json:"back,omitempty"`
}

// CommandReport is how the command ended on a node.
type CommandReport struct {
	ExitCode int     `json:"exitCode"` // -1 when it was ended by a signal or could not be started
	Seconds  float64 `json:"seconds"`
	TimedOut bool    `json:"timedOut,omitempty"`
	Output   string  `json:"output,omitempty"` // its end, only where it failed
}

// BackReport is the way back of a node.
type BackReport struct {
	Services []string `json:"services"` // back in rotation, as namespace/name
	Warnings []string `json:"warnings"`
	StaysOut []string `json:"staysOut,omitempty"`
}

// Result is what a run returns. Err is nil exactly when Outcome is drain.Done.
type Result struct {
	Report  *Report
	Outcome drain.Outcome
	Err     error
	States  []drain.NodeState // what stands on the nodes that were begun and are not done; sorted by name
	Out     []string          // nodes that this run or an earlier one has left drained or half so; sorted
	Took    time.Duration
}

var outcomeNames = map[drain.Outcome]string{
	drain.Done: "done", drain.Failed: "failed", drain.Refused: "refused", drain.Unfinished: "unfinished",
	drain.HookFailed: "hookFailed", drain.Interrupted: "interrupted",
}

package guard

import (
	"cmp"
	"slices"
	"strings"
)

// Severity orders findings by what they do to the verdict.
type Severity string

// Block makes a verdict Unsafe, Unproven makes it Unproven; Warn and Info change nothing.
const (
	Info             Severity = "Info"
	Warn             Severity = "Warn"
	SeverityUnproven Severity = "Unproven"
	Block            Severity = "Block"
)

// Code is the stable name of a finding; docs/findings.md explains each.
type Code string

// The finding codes of the contract that this version can emit.
const (
	LosesLocalEndpoint   Code = "LosesLocalEndpoint"
	LastEndpoint         Code = "LastEndpoint"
	NoEligibleNode       Code = "NoEligibleNode"
	OtherNodeLoses       Code = "OtherNodeLoses"
	HookUnavailable      Code = "HookUnavailable"
	RotationUnproven     Code = "RotationUnproven"
	ExistingBlackhole    Code = "ExistingBlackhole"
	UnknownLocality      Code = "UnknownLocality"
	NeverLocal           Code = "NeverLocal"
	NotAdvertised        Code = "NotAdvertised"
	GraceTooShort        Code = "GraceTooShort"
	GraceIneffective     Code = "GraceIneffective"
	InternalLosesLocal   Code = "InternalLosesLocal"
	UnsupportedBalancer  Code = "UnsupportedBalancer"
	HookConflict         Code = "HookConflict"
	ZoneLosesLastBackend Code = "ZoneLosesLastBackend"
	BudgetNever          Code = "BudgetNever"
	BudgetMultiple       Code = "BudgetMultiple"
	BudgetBroken         Code = "BudgetBroken"
	BudgetExhausted      Code = "BudgetExhausted"
	BudgetHeld           Code = "BudgetHeld"
	UnmanagedPod         Code = "UnmanagedPod"
	LocalStorage         Code = "LocalStorage"
	DaemonSetPod         Code = "DaemonSetPod"
	DoNotEvict           Code = "DoNotEvict"
	FinalizerHeld        Code = "FinalizerHeld"
	NodeUnreachable      Code = "NodeUnreachable"
	NodeAlreadyLeaving   Code = "NodeAlreadyLeaving"
	GoesWithNode         Code = "GoesWithNode"
	ForgottenWithdrawal  Code = "ForgottenWithdrawal"
	PlacementPinned      Code = "PlacementPinned"
	SpreadMissing        Code = "SpreadMissing"
	SpreadCountsTainted  Code = "SpreadCountsTainted"
	RolloutDeadlock      Code = "RolloutDeadlock"
	RolloutEmptiesNode   Code = "RolloutEmptiesNode"
	ClientAddressHidden  Code = "ClientAddressHidden"
	NotGated             Code = "NotGated"
	HoldLimited          Code = "HoldLimited"
	ProbeDisagrees       Code = "ProbeDisagrees"
	BelowFloor           Code = "BelowFloor"
	ScaleEmptiesNode     Code = "ScaleEmptiesNode"
	AutoscalerBelowFloor Code = "AutoscalerBelowFloor"
	FloorUnreadable      Code = "FloorUnreadable"
	RolloutInProgress    Code = "RolloutInProgress"

	ReplacementUnschedulable Code = "ReplacementUnschedulable"
	HotSpot                  Code = "HotSpot"
)

// Finding is one thing the rules have to say. Of a Service there is one per code, with all its nodes; of pods and
// budgets one per pod or budget.
type Finding struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	Nodes    []string `json:"nodes,omitempty"`
	Pod      string   `json:"pod,omitempty"`    // namespace/name
	Budget   string   `json:"budget,omitempty"` // namespace/name
	Ports    []string `json:"ports,omitempty"`  // the ports concerned where not all are
	Message  string   `json:"message"`
	Advice   string   `json:"advice,omitempty"`
	Accept   string   `json:"accept,omitempty"` // the flag that would accept it; empty when nothing does
	Accepted bool     `json:"accepted,omitempty"`
}

// severityRank orders severities from harmless to blocking.
var severityRank = map[Severity]int{Info: 0, Warn: 1, SeverityUnproven: 2, Block: 3}

// AtLeast reports whether s is as grave as o or graver.
func (s Severity) AtLeast(o Severity) bool { return severityRank[s] >= severityRank[o] }

// sortFindings orders findings: gravest first, then by code and by what they are about.
func sortFindings(fs []Finding) {
	slices.SortStableFunc(fs, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(severityRank[b.Severity], severityRank[a.Severity]),
			strings.Compare(string(a.Code), string(b.Code)),
			strings.Compare(a.Budget, b.Budget),
			strings.Compare(a.Pod, b.Pod),
			slices.Compare(a.Nodes, b.Nodes),
		)
	})
}

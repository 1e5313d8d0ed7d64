package controlplane

import (
	_ "embed" // for the stages
)

// Annotations that tell kwok how a node or a pod behaves; the stages in this package's YAML files read them.
const (
	// Ready on a pod or a node: "false" keeps kwok from making it Ready; a running pod becomes unready.
	Ready = "test.safedrain.dev/ready"
	// ReadyAfter on a pod: the seconds from its binding until it is Ready.
	ReadyAfter = "test.safedrain.dev/ready-after"
	// TerminatesAfter on a pod: the seconds that it goes on serving after its deletion, at most its grace period, or
	// "never". It may end up to a second early. Without it a deleted pod vanishes at once.
	TerminatesAfter = "test.safedrain.dev/terminates-after"
)

var (
	//go:embed stages/node.yaml
	nodeStages string
	//go:embed stages/pod.yaml
	podStages string
)

// Stages returns the stages that kwok plays: nodes and pods that become Ready at once, and pods that end as their
// annotations say. More of them, as YAML documents, may be appended for Options.Stages.
func Stages() string { return nodeStages + "---\n" + podStages }

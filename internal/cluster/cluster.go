// Package cluster builds a guard.Index from a live API server or from manifest files.
//
// A [Snapshot] holds the objects as they were listed, trimmed to what the rules read. An [Index] is a view of it for one
// request: it implements guard.Index, builds the facts of a Service when it is asked for them, and hands matching its
// lbhooks.Objects.
package cluster

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Matcher finds the balancer of a Service; internal/hookset implements it.
type Matcher interface {
	// Match always answers: the zero Rotation with Rest Unknown and eligible when no balancer is known.
	Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation
	// Descriptions lists every hook and what it needs, sorted by name.
	Descriptions() []lbhooks.Description
}

// Scope says what a snapshot is for.
type Scope struct {
	Nodes     []string // list the pods of these nodes
	AllPods   bool     // list every pod (plan --each)
	Workloads bool     // list Deployments, StatefulSets and DaemonSets (audit)
	Namespace string   // list the Services and slices of this one alone, and no budgets (plan --scale); "": of all
	PageSize  int64    // objects of one page of a LIST; 0: the default, negative: all in one
	Hold      []string // Services that may be held, "namespace/name" or "all"; read only where one is on the nodes
	Placement bool     // read where the pods of the nodes could run again; only where some of a Local Service go
}

var (
	_ guard.Index     = (*Index)(nil)
	_ lbhooks.Objects = (*view)(nil)
)

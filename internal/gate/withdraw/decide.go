package withdraw

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Taints by which autoscalers say that they empty a node.
const (
	taintScaleDown = "ToBeDeletedByClusterAutoscaler"
	taintDisrupted = "karpenter.sh/disrupted"
)

// act is what is to be done about a node.
type act int

const (
	actNone act = iota
	actWithdraw
	actRelease // the node is out: its machine's drain may begin
	actReturn
	actTidy // a refusal that does not count any more is still noted
)

// decision is what is to be done about a node, and when to look again if nothing is.
type decision struct {
	act   act
	why   string // who empties the node, for people
	again time.Duration
}

// runOf is the identity of the gate's run on a node: the same for all who run after one another, another one for a node
// that was made anew under its name.
func runOf(node *corev1.Node) string { return "gate-" + string(node.UID) }

// decide looks at a node.
func (c *Controller) decide(node *corev1.Node) decision {
	held, err := claim.Of(node)
	if err != nil || held != nil && held.Run != runOf(node) {
		return decision{} // of a run that lives, or a matter for people
	}
	why := c.leaving(node, held)
	switch {
	case why != "" && node.Annotations[guard.AnnotationGate] == "off":
		return decision{}
	case why != "" && held != nil && c.isOut(node, held):
		if c.Machines != nil && c.Machines.Waits(node) {
			return decision{act: actRelease}
		}
		return decision{again: c.untilForgotten(node)}
	case why != "" && (held != nil || c.serves(node.Name)):
		return decision{act: actWithdraw, why: why}
	case why != "":
		return decision{}
	case held == nil:
		return c.withoutClaim(node)
	case node.Spec.Unschedulable && !held.Has(claim.SetUnschedulable):
		return decision{} // whoever cordoned it is not done with it
	case !node.Spec.Unschedulable:
		return decision{act: actReturn}
	}
	if left := c.kept(node, held); left > 0 {
		return decision{again: left}
	}
	return decision{act: actReturn}
}

// serves reports whether a node has endpoints of a Service whose evictions are refused.
func (c *Controller) serves(node string) (yes bool) {
	c.Store.Read(func(v *cluster.StoreView) {
		for svc := range v.ReachedServicesOn(node) {
			if !svc.Rotation.Nobody && (c.Wanted == nil || c.Wanted(v, svc)) {
				yes = true
				return
			}
		}
	})
	return yes
}

// leaving says who empties a node, "" for nobody.
func (c *Controller) leaving(node *corev1.Node, held *claim.Claim) string {
	for _, t := range node.Spec.Taints {
		switch t.Key {
		case taintScaleDown:
			return "cluster-autoscaler"
		case taintDisrupted:
			return "Karpenter"
		}
	}
	if node.DeletionTimestamp != nil {
		return "whoever deletes it" // Karpenter drains nodes that wait for its finalizer
	}
	if c.Machines != nil && c.Machines.Deleting(node) {
		return "Cluster API"
	}
	cordoned := node.Spec.Unschedulable && (held == nil || !held.Has(claim.SetUnschedulable))
	if cordoned && c.untilForgotten(node) > 0 {
		return "somebody whose eviction was refused"
	}
	return ""
}

// untilForgotten is for how long the last refusal on a node still counts; 0 when it does not.
func (c *Controller) untilForgotten(node *corev1.Node) time.Duration {
	at, ok := refusedAt(node)
	if !ok {
		return 0
	}
	return max(at.Add(c.Options.Keep).Sub(c.Clock.Now()), 0)
}

func refusedAt(node *corev1.Node) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, node.Annotations[claim.AnnotationRefused])
	return at, err == nil
}

// isOut reports whether the node is out of rotation for all that is known: proven, what was set still stands, and nobody
// was refused since.
func (c *Controller) isOut(node *corev1.Node, held *claim.Claim) bool {
	if held.Phase != claim.Proven || held.Live() || !node.Spec.Unschedulable {
		return false
	}
	if held.Has(claim.SetLabel) && node.Labels[lbhooks.ExcludeLabel] != "true" {
		return false
	}
	at, refused := refusedAt(node)
	return !refused || !at.After(*held.Ended)
}

// kept is for how long a node that stays is kept out for whoever tries again.
func (c *Controller) kept(node *corev1.Node, held *claim.Claim) time.Duration {
	last, _ := refusedAt(node)
	for _, at := range []*time.Time{held.Ended, held.Renewed} {
		if at != nil && at.After(last) {
			last = *at
		}
	}
	if held.Phase == claim.Closing {
		return 0 // its return has begun
	}
	return max(last.Add(c.Options.Keep).Sub(c.Clock.Now()), 0)
}

// withoutClaim is about a node on which the gate has nothing: it forgets old refusals.
func (c *Controller) withoutClaim(node *corev1.Node) decision {
	if _, noted := node.Annotations[claim.AnnotationRefused]; !noted {
		return decision{}
	}
	if left := c.untilForgotten(node); left > 0 {
		return decision{again: left}
	}
	return decision{act: actTidy}
}

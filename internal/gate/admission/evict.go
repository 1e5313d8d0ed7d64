package admission

import (
	"context"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// Reasons of answers that the rules have no part in.
const (
	evictNoService  = "NoLocalService" // no Service of policy Local in the namespace that the gate judges
	evictPodGone    = "PodGone"        // the pod, or the one of that UID
	evictNodeOff    = "NodeOff"        // the node bears safedrain.dev/gate=off
	evictOff        = "Off"            // whatever stands against it is not judged
	evictNotSynced  = "NotSynced"      // this replica has not read the cluster yet
	evictCannotRead = "CannotRead"     // the API server did not tell in time what the answer rests on
)

// retryAfter is what refusals ask clients to wait, in seconds: see docs/gate-evictions.md for what was measured.
const retryAfter = 1

// Evictions answers whether a pod may be evicted.
type Evictions struct {
	Store *cluster.Store
	Live  Live
	// Mode is the one of the cluster; a namespace or a Service may say otherwise.
	Mode Mode
	// Synced reports whether the Store shows the whole cluster.
	Synced func() bool
	// Refusals is told of each refusal that a withdrawal of the node can mend; never of a dry run.
	Refusals Refusals
}

// Refusals takes notes of refusals off the path of a request.
type Refusals interface {
	// Note says that an eviction on a node was refused. It does not block.
	Note(node string)
}

// Handler serves reviews of pods/eviction.
func (e *Evictions) Handler(s Serving) http.Handler {
	return &handler{Serving: s, resource: "pods/eviction", judge: e.judge}
}

// judge answers a review. Of pods that no Service of policy Local may need it reads nothing, so that the API server's
// state cannot hold them up.
func (e *Evictions) judge(ctx context.Context, req *admissionv1.AdmissionRequest) (*answer, error) {
	ask, err := evictionOf(req)
	if err != nil {
		return nil, err
	}
	if !e.Synced() {
		return e.unknown(e.Mode, evictNotSynced, "the gate has not read the cluster yet, try again"), nil
	}
	if !e.concerned(ask.pod.Namespace) {
		return allowed(evictNoService), nil
	}
	live := e.ahead(ctx, ask.pod)
	pod, err := live.Pod(ctx, ask.pod.Namespace, ask.pod.Name)
	switch {
	case apierrors.IsNotFound(err):
		return allowed(evictPodGone), nil
	case err != nil:
		return e.withoutPod(ask), nil //nolint:nilerr // the answer says what could not be read
	case ask.uid != "" && ask.uid != pod.UID:
		return allowed(evictPodGone), nil // the API server says so itself
	}
	return e.of(ctx, live, ask, guard.PodFactsOf(pod)), nil
}

// concerned reports whether the gate judges any Service of a namespace.
func (e *Evictions) concerned(namespace string) (yes bool) {
	e.Store.Read(func(v *cluster.StoreView) {
		for service := range v.Gates(namespace) {
			if yes = ModeOf(e.Mode, v.Gate(namespace), service) != Off; yes {
				return
			}
		}
	})
	return yes
}

// of answers for a pod that was read.
func (e *Evictions) of(ctx context.Context, live Live, ask *asked, pod guard.PodFacts) *answer {
	var serves bool
	e.Store.Read(func(v *cluster.StoreView) { serves = guard.Serves(pod, v) })
	if !serves {
		return e.verdict(ask, guard.Eviction{Pod: pod, Node: &guard.NodeFacts{Name: pod.Node}})
	}
	node, err := live.Node(ctx, pod.Node)
	switch {
	case apierrors.IsNotFound(err):
		return e.verdict(ask, guard.Eviction{Pod: pod})
	case err != nil:
		return e.withoutNode(ctx, live, ask, pod)
	case node.Annotations[guard.AnnotationGate] == string(Off):
		return allowed(evictNodeOff)
	}
	facts := cluster.NodeFacts(node)
	return e.verdict(ask, e.withCompany(ctx, live, guard.Eviction{Pod: pod, Node: &facts}))
}

// verdict asks the rules, and applies to each Service that stands against the eviction its mode.
func (e *Evictions) verdict(ask *asked, ev guard.Eviction) *answer {
	var v guard.EvictionVerdict
	var namespace string
	e.Store.Read(func(view *cluster.StoreView) {
		v, namespace = guard.JudgeEviction(ev, view), view.Gate(ask.pod.Namespace)
	})
	refusing, warning := e.sort(v.Blocks, namespace)
	switch {
	case len(refusing) > 0:
		if !ask.dryRun && mendable(refusing) {
			e.Refusals.Note(ev.Node.Name)
		}
		return refusal(ask.pod, refusing)
	case len(warning) > 0:
		return warned(string(warning[0].Reason), warnings(warning)...)
	case !v.Allow:
		return allowed(evictOff)
	}
	return allowed(string(v.Reason))
}

// sort parts the Services that stand against an eviction by their modes, those first that waiting mends last.
func (e *Evictions) sort(blocks []guard.EvictionBlock, namespace string) (refusing, warning []guard.EvictionBlock) {
	for _, b := range blocks {
		switch ModeOf(e.Mode, namespace, b.Gate) {
		case Enforce:
			refusing = append(refusing, b)
		case Warn:
			warning = append(warning, b)
		case Off:
		}
	}
	byGravity(refusing)
	byGravity(warning)
	return refusing, warning
}

// mendable reports whether a withdrawal of the node would let the eviction pass: it is about to go.
func mendable(blocks []guard.EvictionBlock) bool {
	for i := range blocks {
		if b := &blocks[i]; b.Cordoned || b.Leaving != guard.Stays || b.Claimed != nil {
			return true
		}
	}
	return false
}

// unknown is the answer where nothing can be known: an eviction comes again in seconds, and a blackhole is not undone.
func (e *Evictions) unknown(m Mode, reason, text string) *answer {
	switch m {
	case Enforce:
		return denied(http.StatusTooManyRequests, reason, fit(text), refusalDetails("", nil))
	case Warn:
		return warned(reason, "safedrain could not judge this eviction: "+text)
	case Off:
	}
	return allowed(evictOff)
}

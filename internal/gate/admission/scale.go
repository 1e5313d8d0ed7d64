package admission

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// ScalePolicy says what enforcing means for scale-downs.
type ScalePolicy string

// The policies. A workload object that is itself changed to fewer replicas is never clamped: deny takes the place of clamp.
const (
	ScaleClamp ScalePolicy = "clamp" // stops at the floor
	ScaleDeny  ScalePolicy = "deny"  // is refused below the floor
	ScaleWarn  ScalePolicy = "warn"  // passes, with a warning
	ScaleOff   ScalePolicy = "off"   // is not judged
)

// ScaleReason says why a scaling may or may not go on.
type ScaleReason string

// Reasons to let it pass unjudged.
const (
	ScaleIsOff ScaleReason = "Off"        // nobody wants it judged
	ScaleUp    ScaleReason = "Up"         // more replicas, or as many
	Rollout    ScaleReason = "Rollout"    // a ReplicaSet that its controller scales
	ToZero     ScaleReason = "ToZero"     // by a human, who means it
	NotBehind  ScaleReason = "NotBehind"  // behind no Service of policy Local
	NoWorkload ScaleReason = "NoWorkload" // it is gone
)

// Reasons of the judgement.
const (
	ScaleIsSafe ScaleReason = "Safe"
	BelowFloor  ScaleReason = "BelowFloor"
	EmptiesNode ScaleReason = "EmptiesNode" // the controller's choice of pods would empty a node: later, or never
	CannotJudge ScaleReason = "CannotJudge" // the API server did not tell, or not in time
)

// Scaler judges scale-downs.
type Scaler struct {
	Store     *cluster.Store
	Workloads Workloads
	// Mode is the one of the cluster; a namespace or a Service may say otherwise.
	Mode   Mode
	Policy ScalePolicy
	// Synced reports whether the Store shows the whole cluster.
	Synced func() bool
	Clock  clock.PassiveClock
	// Kept is told of every scale-down that was stopped at the floor, or would have been; never of a dry run. It must not block.
	Kept func(Kept)
}

// modeOf is the mode for a Service.
func (s *Scaler) modeOf(v *cluster.StoreView, svc *guard.ServiceFacts) Mode {
	return ModeOf(s.Mode, v.Gate(svc.Key.Namespace), svc.Gate)
}

// Kept is a scale-down that did not get what it asked for, or would not have.
type Kept struct {
	Resource       schema.GroupVersionResource
	Workload       guard.Key
	UID            types.UID
	Asked, Granted int32
	Why            string // "3 nodes send for Service shop/checkout"
	Warned         bool   // it got what it asked for
}

// scaling is one review about replicas.
type scaling struct {
	resource      schema.GroupVersionResource
	key           guard.Key
	uid           types.UID
	before, after int32
	selector      string
	rollout       bool
	human, dryRun bool
}

// scaleVerdict is the answer to a scaling.
type scaleVerdict struct {
	deny    string // the message of a refusal; "" where it passes
	warning string
	reason  ScaleReason
	clamped *int32 // what to store in place of what was asked for
	kept    *Kept  // to be told
}

func passes(r ScaleReason) scaleVerdict { return scaleVerdict{reason: r} }

// judge answers a scaling. What a mutating webhook stores in place of what was asked for comes as clamped where mayClamp
// allows it; else it is a refusal.
//
// Where the workload cannot be read, a scale-down is refused as long as a Service of policy Local of its namespace wants the
// gate to enforce: an autoscaler comes again in seconds, and nothing is lost meanwhile but the saving.
func (s *Scaler) judge(ctx context.Context, r *scaling, mayClamp bool) scaleVerdict {
	switch {
	case r.after >= r.before:
		return passes(ScaleUp)
	case r.rollout:
		return passes(Rollout)
	case s.Policy == ScaleOff:
		return passes(ScaleIsOff)
	case r.after == 0 && r.human:
		return passes(ToZero)
	}
	strictest, some := s.strictest(r.key.Namespace)
	switch {
	case !some:
		return passes(NotBehind)
	case strictest == Off:
		return passes(ScaleIsOff)
	case !s.Synced():
		return s.unknown(r, strictest, errors.New("the gate has not read the cluster yet"))
	}
	var gone *cluster.NoWorkload
	target, err := s.Workloads.Target(ctx, r.resource.GroupResource(), r.key, r.selector)
	switch {
	case errors.As(err, &gone):
		return passes(NoWorkload)
	case err != nil:
		return s.unknown(r, strictest, err)
	}
	if len(target.ReplicaSets) > 0 && target.Deployment == nil && metav1.GetControllerOfNoCopy(target.ReplicaSets[0]) != nil {
		return passes(Rollout)
	}
	target.Replicas = r.before
	return s.decide(r, target, mayClamp)
}

// strictest is the strictest mode of the Services of policy Local in a namespace; false when there is none. Before the store
// has read the cluster it is the cluster's own.
func (s *Scaler) strictest(namespace string) (Mode, bool) {
	if !s.Synced() {
		return s.Mode, true
	}
	out, some := Off, false
	s.Store.Read(func(v *cluster.StoreView) {
		of := v.Gate(namespace)
		for service := range v.Gates(namespace) {
			some = true
			if m := ModeOf(s.Mode, of, service); m.stricter(out) {
				out = m
			}
		}
	})
	return out, some
}

// unknown is the answer where nothing can be judged.
func (s *Scaler) unknown(r *scaling, m Mode, err error) scaleVerdict {
	text := fmt.Sprintf("%s cannot be judged, so it is not scaled down: %s; try again", r.title(), firstLine(err))
	if m != Enforce || s.Policy == ScaleWarn {
		return scaleVerdict{reason: CannotJudge, warning: "safedrain could not judge this scale-down: " + firstLine(err)}
	}
	return scaleVerdict{reason: CannotJudge, deny: text}
}

func firstLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

// title names the workload: "deployment shop/checkout".
func (r *scaling) title() string {
	return strings.TrimSuffix(r.resource.Resource, "s") + " " + r.key.String()
}

// decide judges twice: by the Services that enforce, which decides, and by those that only warn.
func (s *Scaler) decide(r *scaling, target *guard.ScaleTarget, mayClamp bool) (out scaleVerdict) {
	s.Store.Read(func(v *cluster.StoreView) {
		var enforced, all []*guard.ServiceFacts
		for _, svc := range target.Behind(behind(v, target)) {
			switch s.modeOf(v, svc) {
			case Enforce:
				enforced = append(enforced, svc)
				all = append(all, svc)
			case Warn:
				all = append(all, svc)
			case Off:
			}
		}
		if s.Policy == ScaleWarn {
			enforced = nil
		}
		if len(all) == 0 {
			out = passes(NotBehind)
			return
		}
		now := s.Clock.Now()
		target.Services = enforced
		if out = enforce(r, target, v, mayClamp && s.Policy == ScaleClamp, now); out.reason != ScaleIsSafe || len(all) == len(enforced) {
			return
		}
		target.Services = all
		out = warn(r, target, v, guard.JudgeScale(target, v, r.after, now))
	})
	return out
}

// behind lists what the store knows of the Services that may send to a workload.
func behind(v *cluster.StoreView, target *guard.ScaleTarget) iter.Seq[*guard.ServiceFacts] {
	var labels map[string]string
	if target.Template != nil {
		labels = target.Template.Labels
	}
	return v.Behind(target.Key.Namespace, labels, func(yield func(types.UID) bool) {
		for _, pod := range target.Pods {
			if !yield(pod.UID) {
				return
			}
		}
	})
}

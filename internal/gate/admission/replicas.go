package admission

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Replicas that a spec means when it does not say: a Scale leaves out its zero, and a workload gets one.
const (
	absentInScale    = 0
	absentInWorkload = 1
)

// Handlers serve the reviews about replicas, by their paths: a mutating webhook for Scales, a validating one for them, and a
// validating one for workloads.
func (s *Scaler) Handlers(serve Serving) map[string]http.Handler {
	return map[string]http.Handler{
		"/scale":       &handler{Serving: serve, resource: "scale", judge: s.mutate},
		"/scale/check": &handler{Serving: serve, resource: "scale", judge: s.check},
		"/replicas":    &handler{Serving: serve, resource: "replicas", judge: s.replicas},
	}
}

// mutate stores the floor where a scale-down asks for less and the policy is to clamp.
func (s *Scaler) mutate(ctx context.Context, req *admissionv1.AdmissionRequest) (*answer, error) {
	return s.review(ctx, req, absentInScale, true)
}

// check sees what is stored in the end, and refuses what mutate would have clamped or refused: somebody else's webhook may have
// come in between. It warns of nothing, which mutate has done.
func (s *Scaler) check(ctx context.Context, req *admissionv1.AdmissionRequest) (*answer, error) {
	a, err := s.review(ctx, req, absentInScale, false)
	if err == nil && a.decision == Warned {
		return allowed(a.reason), nil
	}
	return a, err
}

// replicas judges changes of a workload's own spec.replicas, which are not clamped: who applies it would find another number
// than applied, and apply it again.
func (s *Scaler) replicas(ctx context.Context, req *admissionv1.AdmissionRequest) (*answer, error) {
	return s.review(ctx, req, absentInWorkload, false)
}

func (s *Scaler) review(ctx context.Context, req *admissionv1.AdmissionRequest, absent int32, mayClamp bool) (*answer, error) {
	r, err := scalingOf(req, absent)
	if err != nil {
		return nil, err
	}
	v := s.judge(ctx, r, mayClamp)
	if v.kept != nil && !r.dryRun && s.Kept != nil {
		v.kept.Resource, v.kept.Workload, v.kept.UID = r.resource, r.key, r.uid
		s.Kept(*v.kept)
	}
	return v.answer(), nil
}

// answer words a verdict. A refusal is 403: what scales asks again by itself, and 409 or 429 would hold up its worker.
func (v *scaleVerdict) answer() *answer {
	switch {
	case v.deny != "":
		return denied(http.StatusForbidden, string(v.reason), v.deny, nil)
	case v.clamped != nil:
		return &answer{decision: Clamped, reason: string(v.reason), warnings: []string{v.warning}, patch: replicasPatch(*v.clamped)}
	case v.warning != "":
		return warned(string(v.reason), v.warning)
	}
	return allowed(string(v.reason))
}

// replicasPatch sets the replicas of a Scale. It adds them, since zero ones are absent.
func replicasPatch(n int32) []byte {
	return fmt.Appendf(nil, `[{"op":"add","path":"/spec/replicas","value":%d}]`, n)
}

// scalingOf reads a review of a Scale or of a workload.
func scalingOf(req *admissionv1.AdmissionRequest, absent int32) (*scaling, error) {
	after, err := decodeScaled(req.Object.Raw)
	if err != nil {
		return nil, bad(http.StatusBadRequest, "object: %v", err)
	}
	before, err := decodeScaled(req.OldObject.Raw)
	if err != nil {
		return nil, bad(http.StatusBadRequest, "oldObject: %v", err)
	}
	if req.Name == "" || req.Namespace == "" {
		return nil, bad(http.StatusBadRequest, "a review without a name or a namespace")
	}
	r := &scaling{
		resource: schema.GroupVersionResource{Group: req.Resource.Group, Version: req.Resource.Version, Resource: req.Resource.Resource},
		key:      guard.Key{Namespace: req.Namespace, Name: req.Name},
		uid:      after.Metadata.UID,
		before:   before.replicas(absent), after: after.replicas(absent),
		selector: after.selector(),
		human:    !machine(req.UserInfo.Username),
		dryRun:   req.DryRun != nil && *req.DryRun,
	}
	r.rollout = r.resource.Resource == "replicasets" && after.controlled()
	return r, nil
}

// controllerManager is the user of controllers that have no credentials of their own.
const controllerManager = "system:kube-controller-manager"

// machine reports whether a user is no human: an autoscaler scales to zero without meaning it.
func machine(user string) bool {
	return strings.HasPrefix(user, "system:serviceaccount:") || user == controllerManager
}

package admission

import (
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/safedrain/safedrain/pkg/guard"
)

// asked is what a review of an eviction asks.
type asked struct {
	pod    guard.Key
	uid    types.UID // the precondition, "" for none
	dryRun bool
}

// evictionOf reads a review. The body of an eviction is the same in policy/v1 and policy/v1beta1; cluster-autoscaler sends
// the latter.
func evictionOf(req *admissionv1.AdmissionRequest) (*asked, error) {
	evicts := req.Operation == admissionv1.Create && req.SubResource == "eviction" &&
		req.Resource.Group == "" && req.Resource.Resource == "pods"
	if !evicts {
		return nil, bad(http.StatusBadRequest, "%s of %s/%s: this path answers evictions of pods", req.Operation, req.Resource.Resource, req.SubResource)
	}
	k := req.Kind
	if k.Group != policyv1.GroupName || k.Kind != "Eviction" || k.Version != "v1" && k.Version != "v1beta1" {
		return nil, bad(http.StatusBadRequest, "object of kind %s: an eviction is an Eviction of policy/v1 or policy/v1beta1", k.String())
	}
	var eviction policyv1.Eviction
	if err := kjson.UnmarshalCaseSensitivePreserveInts(req.Object.Raw, &eviction); err != nil {
		return nil, bad(http.StatusBadRequest, "not JSON of an Eviction: %v", err)
	}
	a := &asked{pod: guard.Key{Namespace: req.Namespace, Name: req.Name}}
	if a.pod.Name == "" {
		a.pod.Name = eviction.Name
	}
	if a.pod.Name == "" || a.pod.Namespace == "" {
		return nil, bad(http.StatusBadRequest, "an eviction that names no pod")
	}
	// kubectl drain --dry-run=server says it in the body only, and the review then denies it.
	a.dryRun = req.DryRun != nil && *req.DryRun
	if o := eviction.DeleteOptions; o != nil {
		a.dryRun = a.dryRun || len(o.DryRun) > 0
		if o.Preconditions != nil && o.Preconditions.UID != nil {
			a.uid = *o.Preconditions.UID
		}
	}
	return a, nil
}

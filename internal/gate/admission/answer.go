package admission

import (
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Decisions, as metrics count them.
const (
	Allowed = "allow"
	Denied  = "deny"
	Clamped = "clamp"
	Warned  = "warn"
)

// answer is the answer to one review.
type answer struct {
	decision string
	reason   string         // of a closed set
	status   *metav1.Status // of a refusal
	warnings []string
	patch    []byte // JSON patch, where something else is stored than was asked for
}

// statusReasons are the reasons that go with the codes of a refusal. Clients read 404 and 409 as done and stop at others, so
// that nothing else is ever answered.
var statusReasons = map[int32]metav1.StatusReason{
	http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
	http.StatusForbidden:       metav1.StatusReasonForbidden,
}

// allowed lets a review pass.
func allowed(reason string) *answer { return &answer{decision: Allowed, reason: reason} }

// warned lets a review pass and says something to who asked.
func warned(reason string, warnings ...string) *answer {
	return &answer{decision: Warned, reason: reason, warnings: warnings}
}

// denied refuses with 429 or 403.
func denied(code int32, reason, message string, details *metav1.StatusDetails) *answer {
	return &answer{decision: Denied, reason: reason, status: &metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: statusReasons[code], Message: message, Details: details,
	}}
}

// response is the answer as the API server reads it.
func (a *answer) response(uid types.UID) *admissionv1.AdmissionResponse {
	r := &admissionv1.AdmissionResponse{UID: uid, Allowed: a.status == nil, Result: a.status, Warnings: a.warnings}
	if a.patch != nil {
		kind := admissionv1.PatchTypeJSONPatch
		r.Patch, r.PatchType = a.patch, &kind
	}
	return r
}

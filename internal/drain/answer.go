package drain

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// answerKind is what the API's answer to an eviction means for the pod.
type answerKind int

const (
	answerAccepted    answerKind = iota
	answerGone                   // no pod of that name
	answerConflict               // read the pod again
	answerHeld                   // by a budget: later
	answerDenied                 // by admission: later
	answerPassing                // a failure that may pass: later, but not for ever
	answerThrottled              // the API server asks everybody to slow down
	answerTerminating            // its namespace is being deleted: the pod will go by itself
	answerBadPod                 // this pod cannot be evicted, ever
	answerForbidden              // this user cannot evict
)

// answer is a classified answer.
type answer struct {
	kind  answerKind
	by    string        // who holds the pod, for people: "budget pay/ledger", "webhook x"
	what  string        // in the server's words
	after time.Duration // what the server asks to wait; 0: nothing
}

var (
	budgetName  = regexp.MustCompile(`[Tt]he disruption budget (\S+)`)
	webhookName = regexp.MustCompile(`(?:admission webhook|failed calling webhook) "([^"]+)"`)
	policyName  = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)'`)
)

// classify reads an answer. Who denies comes before the code: webhooks answer with any.
func classify(p *guard.PodPlan, err error) answer {
	if err == nil {
		return answer{kind: answerAccepted}
	}
	a := answer{what: err.Error()}
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		a.after = time.Duration(s) * time.Second
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		a.kind, a.by = answerPassing, "the connection to the API server"
		return a
	}
	if by := deniedBy(a.what); by != "" {
		a.kind, a.by = answerDenied, by
		return a
	}
	a.kind, a.by = byStatus(p, err, status.Status(), &a)
	return a
}

// deniedBy names the webhook or admission policy that an answer comes from, "" when it comes from neither.
func deniedBy(message string) string {
	if m := webhookName.FindStringSubmatch(message); m != nil {
		return "webhook " + m[1]
	}
	if m := policyName.FindStringSubmatch(message); m != nil {
		return "admission policy " + m[1]
	}
	return ""
}

func byStatus(p *guard.PodPlan, err error, s metav1.Status, a *answer) (answerKind, string) {
	switch {
	case apierrors.IsNotFound(err):
		return answerGone, ""
	case apierrors.IsConflict(err):
		return answerConflict, "a conflict with other writers"
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return answerHeld, budgetOf(p, s, a)
	case s.Code == 429:
		return answerThrottled, "the API server's request limit"
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return answerTerminating, "namespace " + p.Namespace + ", which is being deleted"
	case apierrors.IsUnauthorized(err):
		return answerForbidden, "the credentials"
	case apierrors.IsForbidden(err) && strings.Contains(s.Message, "cannot "):
		return answerForbidden, "RBAC"
	case apierrors.IsForbidden(err):
		return answerDenied, "an admission plugin"
	case s.Code == 500 && strings.Contains(s.Message, "more than one PodDisruptionBudget"):
		return answerBadPod, "more than one budget"
	case s.Code >= 500, apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return answerPassing, fmt.Sprintf("the API server (%d)", s.Code)
	}
	return answerBadPod, fmt.Sprintf("the API server (%d)", s.Code)
}

// budgetOf names the budget that an answer speaks of, and keeps the cause in place of the general message.
func budgetOf(p *guard.PodPlan, s metav1.Status, a *answer) string {
	if s.Details == nil {
		return "a budget"
	}
	for _, c := range s.Details.Causes {
		if c.Type != policyv1.DisruptionBudgetCause {
			continue
		}
		a.what = c.Message
		if m := budgetName.FindStringSubmatch(c.Message); m != nil {
			return "budget " + p.Namespace + "/" + m[1]
		}
	}
	return "a budget of namespace " + p.Namespace
}

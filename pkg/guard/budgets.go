package guard

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationBudget on a PodDisruptionBudget with the value "wait" says that an operator releases it once the node is
// cordoned.
const AnnotationBudget = "safedrain.dev/budget"

// builtinGroups own pods and budgets without an operator's logic of their own.
var builtinGroups = []string{"", "apps", "batch", "policy", "autoscaling"}

// judgeBudgets says what the budgets would answer to the evictions of a plan: one finding a budget, or a pod where
// two budgets stand on it. Pods that are not allowed to go now become Held.
func judgeBudgets(ix Index, pods []PodPlan, req *Request) []Finding {
	byNamespace := map[string][]*policyv1.PodDisruptionBudget{}
	byBudget := map[Key]*Finding{}
	var out []Finding
	for i := range pods {
		p := &pods[i]
		pod, ok := ix.Pod(p.UID)
		if !ok || p.Action != ActionEvict {
			continue
		}
		budgets, ok := byNamespace[p.Namespace]
		if !ok {
			budgets = slices.Collect(ix.Budgets(p.Namespace))
			byNamespace[p.Namespace] = budgets
		}
		answer := PredictEviction(pod, surged(pod, budgets, req.Surges))
		switch answer.Code {
		case http.StatusCreated:
		case http.StatusInternalServerError:
			p.Held = true
			out = append(out, multipleBudgets(pod, budgets))
		default:
			p.Held = true
			key := Key{answer.Budget.Namespace, answer.Budget.Name}
			finding := byBudget[key]
			if finding == nil {
				finding = budgetFinding(answer, pod, &req.Flags)
				byBudget[key] = finding
			}
			finding.Nodes = append(finding.Nodes, p.Node)
		}
	}
	for _, f := range byBudget {
		slices.Sort(f.Nodes)
		f.Nodes = slices.Compact(f.Nodes)
		out = append(out, *f)
	}
	return out
}

func multipleBudgets(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget) Finding {
	var names []string
	for _, b := range budgets {
		if selects(b, pod) {
			names = append(names, b.Name)
		}
	}
	slices.Sort(names)
	return Finding{
		Code: BudgetMultiple, Severity: Block, Pod: pod.Namespace + "/" + pod.Name,
		Message: "is under more than one PodDisruptionBudget: " + strings.Join(names, ", "),
		Advice:  "the eviction API answers 500 for ever; narrow the selector of one of them",
	}
}

func budgetFinding(a EvictionAnswer, pod *corev1.Pod, flags *Flags) *Finding {
	b := a.Budget
	name := b.Namespace + "/" + b.Name
	f := &Finding{Budget: name, Pod: "", Message: budgetNumbers(b) + ", holds " + pod.Name}
	why := cannotBeComputed(b)
	switch {
	case a.Processing:
		f.Code, f.Severity = BudgetExhausted, Warn
		f.Message = "the disruption controller has not seen its newest version yet"
		f.Advice = "the drain waits for it"
	case operatorReleases(b, pod, flags):
		f.Code, f.Severity = BudgetHeld, Warn
		f.Advice = "released by its operator once the node is cordoned; the drain waits, --timeout bounds the wait"
	case why != "" || a.Code == http.StatusForbidden:
		f.Code, f.Severity = BudgetBroken, Block
		if why == "" {
			why = "its status is inconsistent (disruptionsAllowed negative or too many disrupted pods)"
		}
		f.Message = "no eviction is allowed: " + why
		f.Advice = "mend the budget: use minAvailable as a number, or select pods whose owner has a scale"
		f.Accept = "--wait-budget=" + name
	case neverAllows(b):
		f.Code, f.Severity = BudgetNever, Block
		f.Advice = "raise the replicas or lower the budget; if an operator moves the pod once the node is cordoned, wait for it"
		f.Accept = "--wait-budget=" + name
	default:
		f.Code, f.Severity = BudgetExhausted, Warn
		f.Advice = "the drain waits until it allows one more; --timeout bounds the wait"
	}
	return f
}

// budgetNumbers says what a budget demands and has: "minAvailable 2 of 2 healthy".
func budgetNumbers(b *policyv1.PodDisruptionBudget) string {
	s := &b.Status
	switch {
	case b.Spec.MinAvailable != nil:
		return fmt.Sprintf("minAvailable %s: needs %d healthy of %d, has %d", b.Spec.MinAvailable, s.DesiredHealthy, s.ExpectedPods, s.CurrentHealthy)
	case b.Spec.MaxUnavailable != nil:
		return fmt.Sprintf("maxUnavailable %s: needs %d healthy of %d, has %d", b.Spec.MaxUnavailable, s.DesiredHealthy, s.ExpectedPods, s.CurrentHealthy)
	}
	return fmt.Sprintf("needs %d healthy of %d, has %d", s.DesiredHealthy, s.ExpectedPods, s.CurrentHealthy)
}

// operatorReleases reports whether somebody releases the budget once the node is cordoned: said by a flag or an
// annotation, or owned (budget or pod) by a custom resource. A budget that merely failed to compute is not held.
func operatorReleases(b *policyv1.PodDisruptionBudget, pod *corev1.Pod, flags *Flags) bool {
	if b.Annotations[AnnotationBudget] == "wait" || flags.waits(b.Namespace+"/"+b.Name) {
		return true
	}
	if cannotBeComputed(b) != "" {
		return false
	}
	return ownedByCustomResource(b.OwnerReferences) || ownedByCustomResource(pod.OwnerReferences)
}

func ownedByCustomResource(refs []metav1.OwnerReference) bool {
	return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool {
		group, _, found := strings.Cut(r.APIVersion, "/")
		if !found {
			group = "" // the core group is written without a name
		}
		return !slices.Contains(builtinGroups, group)
	})
}

package guard

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// HoldFacts is what a hold in one namespace has to know beyond every other judgement.
type HoldFacts struct {
	// Owners are the selectors of the ReplicaSets that own pods of the drained nodes, by the owner's UID.
	Owners map[types.UID]*metav1.LabelSelector
	// Policies are the NetworkPolicies of the whole cluster, sorted by key.
	Policies []*networkingv1.NetworkPolicy
	// Headless are the Services of the namespace that kube-proxy does not serve and that select pods, sorted by key.
	Headless []*corev1.Service
	// Denied are the permissions that a hold needs and the user lacks: "create endpointslices.discovery.k8s.io".
	Denied []string
}

// HoldIndex is an Index that was loaded for holds.
type HoldIndex interface {
	// HoldFacts returns what is known for a namespace; false when nothing was loaded for it.
	HoldFacts(namespace string) (*HoldFacts, bool)
}

// HoldPlan says how the pods of one Service are held on the drained nodes.
type HoldPlan struct {
	Label string   `json:"label"` // the key that is changed
	Exact bool     `json:"exact"` // the change can be undone exactly: no owner releases the pods
	Wait  string   `json:"wait"`  // the time of the balancer's check, a Go duration
	Pods  []string `json:"pods"`  // namespace/name, sorted

	uids map[types.UID]bool
}

// holding reports whether a pod of the Service on a node is held and not on its way out yet: whether its balancer has
// noticed by now nobody can tell.
func (j *judgement) holding(node string) bool {
	for _, pod := range j.holdable(node) {
		if _, held := HeldOf(pod); held {
			return true
		}
	}
	return false
}

// holdable lists the pods of the Service on a node that live: those that it selects, and those that it selected before
// they were held.
func (j *judgement) holdable(node string) []*corev1.Pod {
	var out []*corev1.Pod
	for pod := range j.ix.Pods(node) {
		if pod.Namespace == j.svc.Key.Namespace && !terminating(pod) && !Finished(pod) && Selects(j.svc.Selector, LabelsBefore(pod)) {
			out = append(out, pod)
		}
	}
	return out
}

// asksToHold reports whether the pods of the Service are to be held where nothing else helps, and whether somebody said
// so of this very Service.
func (j *judgement) asksToHold(out []string) (asked, named bool) {
	if j.svc.Hold || slices.ContainsFunc(out, j.holding) {
		return true, true
	}
	name := j.svc.Key.String()
	for _, pattern := range j.loss.Flags.Hold {
		named = named || pattern == name
		asked = asked || named || pattern == "all"
	}
	return asked, named
}

// hold plans to hold the pods of the Service on the nodes, if that was asked for. False means that nothing is settled by
// it; what stands against it is a finding then.
func (j *judgement) hold(out []string) bool {
	asked, named := j.asksToHold(out)
	r := &j.svc.Rotation
	if !asked || !named && r.HealthCheck == nil {
		return false
	}
	against := j.againstHold(out)
	var facts *HoldFacts
	if len(against) == 0 {
		var known bool
		if ix, ok := j.ix.(HoldIndex); ok {
			facts, known = ix.HoldFacts(j.svc.Key.Namespace)
		}
		if !known {
			against = []string{"its ReplicaSets and NetworkPolicies were not read"}
		}
	}
	if len(against) > 0 {
		j.limited(out, "cannot be held: "+strings.Join(against, "; "), "a preStop sleep that outlives the check, or a hook")
		return false
	}
	if len(facts.Denied) > 0 {
		j.unproven(HookUnavailable, out, "hold cannot work: may not "+strings.Join(facts.Denied, ", "),
			"safedrain rbac --hold | kubectl apply -f -", true)
		return true
	}
	return j.planHold(out, facts)
}

func (j *judgement) limited(nodes []string, message, advice string) {
	j.add(Finding{Code: HoldLimited, Severity: Warn, Nodes: nodes, Message: message, Advice: advice})
}

// againstHold lists what rules a hold out whatever label is chosen.
func (j *judgement) againstHold(out []string) []string {
	var why []string
	say := func(when bool, text string) {
		if when {
			why = append(why, text)
		}
	}
	r := &j.svc.Rotation
	say(r.FollowsServing, fmt.Sprintf("%s counts endpoints that serve, so a failing health check moves nothing", cmp.Or(r.Hook, "its announcer")))
	say(!r.FollowsServing && r.HealthCheck == nil, "nothing says that its balancer checks healthCheckNodePort: annotation safedrain.dev/health-check, hook health-check")
	say(j.svc.HealthCheckPort == 0, "it has no healthCheckNodePort")
	say(r.HealthCheck != nil && r.HealthCheck.Resets != "", resets(r.HealthCheck))
	say(j.svc.PublishNotReady, "publishNotReadyAddresses keeps the health check at 200")
	say(j.svc.Selectorless, "it has no selector")
	for _, node := range out {
		for _, pod := range j.holdable(node) {
			why = append(why, j.againstPod(pod)...)
		}
		why = append(why, j.foreignEndpoints(node)...)
	}
	slices.Sort(why)
	return slices.Compact(why)
}

func resets(hc *HealthCheck) string {
	if hc == nil {
		return ""
	}
	return hc.Resets
}

// againstPod says why a pod cannot be held.
func (j *judgement) againstPod(pod *corev1.Pod) []string {
	var why []string
	owner := metav1.GetControllerOf(pod)
	switch {
	case owner == nil, owner.Kind == "ReplicaSet" && strings.HasPrefix(owner.APIVersion, "apps/"):
	case owner.Kind == "DaemonSet":
		why = append(why, "DaemonSet "+owner.Name+" would start another pod on the node at once")
	case owner.Kind == "StatefulSet":
		why = append(why, "StatefulSet "+owner.Name+" would wait for the name of a pod that it has released")
	default:
		why = append(why, fmt.Sprintf("what %s %s makes of a changed label is not known", owner.Kind, owner.Name))
	}
	if !j.loss.Evicted[pod.UID] {
		why = append(why, "pod "+pod.Name+" is not evicted, and would keep the health check at 200 if it alone were not held")
	}
	return why
}

// foreignEndpoints names ready endpoints on a node behind which stands no pod of the Service's selector: they would keep
// the health check at 200.
func (j *judgement) foreignEndpoints(node string) []string {
	ours := map[types.UID]bool{}
	for _, pod := range j.holdable(node) {
		ours[pod.UID] = true
	}
	var why []string
	for i := range j.cover.ports {
		for _, e := range j.cover.ports[i].local[node].ready {
			if !ours[e.Pod] {
				why = append(why, fmt.Sprintf("endpoint %s on %s is no pod that could be held", e.Addr, node))
			}
		}
	}
	return why
}

// planHold chooses the label and settles the removal, or says what stands against every label.
func (j *judgement) planHold(out []string, facts *HoldFacts) bool {
	var pods []*corev1.Pod
	for _, node := range out {
		pods = append(pods, j.holdable(node)...)
	}
	choice, against := j.chooseLabel(pods, facts)
	if choice != nil && !j.loss.Flags.DisableEviction {
		against = append(against, j.budgetsShort(pods)...)
	}
	if len(against) > 0 {
		j.limited(out, "cannot be held: "+strings.Join(against, "; "),
			"a label of its own in the pod template and the Service's selector is the simplest to hold by")
		return false
	}
	hc := j.svc.Rotation.HealthCheck
	plan := &HoldPlan{Label: choice.key, Exact: choice.exact(), Wait: hc.Time().String(), uids: map[types.UID]bool{}}
	for _, pod := range pods {
		plan.Pods = append(plan.Pods, pod.Namespace+"/"+pod.Name)
		plan.uids[pod.UID] = true
	}
	slices.Sort(plan.Pods)
	j.plan.Hold = plan
	j.plan.Balancer.Removal = RemovalHold
	undo := "undone exactly"
	if !plan.Exact {
		undo = "goes only forward"
	}
	j.plan.Balancer.Evidence = fmt.Sprintf("hold: label %s of %d pods is changed (%s), the health check fails while they serve, for %s; %s",
		plan.Label, len(pods), undo, plan.Wait, hc)
	if named := choice.named(); named != "" {
		j.limited(out, "hold changes label "+plan.Label+": "+named, "")
	}
	j.plan.Findings = slices.DeleteFunc(j.plan.Findings, func(f Finding) bool { return f.Code == GraceTooShort })
	j.worsen(Withdraw)
	return true
}

// budgetsShort names the budgets that do not allow all pods that are to be held, on one node at a time unless the nodes
// are drained side by side. Pods that are held already were allowed.
func (j *judgement) budgetsShort(pods []*corev1.Pod) []string {
	budgets := slices.Collect(j.ix.Budgets(j.svc.Key.Namespace))
	type at struct {
		budget *policyv1.PodDisruptionBudget
		node   string
	}
	count, short := map[at]int{}, map[string]bool{}
	for _, pod := range pods {
		if _, held := HeldOf(pod); held {
			continue
		}
		answer := PredictEviction(pod, budgets)
		if answer.Budget == nil {
			continue
		}
		name := answer.Budget.Namespace + "/" + answer.Budget.Name
		if answer.Code != http.StatusCreated {
			short[fmt.Sprintf("budget %s allows no eviction of %s now", name, pod.Name)] = true
			continue
		}
		place := at{answer.Budget, pod.Spec.NodeName}
		if j.loss.Flags.Together {
			place.node = ""
		}
		if PodReady(pod) {
			count[place]++
		}
	}
	for place, n := range count {
		if allowed := int(place.budget.Status.DisruptionsAllowed); n > allowed {
			short[fmt.Sprintf("budget %s/%s allows %d of the %d pods that have to be held together",
				place.budget.Namespace, place.budget.Name, allowed, n)] = true
		}
	}
	return sortedKeys(short)
}

// Holds reports whether a pod is one of the plan's.
func (p *HoldPlan) Holds(uid types.UID) bool { return p != nil && p.uids[uid] }

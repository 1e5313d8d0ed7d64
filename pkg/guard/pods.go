package guard

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations by which autoscalers are asked to leave a pod alone, with the value that asks for it.
var doNotEvict = []struct{ key, value string }{
	{"cluster-autoscaler.kubernetes.io/safe-to-evict", "false"},
	{"karpenter.sh/do-not-disrupt", "true"},
	{"karpenter.sh/do-not-evict", "true"},
}

// benignFinalizers are removed by controllers of Kubernetes itself as soon as a pod has ended.
var benignFinalizers = []string{"batch.kubernetes.io/job-tracking", "foregroundDeletion"}

// judgePods decides what becomes of every pod on the nodes of a request, and says why where it is not evicted.
func judgePods(ix Index, req *Request) (plans []PodPlan, findings []Finding) {
	for _, node := range req.Nodes {
		for pod := range ix.Pods(node) {
			p, fs := judgePod(pod, ix, req)
			plans = append(plans, p)
			findings = append(findings, fs...)
		}
	}
	slices.SortFunc(plans, func(a, b PodPlan) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), a.Key().Compare(b.Key()))
	})
	return plans, findings
}

func judgePod(pod *corev1.Pod, ix Index, req *Request) (PodPlan, []Finding) {
	p := PodPlan{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName,
		Grace: graceOf(pod, req.Flags.GracePeriod),
	}
	owner := metav1.GetControllerOf(pod)
	daemon := owner != nil && owner.Kind == "DaemonSet" && ix.DaemonSetExists(Key{pod.Namespace, owner.Name})
	switch {
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		p.Action, p.Reason = ActionSkip, "mirror pod: it goes with the node"
		return p, nil
	case terminating(pod):
		p.Action, p.Waiting, p.Reason = ActionSkip, true, "already terminating: waited for"
		return p, finalizerFindings(pod)
	case req.SkipPod != nil && req.SkipPod(LabelsBefore(pod)):
		p.Action, p.Reason = ActionSkip, "left out by --pod-selector"
		return p, nil
	case Finished(pod):
		p.Action = req.removal()
		return p, finalizerFindings(pod)
	case daemon && req.Flags.IgnoreDaemonSets:
		p.Action, p.Reason = ActionSkip, "DaemonSet "+owner.Name+": it goes with the node"
		return p, nil
	}
	findings := refusals(pod, owner, daemon, &req.Flags)
	p.Action = req.removal()
	if len(findings) > 0 {
		p.Action, p.Reason = ActionRefuse, findings[0].Message
	}
	if f, ok := doNotEvictFinding(pod, req); ok {
		findings = append(findings, f)
		if f.Severity == Block && !f.Accepted && p.Action != ActionRefuse {
			p.Action, p.Reason = ActionRefuse, f.Message
		}
	}
	return p, append(findings, finalizerFindings(pod)...)
}

// removal is how pods are removed: by eviction, or by deletion with --disable-eviction.
func (r *Request) removal() Action {
	if r.Flags.DisableEviction {
		return ActionDelete
	}
	return ActionEvict
}

// refusals names what kubectl drain would refuse without its flag, all of it at once.
func refusals(pod *corev1.Pod, owner *metav1.OwnerReference, daemon bool, f *Flags) []Finding {
	name := pod.Namespace + "/" + pod.Name
	if daemon {
		return []Finding{{
			Code: DaemonSetPod, Severity: Block, Pod: name, Accept: "--ignore-daemonsets",
			Message: "managed by DaemonSet " + owner.Name + ", needs --ignore-daemonsets",
			Advice:  "a DaemonSet's pod comes back at once; it stays and goes with the node",
		}}
	}
	var out []Finding
	_, held := HeldOf(pod)
	if !f.Force {
		switch {
		case owner == nil && held: // released by its owner, which replaces it
		case owner == nil:
			out = append(out, Finding{
				Code: UnmanagedPod, Severity: Block, Pod: name, Accept: "--force",
				Message: "declares no controller, needs --force",
				Advice:  "nothing brings the pod back after its eviction",
			})
		case owner.Kind == "DaemonSet":
			out = append(out, Finding{
				Code: UnmanagedPod, Severity: Block, Pod: name, Accept: "--force",
				Message: "its DaemonSet " + owner.Name + " does not exist, needs --force",
				Advice:  "nothing brings the pod back after its eviction",
			})
		}
	}
	if !f.DeleteEmptyDirData && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }) {
		out = append(out, Finding{
			Code: LocalStorage, Severity: Block, Pod: name, Accept: "--delete-emptydir-data",
			Message: "has local storage (emptyDir), needs --delete-emptydir-data",
			Advice:  "what is in the emptyDir is lost with the pod",
		})
	}
	return out
}

func doNotEvictFinding(pod *corev1.Pod, req *Request) (Finding, bool) {
	for _, a := range doNotEvict {
		if pod.Annotations[a.key] != a.value {
			continue
		}
		name := pod.Namespace + "/" + pod.Name
		f := Finding{
			Code: DoNotEvict, Severity: Warn, Pod: name,
			Message: "annotation " + a.key + "=" + a.value + " asks to leave it alone",
			Advice:  "it is evicted all the same; --respect-do-not-evict refuses instead",
		}
		if req.Flags.RespectDoNotEvict {
			f.Severity = Block
			f.Advice = "leave out --respect-do-not-evict, or wait until the pod has ended"
			f.Accept = "--force-unsafe=pod/" + name
			f.Accepted = req.Flags.forces("pod/" + name)
		}
		return f, true
	}
	return Finding{}, false
}

func finalizerFindings(pod *corev1.Pod) []Finding {
	held := slices.DeleteFunc(slices.Clone(pod.Finalizers), func(f string) bool { return slices.Contains(benignFinalizers, f) })
	if len(held) == 0 {
		return nil
	}
	return []Finding{{
		Code: FinalizerHeld, Severity: Warn, Pod: pod.Namespace + "/" + pod.Name,
		Message: "stays until its finalizers are removed: " + strings.Join(held, ", "),
		Advice:  "the drain waits for their controllers; --timeout bounds the wait",
	}}
}

// graceOf is the time a pod has from its eviction to SIGKILL.
func graceOf(pod *corev1.Pod, override time.Duration) time.Duration {
	if override >= 0 {
		return override
	}
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return time.Duration(*g) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

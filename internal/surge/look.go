package surge

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Progress is how far the replica of a surge is.
type Progress struct {
	Ready bool
	Nodes []string // on which pods of the workload are Ready, of those that stay
	Why   string   // for what it waits
	// Refused says that the API server lets nothing be made: a quota or an admission plugin, which hardly ever passes.
	Refused bool
}

// Look says how far the replica is. It fails when somebody else has changed the number meanwhile.
func (b *Bringer) Look(ctx context.Context, r *Raised, away []string) (Progress, error) {
	now, err := b.read(ctx, r.Lever)
	if err != nil {
		return Progress{}, err
	}
	if now.mark == nil || now.mark.String() != r.Mark.String() || !now.stands() {
		return Progress{}, &Failed{Workload: r.Title(), Why: fmt.Sprintf("%s was set to %d meanwhile%s, which is left as it is",
			r.Lever.field(), now.number(), now.writer())}
	}
	pods, err := b.pods(ctx, r.Lever.Workload)
	if err != nil {
		return Progress{}, err
	}
	var p Progress
	ready := 0
	for _, pod := range pods {
		if pod.Spec.NodeName != "" && guard.PodReady(pod) && !slices.Contains(away, pod.Spec.NodeName) {
			ready++
			p.Nodes = append(p.Nodes, pod.Spec.NodeName)
		} else if !guard.PodReady(pod) {
			p.Why = cmp.Or(p.Why, pendingFor(pod))
		}
	}
	if p.Ready = ready > r.had; p.Ready {
		return p, nil
	}
	d, err := b.Client.AppsV1().Deployments(r.Lever.Workload.Namespace).Get(ctx, r.Lever.Workload.Name, metav1.GetOptions{})
	if err != nil {
		return Progress{}, fmt.Errorf("read %s: %w", r.Title(), err)
	}
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			p.Why, p.Refused = c.Message, true
		}
	}
	p.Why = cmp.Or(p.Why, "no further pod is there yet")
	return p, nil
}

// Patience is how long the Deployment gives its own pods to become Ready.
func (b *Bringer) Patience(ctx context.Context, r *Raised) int32 {
	d, err := b.Client.AppsV1().Deployments(r.Lever.Workload.Namespace).Get(ctx, r.Lever.Workload.Name, metav1.GetOptions{})
	if err != nil || d.Spec.ProgressDeadlineSeconds == nil {
		return defaultPatience
	}
	return *d.Spec.ProgressDeadlineSeconds
}

// defaultPatience is the API server's own default of progressDeadlineSeconds.
const defaultPatience = 600

// pendingFor says for what a pod waits that is not Ready.
func pendingFor(p *corev1.Pod) string {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("pod %s is not scheduled: %s", p.Name, c.Message)
		}
	}
	for i := range p.Status.ContainerStatuses {
		if w := p.Status.ContainerStatuses[i].State.Waiting; w != nil && w.Reason != "" {
			return fmt.Sprintf("pod %s: %s", p.Name, w.Reason)
		}
	}
	if p.Spec.NodeName == "" {
		return fmt.Sprintf("pod %s has no node yet", p.Name)
	}
	return fmt.Sprintf("pod %s on %s is not Ready", p.Name, p.Spec.NodeName)
}

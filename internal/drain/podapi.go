package drain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/safedrain/safedrain/pkg/guard"
)

// callWithin bounds one eviction: the server itself retries conflicts for about ten seconds.
const callWithin = 60 * time.Second

// remove asks for the eviction of a pod, or deletes it past its budgets. The UID is a precondition. The client does not
// retry by itself: an answer with Retry-After comes back as it is.
func (d *run) remove(ctx context.Context, p *guard.PodPlan) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	opts := d.deleteOptions(p)
	if p.Action == guard.ActionDelete {
		return d.Client.CoreV1().RESTClient().Delete().
			Namespace(p.Namespace).Resource("pods").Name(p.Name).
			Body(opts).MaxRetries(0).Do(ctx).Error()
	}
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: opts,
	}
	return d.Client.PolicyV1().RESTClient().Post().AbsPath("/api/v1").
		Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("eviction").
		VersionedParams(&metav1.CreateOptions{DryRun: opts.DryRun}, scheme.ParameterCodec).
		Body(eviction).MaxRetries(0).Do(ctx).Error()
}

// deleteOptions carry a grace period only if one was asked for.
func (d *run) deleteOptions(p *guard.PodPlan) *metav1.DeleteOptions {
	uid := p.UID
	opts := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if grace := d.opts.GracePeriod; grace >= 0 {
		opts.GracePeriodSeconds = &grace
	}
	if d.opts.DryRun == DryRunServer {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	return opts
}

// read reads a pod anew, after an answer that leaves open which pod bears the name now.
func (d *run) read(ctx context.Context, p *guard.PodPlan) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	return d.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
}

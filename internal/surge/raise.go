package surge

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// conflictTries bounds the retries of one patch; each of them reads the object anew.
const conflictTries = 10

// Raised is a surge that stands.
type Raised struct {
	Lever Lever
	Mark  Mark
	Taken bool // of an earlier run, taken over
	had   int  // Ready pods on nodes that stay, before
}

// Title names the workload: "deployment shop/web".
func (r *Raised) Title() string { return r.Lever.Title() }

// Raise raises the number by one and writes what it was beside it, in one patch. A surge of an earlier run that stands is
// taken over as it is. away are the nodes that are drained.
func (b *Bringer) Raise(ctx context.Context, l Lever, away []string) (*Raised, error) {
	for range conflictTries {
		r, err := b.read(ctx, l)
		if err != nil {
			return nil, err
		}
		ready, on, err := b.count(ctx, l.Workload, away)
		if err != nil {
			return nil, err
		}
		out := &Raised{Lever: l, had: ready}
		c := change{number: true}
		if r.stands() {
			out.Taken, out.had = true, max(0, int(r.mark.To)-1-on)
			out.Mark = Mark{r.mark.From, r.mark.To, runPart(b.Run)}
			c.number = false
		} else {
			to, err := b.oneMore(ctx, r)
			if err != nil {
				return nil, err
			}
			out.Mark = Mark{r.value, to, runPart(b.Run)}
			c.value = &to
		}
		c.mark = &out.Mark
		if err = b.write(ctx, r, c); err == nil {
			return out, nil
		}
		if !apierrors.IsConflict(err) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s changed %d times in a row under the patch", l, conflictTries)
}

// Standing returns the surge of a lever that stands; nil when none does.
func (b *Bringer) Standing(ctx context.Context, l Lever) (*Mark, error) {
	r, err := b.read(ctx, l)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return r.mark, nil
}

// oneMore is the number to which a lever is raised: one more replica than the Deployment wants now.
func (b *Bringer) oneMore(ctx context.Context, r *reading) (int64, error) {
	if r.lever.Kind == kindDeployment {
		return r.number() + 1, nil
	}
	d, err := b.Client.AppsV1().Deployments(r.lever.Workload.Namespace).Get(ctx, r.lever.Workload.Name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", r.lever.Title(), err)
	}
	w := workload{deployment: d}
	to := max(int64(w.replicas()), r.number()) + 1
	if r.most > 0 && to > r.most {
		return 0, fmt.Errorf("%s/%s of %s is at its largest number, %d: raise it by one", r.lever.Kind, r.lever.Name, r.lever.Title(), r.most)
	}
	return to, nil
}

// count counts the Ready pods of a Deployment on nodes that stay, and its pods on those that do not.
func (b *Bringer) count(ctx context.Context, key guard.Key, away []string) (ready, on int, err error) {
	pods, err := b.pods(ctx, key)
	if err != nil {
		return 0, 0, err
	}
	for _, p := range pods {
		switch {
		case slices.Contains(away, p.Spec.NodeName):
			on++
		case p.Spec.NodeName != "" && guard.PodReady(p):
			ready++
		}
	}
	return ready, on, nil
}

// pods lists the pods of a Deployment that neither end nor have ended.
func (b *Bringer) pods(ctx context.Context, key guard.Key) ([]*corev1.Pod, error) {
	d, err := b.Client.AppsV1().Deployments(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read deployment %s: %w", key, err)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector of deployment %s: %w", key, err)
	}
	all, err := cluster.PodsBy(ctx, b.Client, key.Namespace, selector)
	if err != nil {
		return nil, fmt.Errorf("list the pods of deployment %s: %w", key, err)
	}
	return slices.DeleteFunc(all, func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil || guard.Finished(p) || metav1.GetControllerOf(p) == nil
	}), nil
}

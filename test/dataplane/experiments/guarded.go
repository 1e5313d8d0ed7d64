package experiments

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

const (
	// returnWithin is how long the gate may take to put a node back: 35 s in which evictions that it let go may still be
	// carried out, and what pods and balancers take.
	returnWithin = 2 * time.Minute
	// scaleWithin is how long an autoscaler tries, which a refusal makes come again.
	scaleWithin = time.Minute
)

// afterGate checks what the gate let go, and has it put the node back, for which an uncordon is all that somebody does. In
// the short form requests are counted for a while, and the node is left to the next reset.
func (s *scene) afterGate(ctx context.Context, a *acted, node string) error {
	if err := s.released(ctx, a, node); err != nil {
		return err
	}
	if s.short {
		return pause(ctx, afterReturn)
	}
	if err := s.uncordon(ctx, a, results.Kubectl, node); err != nil {
		return err
	}
	if err := s.podsOn(ctx, node); err != nil {
		return fmt.Errorf("%w: %w", errDiscard, err)
	}
	err := controlplane.Poll(ctx, returnWithin, "the gate puts "+node+" back", func(ctx context.Context) (bool, string, error) {
		object, err := s.lab.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		value, claimed := object.Annotations[claim.Annotation]
		return !claimed && object.Labels[corev1.LabelNodeExcludeBalancers] == "", value, nil
	})
	if err != nil {
		a.problem("%v", err)
	} else {
		a.note("the gate has put %s back", node)
	}
	return pause(ctx, afterReturn)
}

// released checks that the gate let no pod go before its balancer was proven not to send to the node.
func (s *scene) released(ctx context.Context, a *acted, node string) error {
	object, err := s.lab.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	c, err := claim.Of(object)
	if err != nil {
		return err
	}
	if c == nil {
		a.problem("the gate has not claimed %s", node)
		return nil
	}
	for _, w := range s.subjects {
		entry := c.Services[s.namespace+"/"+w.app]
		if entry.ProofAt == nil || !entry.Released {
			a.problem("%s is not proven out of %s", w.name(), entry.Hook)
			continue
		}
		a.note("%s left %s by %s: proven %.0f s after the drain began", w.name(), node, entry.Hook, entry.ProofAt.Sub(a.drains[0].began).Seconds())
		for _, pod := range s.watcher.on(w.pods, node, a.drains[0].began) {
			if !pod.deleted.IsZero() && pod.deleted.Before(*entry.ProofAt) {
				a.problem("a pod of %s was evicted before the proof", w.app)
			}
		}
	}
	return nil
}

// autoscale scales every workload as an autoscaler does: by its scale, and again where that is refused.
func (s *scene) autoscale(ctx context.Context, a *acted, replicas int) error {
	for _, app := range s.apps() {
		refused := ""
		err := controlplane.Poll(ctx, scaleWithin, "scale "+app, func(ctx context.Context) (bool, string, error) {
			deployments := s.lab.Client.AppsV1().Deployments(s.namespace)
			scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: app}}
			scale.Spec.Replicas = int32(replicas)
			got, err := deployments.UpdateScale(ctx, app, scale, metav1.UpdateOptions{})
			if apierrors.IsForbidden(err) {
				refused = err.Error()
				return false, refused, nil
			}
			if err == nil && got.Spec.Replicas != scale.Spec.Replicas {
				return false, "", fmt.Errorf("%d replicas are stored", got.Spec.Replicas)
			}
			return err == nil, "", err
		})
		if refused != "" {
			a.note("the gate refused to scale %s: %s", app, refused)
		}
		if err != nil {
			a.problem("%v", err)
			continue
		}
		a.note("%s scaled to %d replicas", app, replicas)
	}
	return nil
}

// covered looks which nodes still have a Ready pod of each subject. With the gate each that had one has.
func (s *scene) covered(ctx context.Context, a *acted) error {
	_, nodes := s.round.pods()
	var errs []error
	for _, w := range s.subjects {
		on, err := s.served(ctx, w)
		errs = append(errs, err)
		a.note("%s has an endpoint on %v", w.name(), on)
		if a.tool == results.Gate && len(on) != nodes {
			a.problem("%s has an endpoint on %v alone", w.name(), on)
		}
	}
	return errors.Join(errs...)
}

// served lists the nodes with a Ready endpoint of a subject, sorted.
func (s *scene) served(ctx context.Context, w *watched) ([]string, error) {
	endpoints, err := s.lab.Endpoints(ctx, s.namespace, w.app)
	var on []string
	for i := range endpoints {
		if e := &endpoints[i]; e.NodeName != nil && e.Conditions.Ready != nil && *e.Conditions.Ready {
			on = append(on, *e.NodeName)
		}
	}
	slices.Sort(on)
	return slices.Compact(on), err
}

package experiments

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// shrinksWithin is how long a ReplicaSet may take to end the pod that a surge has no more use for.
const shrinksWithin = 20 * time.Second

// autoscalers makes an autoscaler for each subject that has one. It has no metrics, so that it only keeps to its bounds, and
// none of it counts while its Deployment has no replicas.
func (s *scene) autoscalers(ctx context.Context) error {
	var errs []error
	for _, w := range s.subjects {
		if !w.Autoscaled {
			continue
		}
		least := int32(1)
		_, err := s.lab.Client.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: w.pods},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: w.pods},
				MinReplicas:    &least, MaxReplicas: 2,
			},
		}, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// surge drains the node with the only pods, and checks that safedrain leaves the workloads as they were.
func (s *scene) surge(ctx context.Context, a *acted) error {
	before, err := s.sizes(ctx)
	if err != nil {
		return err
	}
	if err := s.drainOne(ctx, a); err != nil || a.tool == results.Kubectl {
		return err
	}
	for _, app := range s.apps() {
		if err := s.shrunk(ctx, app); err != nil {
			a.problem("%v", err)
		}
	}
	after, err := s.sizes(ctx)
	if err != nil {
		return err
	}
	for app := range before {
		if diff := cmp.Diff(before[app], after[app]); diff != "" {
			a.problem("%s is not what it was: %s", app, diff)
		}
	}
	return nil
}

// size is what a surge may change of a workload.
type size struct {
	Deployment          appsv1.DeploymentSpec
	Labels, Annotations map[string]string
	Autoscaler          *autoscalingv2.HorizontalPodAutoscalerSpec
	AutoscalerLabels    map[string]string
}

// sizes are those of all workloads.
func (s *scene) sizes(ctx context.Context) (map[string]size, error) {
	out := map[string]size{}
	for _, app := range s.apps() {
		d, err := s.lab.Client.AppsV1().Deployments(s.namespace).Get(ctx, app, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		now := size{Deployment: d.Spec, Labels: d.Labels, Annotations: d.Annotations}
		h, err := s.lab.Client.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).Get(ctx, app, metav1.GetOptions{})
		switch {
		case err == nil:
			now.Autoscaler, now.AutoscalerLabels = &h.Spec, h.Labels
		case !apierrors.IsNotFound(err):
			return nil, err
		}
		out[app] = now
	}
	return out, nil
}

// shrunk waits until a workload has the pods that its round gives it and no others, none of them marked to go first.
func (s *scene) shrunk(ctx context.Context, app string) error {
	what := fmt.Sprintf("%d pods of %s", s.round.replicas(), app)
	return controlplane.Poll(ctx, shrinksWithin, what, func(ctx context.Context) (bool, string, error) {
		list, err := s.lab.Client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: dataplane.AppLabel + "=" + app})
		if err != nil {
			return false, "", err
		}
		marked := 0
		for i := range list.Items {
			if _, ok := list.Items[i].Annotations[corev1.PodDeletionCost]; ok {
				marked++
			}
		}
		return len(list.Items) == s.round.replicas() && marked == 0, fmt.Sprintf("%d pods, %d of them with a deletion cost", len(list.Items), marked), nil
	})
}

package keeper

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

const (
	readsAtOnce = 8
	// listFrom is the number of pods of one Service from which one LIST by its selector is cheaper than a GET for each.
	listFrom = 16
	pageSize = 500
)

// read reads the pods of some places of one namespace, live: those that are missing in the answer are gone.
func (c *Controller) read(ctx context.Context, work []placeWork) (map[types.UID]*corev1.Pod, error) {
	wanted := map[types.UID]guard.Key{}
	perService := map[string]int{}
	for i := range work {
		maps.Copy(wanted, work[i].keys)
		for _, s := range work[i].serving {
			perService[s.Service] += len(s.Pods)
		}
	}
	found := map[types.UID]*corev1.Pod{}
	namespace := work[0].namespace
	for _, name := range slices.Sorted(maps.Keys(perService)) {
		if perService[name] < listFrom {
			continue
		}
		if err := c.list(ctx, guard.Key{Namespace: namespace, Name: name}, wanted, found); err != nil {
			return nil, err
		}
	}
	return found, c.get(ctx, wanted, found)
}

// list reads pods by the selector of their Service, page by page, and keeps those that are wanted.
func (c *Controller) list(ctx context.Context, service guard.Key, wanted map[types.UID]guard.Key, found map[types.UID]*corev1.Pod) error {
	var selector map[string]string
	c.Store.Read(func(v *cluster.StoreView) {
		if svc, ok := v.Service(service); ok {
			selector = maps.Clone(svc.Selector)
		}
	})
	if len(selector) == 0 {
		return nil
	}
	opts := metav1.ListOptions{LabelSelector: labels.SelectorFromSet(selector).String(), Limit: pageSize}
	for {
		page, err := c.Client.CoreV1().Pods(service.Namespace).List(ctx, opts)
		switch {
		case apierrors.IsResourceExpired(err) && opts.Continue != "":
			return nil // what is missing is read one by one
		case err != nil:
			return fmt.Errorf("list the pods of %s: %w", service, err)
		}
		for i := range page.Items {
			pod := &page.Items[i]
			if _, ok := wanted[pod.UID]; ok {
				found[pod.UID] = slim(pod)
			}
		}
		if page.Continue == "" {
			return nil
		}
		opts.Continue = page.Continue
	}
}

// get reads the pods that are still missing one by one.
func (c *Controller) get(ctx context.Context, wanted map[types.UID]guard.Key, found map[types.UID]*corev1.Pod) error {
	missing := maps.Clone(wanted)
	maps.DeleteFunc(missing, func(uid types.UID, _ guard.Key) bool { return found[uid] != nil })
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for uid, key := range missing {
		group.Go(func() error {
			return safely.Call(func() error {
				pod, err := c.one(ctx, key, uid)
				if err != nil || pod == nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				found[uid] = slim(pod)
				return nil
			})
		})
	}
	return group.Wait()
}

// one reads a pod; nil when it is gone, be it that another one bears its name.
func (c *Controller) one(ctx context.Context, key guard.Key, uid types.UID) (*corev1.Pod, error) {
	pod, err := c.Client.CoreV1().Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read pod %s: %w", key, err)
	case pod.UID != uid:
		return nil, nil
	}
	return pod, nil
}

// slim keeps of a pod what the marks need.
func slim(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			DeletionTimestamp: pod.DeletionTimestamp, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences,
			Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]},
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, Conditions: pod.Status.Conditions, PodIP: pod.Status.PodIP},
	}
}

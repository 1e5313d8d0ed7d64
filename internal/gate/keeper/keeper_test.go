package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
)

// pair is two pods of a Service on a node, as the store and the API server have them.
func pair() (*cluster.Store, *fake.Clientset) {
	store := cluster.NewStore(hookset.New(hookset.Deps{}))
	ready := corev1.ConditionTrue
	store.SetNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	})
	store.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, ClusterIP: "10.96.0.1",
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}},
		},
	})
	port, unnamed, node, yes := int32(8080), "", "n", true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &unnamed, Port: &port}},
	}
	var pods []runtime.Object
	for _, name := range []string{"a", "b"} {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		})
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{"10.0.0." + map[string]string{"a": "1", "b": "2"}[name]}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: name, UID: types.UID(name)},
		})
	}
	store.SetSlice(slice)
	return store, fake.NewClientset(pods...)
}

// TestReadsAtOnce: pods are read side by side and land in one map; without a lock around each look at it the runtime ends the
// process.
func TestReadsAtOnce(t *testing.T) {
	wanted := map[types.UID]guard.Key{}
	var pods []runtime.Object
	for i := range 500 {
		name := fmt.Sprintf("p-%d", i)
		wanted[types.UID(name)] = guard.Key{Namespace: "shop", Name: name}
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}})
	}
	c := &Controller{Client: fake.NewClientset(pods...)}
	found := map[types.UID]*corev1.Pod{}
	if err := c.get(t.Context(), wanted, found); err != nil || len(found) != len(wanted) {
		t.Errorf("%d of %d pods were read: %v", len(found), len(wanted), err)
	}
}

// TestMarksComeInTime: whatever happens on the way, marks come seconds after they can, and a fault costs one attempt.
func TestMarksComeInTime(t *testing.T) {
	conflict := apierrors.NewConflict(corev1.Resource("pods"), "a", context.Canceled)
	unready := func(c *fake.Clientset, is corev1.ConditionStatus) {
		pod, _ := c.CoreV1().Pods("shop").Get(context.Background(), "b", metav1.GetOptions{})
		pod.Status.Conditions[0].Status = is
		_, _ = c.CoreV1().Pods("shop").UpdateStatus(context.Background(), pod, metav1.UpdateOptions{})
	}
	fails := func(verb string, times int, answer func() error) func(*fake.Clientset) {
		return func(c *fake.Clientset) {
			c.PrependReactor(verb, "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				if times--; times >= 0 {
					return true, nil, answer()
				}
				return false, nil, nil
			})
		}
	}
	for name, tc := range map[string]struct {
		before func(*fake.Clientset)
		later  func(*fake.Clientset) // after 20 seconds
		within time.Duration
	}{
		"nothing in the way":             {within: 2 * time.Second},
		"others write the pod meanwhile": {before: fails("patch", 5, func() error { return conflict }), within: 8 * time.Second},
		"a read panics":                  {before: fails("get", 1, func() error { panic("a fault") }), within: 5 * time.Second},
		"not Ready for a moment that no slice shows": {
			before: func(c *fake.Clientset) { unready(c, corev1.ConditionFalse) },
			later:  func(c *fake.Clientset) { unready(c, corev1.ConditionTrue) },
			within: 32 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, client := pair()
				if tc.before != nil {
					tc.before(client)
				}
				scheme := metadatafake.NewTestScheme()
				if err := metav1.AddMetaToScheme(scheme); err != nil {
					t.Fatal(err)
				}
				c := &Controller{
					Client: client, Metadata: metadatafake.NewSimpleMetadataClient(scheme), Store: store, Log: slog.New(slog.DiscardHandler),
					Clock: clock.RealClock{}, Options: Defaults(),
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- c.Run(ctx) }()
				if tc.later != nil {
					time.Sleep(20 * time.Second)
					tc.later(client)
					tc.within -= 20 * time.Second
				}
				time.Sleep(tc.within)
				marks := 0
				list, err := client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for i := range list.Items {
					if list.Items[i].Annotations[guard.AnnotationKeeper] != "" {
						marks++
					}
				}
				if marks != 1 {
					t.Errorf("%d marks after %s", marks, tc.within)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

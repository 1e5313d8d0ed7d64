package controlplane

import (
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Slices returns the EndpointSlices of a Service.
func (e *Env) Slices(ctx context.Context, service string) ([]discoveryv1.EndpointSlice, error) {
	list, err := e.Client.DiscoveryV1().EndpointSlices(e.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// EndpointsReady waits until the slices of a Service have n ready endpoints.
func (e *Env) EndpointsReady(service string, n int) {
	e.Helper()
	e.Wait(fmt.Sprintf("%d endpoints of %s ready", n, service), func(ctx context.Context) (bool, string, error) {
		ready := 0
		slices, err := e.Slices(ctx, service)
		for i := range slices {
			for j := range slices[i].Endpoints {
				if c := slices[i].Endpoints[j].Conditions.Ready; c == nil || *c {
					ready++
				}
			}
		}
		return err == nil && ready == n, fmt.Sprintf("%d ready", ready), err
	})
}

// Gone waits until a pod of that name and UID is no longer there; without a UID, any of that name.
func (e *Env) Gone(name string, uid types.UID) {
	e.Helper()
	e.Wait("pod "+name+" gone", func(ctx context.Context) (bool, string, error) {
		pod, err := e.Client.CoreV1().Pods(e.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return err == nil && uid != "" && pod.UID != uid, "still there", err
	})
}

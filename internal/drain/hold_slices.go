package drain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
)

// managedBy marks the slices of a hold.
const managedBy = "safedrain.dev"

// coverPod writes a slice of our own for a pod, for every Service that loses it with the label and every family.
func (n *nodeRun) coverPod(ctx context.Context, dep *departure, pod *corev1.Pod) ([]*discoveryv1.EndpointSlice, error) {
	var out []*discoveryv1.EndpointSlice
	for _, service := range n.losing(dep, pod) {
		var have []discoveryv1.EndpointSlice
		err := n.persist(ctx, func(ctx context.Context) (err error) {
			have, err = n.slicesOf(ctx, service)
			return err
		})
		if err != nil {
			return nil, err
		}
		wanted := holdSlices(service, pod, have)
		if len(wanted) == 0 && service == dep.key && pod.Status.PodIP != "" {
			return nil, fmt.Errorf("no EndpointSlice of %s has pod %s", service, pod.Name)
		}
		for _, s := range wanted {
			var written *discoveryv1.EndpointSlice
			err := n.persist(ctx, func(ctx context.Context) (err error) {
				written, err = n.writeSlice(ctx, s)
				return err
			})
			if err != nil {
				return nil, err
			}
			out = append(out, written)
		}
	}
	return out, nil
}

// losing lists the Services with an endpoint on the node that select the pod by the label that the hold changes.
func (n *nodeRun) losing(dep *departure, pod *corev1.Pod) []guard.Key {
	_, snapshot := n.current()
	before := guard.LabelsBefore(pod)
	var out []guard.Key
	for svc := range snapshot.Index(n.Hooks, n.opts.Nodes).ServicesOn(n.name) {
		_, by := svc.Selector[dep.hold.Label]
		if by && svc.Key.Namespace == pod.Namespace && guard.Selects(svc.Selector, before) {
			out = append(out, svc.Key)
		}
	}
	return out
}

func (r *Runner) slicesOf(ctx context.Context, service guard.Key) ([]discoveryv1.EndpointSlice, error) {
	list, err := r.Client.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name})
	if err != nil {
		return nil, fmt.Errorf("list the EndpointSlices of %s: %w", service, err)
	}
	return list.Items, nil
}

// holdSlices makes the slices of a pod for one Service, from what the controller's slices say of it; where its entry is
// gone already, ours of an earlier try stand.
func holdSlices(service guard.Key, pod *corev1.Pod, have []discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	byFamily := map[discoveryv1.AddressType]*discoveryv1.EndpointSlice{}
	for i := range have {
		from := &have[i]
		e := endpointOf(from, pod.UID)
		if e == nil {
			continue
		}
		if ours(from) {
			if byFamily[from.AddressType] == nil {
				byFamily[from.AddressType] = from
			}
			continue
		}
		byFamily[from.AddressType] = holdSlice(service, pod, from, e)
	}
	var out []*discoveryv1.EndpointSlice
	for _, s := range byFamily {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *discoveryv1.EndpointSlice) int { return compareText(a.Name, b.Name) })
	return out
}

func ours(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == managedBy
}

// endpointOf returns what a slice says of a pod, nil when it does not name it.
func endpointOf(s *discoveryv1.EndpointSlice, uid types.UID) *discoveryv1.Endpoint {
	for i := range s.Endpoints {
		if ref := s.Endpoints[i].TargetRef; ref != nil && ref.Kind == "Pod" && ref.UID == uid {
			return &s.Endpoints[i]
		}
	}
	return nil
}

// holdSlice says that a pod serves and terminates. The pod owns it: with the pod it goes, whatever becomes of this run.
func holdSlice(service guard.Key, pod *corev1.Pod, from *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	no, yes, serving := false, true, e.Conditions.Serving == nil || *e.Conditions.Serving
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: holdName(service, pod.UID, from.AddressType),
			Labels:          map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: managedBy},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		AddressType: from.AddressType,
		Ports:       from.Ports,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: e.Addresses, NodeName: e.NodeName, Zone: e.Zone, TargetRef: e.TargetRef,
			Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &serving, Terminating: &yes},
		}},
	}
}

// holdName is the same at every try.
func holdName(service guard.Key, uid types.UID, family discoveryv1.AddressType) string {
	sum := sha256.Sum256([]byte(service.String() + "\x00" + string(uid) + "\x00" + string(family)))
	return "safedrain-hold-" + hex.EncodeToString(sum[:10])
}

// writeSlice creates a slice. One of an earlier try is brought up to date, unless it is the very one that was read.
func (r *Runner) writeSlice(ctx context.Context, s *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	api := r.Client.DiscoveryV1().EndpointSlices(s.Namespace)
	if s.ResourceVersion != "" {
		return s, nil
	}
	written, err := api.Create(ctx, s, metav1.CreateOptions{FieldManager: claim.FieldManager})
	if err == nil || !apierrors.IsAlreadyExists(err) {
		return written, sliceError("create", s, err)
	}
	have, err := api.Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		return nil, sliceError("read", s, err)
	}
	if !ours(have) {
		return nil, fmt.Errorf("EndpointSlice %s/%s exists and is not safedrain's", s.Namespace, s.Name)
	}
	have.Endpoints, have.Ports = s.Endpoints, s.Ports
	written, err = api.Update(ctx, have, metav1.UpdateOptions{FieldManager: claim.FieldManager})
	return written, sliceError("update", s, err)
}

func sliceError(verb string, s *discoveryv1.EndpointSlice, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s EndpointSlice %s/%s: %w", verb, s.Namespace, s.Name, err)
}

// dropSlice deletes a slice of ours. One that is gone is no error.
func (r *Runner) dropSlice(ctx context.Context, namespace, name string) error {
	err := r.Client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete EndpointSlice %s/%s: %w", namespace, name, err)
	}
	return nil
}

// listed reports whether a slice that is not ours has a pod as an endpoint that does not terminate.
func listed(have []discoveryv1.EndpointSlice, uid types.UID) bool {
	return slices.ContainsFunc(have, func(s discoveryv1.EndpointSlice) bool {
		e := endpointOf(&s, uid)
		return e != nil && !ours(&s) && (e.Conditions.Terminating == nil || !*e.Conditions.Terminating)
	})
}

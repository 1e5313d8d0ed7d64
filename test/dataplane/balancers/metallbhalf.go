package balancers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/test/dataplane"
)

// half replaces every status of the node by one with its label and the content of the node that would be elected next, as a
// partition may leave it. The node's speaker cannot mend it: the content is immutable. It hangs while that is done, or it
// would fill the new status itself.
func (f *falseStatus) half(ctx context.Context, node string) (undo func(context.Context) error, err error) {
	thaw, err := f.metallb.freeze(ctx, node)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, thaw(ctx)) }()
	list, err := f.statuses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].GetLabels()[metallb.LabelNode] != node {
			continue
		}
		if err := f.halve(ctx, &list.Items[i], node); err != nil {
			return nil, errors.Join(err, f.clear(ctx))
		}
	}
	return f.clear, nil
}

// halve replaces one status.
func (f *falseStatus) halve(ctx context.Context, own *unstructured.Unstructured, node string) error {
	svc := serviceOf(own)
	next, err := f.next(ctx, svc, node)
	if err != nil {
		return err
	}
	made, err := f.statuses().Create(ctx, f.object(svc, node), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	status, _, err := unstructured.NestedMap(own.Object, "status")
	if err != nil || status == nil {
		return fmt.Errorf("the status of %s is empty: %w", own.GetName(), err)
	}
	status["node"] = next
	made.Object["status"] = status
	_, err = f.statuses().UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return errors.Join(err, f.statuses().Delete(ctx, own.GetName(), metav1.DeleteOptions{}))
}

// next is the node that is elected for a Service when a node is left out.
func (f *falseStatus) next(ctx context.Context, svc labelled, node string) (string, error) {
	live, err := f.metallb.lab.Client.CoreV1().Services(svc.namespace).Get(ctx, svc.name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if len(live.Status.LoadBalancer.Ingress) == 0 {
		return "", fmt.Errorf("service %s/%s has no address", svc.namespace, svc.name)
	}
	addr, err := netip.ParseAddr(live.Status.LoadBalancer.Ingress[0].IP)
	others := slices.DeleteFunc(slices.Clone(f.metallb.lab.Nodes), func(n *dataplane.Node) bool { return n.Name == node })
	return Leader(others, addr), err
}

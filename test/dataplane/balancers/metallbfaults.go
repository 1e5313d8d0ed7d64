package balancers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
)

// keepEvery is how often a false status is put back when a speaker has corrected it.
const keepEvery = 20 * time.Millisecond

// speaker returns the speaker pod of a node.
func (m *MetalLB) speaker(ctx context.Context, node string) (*corev1.Pod, error) {
	pods, err := m.pods(ctx, speakerName)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].Spec.NodeName == node && pods[i].DeletionTimestamp == nil {
			return &pods[i], nil
		}
	}
	return nil, fmt.Errorf("no speaker on node %q", node)
}

// signal sends a signal to the speaker of a node.
func (m *MetalLB) signal(ctx context.Context, node string, s syscall.Signal) error {
	pod, err := m.speaker(ctx, node)
	if err != nil {
		return err
	}
	return m.lab.Signal(ctx, pod.Namespace, pod.Name, s)
}

// kill lets the speaker of a node crash; the node's agent starts it again, as a kubelet does.
func (m *MetalLB) kill(ctx context.Context, node string) (func(context.Context) error, error) {
	return nothing, m.signal(ctx, node, syscall.SIGKILL)
}

func nothing(context.Context) error { return nil }

// freeze stops the speaker of a node without ending it: its sessions stay open until its peers give them up, and what it
// wrote into status objects stays.
func (m *MetalLB) freeze(ctx context.Context, node string) (func(context.Context) error, error) {
	return func(ctx context.Context) error { return m.signal(ctx, node, syscall.SIGCONT) }, m.signal(ctx, node, syscall.SIGSTOP)
}

// remove kills the speaker of a node and lets none come back; its pod goes, and with it what it wrote.
func (m *MetalLB) remove(ctx context.Context, node string) (func(context.Context) error, error) {
	pod, err := m.speaker(ctx, node)
	if err != nil {
		return nil, err
	}
	undo := func(ctx context.Context) error {
		return errors.Join(m.label(ctx, node, noSpeaker, "null"), m.waitPods(ctx, speakerName, len(m.lab.Nodes)))
	}
	if err := m.label(ctx, node, noSpeaker, `""`); err != nil {
		return nil, err
	}
	if err := m.lab.Signal(ctx, pod.Namespace, pod.Name, syscall.SIGKILL); err != nil {
		return undo, err
	}
	return undo, m.lab.Gone(ctx, pod.Namespace, pod.Name, pod.UID)
}

// faults are those of MetalLB with one kind of status object.
func (m *MetalLB) faults(kind schema.GroupVersionResource, name string) []Fault {
	status := &falseStatus{metallb: m, kind: kind, name: name}
	return []Fault{
		{Name: "speaker-gone", Node: true, Says: "the speaker of the node is killed and stays away", Inject: m.remove},
		{Name: "speaker-hangs", Node: true, Says: "the speaker of the node hangs", Inject: m.freeze},
		{Name: "speaker-killed", Node: true, Says: "the speaker of the node is killed and comes back", Inject: m.kill},
		{Name: "status-lies", Node: true, Says: "status objects name other nodes and never the node, whatever its speaker does", Inject: status.lie},
		{Name: "status-lies-hanging", Node: true, Says: "the same, and the speaker of the node hangs", Inject: both(m.freeze, status.lie)},
		{Name: "status-stale", Node: true, Says: "a status object names the node for ever, whatever its speaker does", Inject: status.stale},
	}
}

// injection makes a fault happen to a node and returns what undoes it.
type injection func(ctx context.Context, node string) (undo func(context.Context) error, err error)

// both makes two faults happen, and undoes the second first.
func both(first, second injection) injection {
	return func(ctx context.Context, node string) (func(context.Context) error, error) {
		undoFirst, err := first(ctx, node)
		if err != nil {
			return undoFirst, err
		}
		undoSecond, err := second(ctx, node)
		if err != nil {
			return nil, errors.Join(err, undoFirst(ctx))
		}
		return func(ctx context.Context) error { return errors.Join(undoSecond(ctx), undoFirst(ctx)) }, nil
	}
}

// Faults are those of the speakers and of ServiceL2Status.
func (l *L2) Faults() []Fault { return l.faults(metallb.L2Statuses, "ServiceL2Status") }

// Faults are those of the speakers and of ServiceBGPStatus.
func (b *BGP) Faults() []Fault { return b.faults(metallb.BGPStatuses, "ServiceBGPStatus") }

var (
	_ Faulty = (*L2)(nil)
	_ Faulty = (*BGP)(nil)
)

// falseStatus keeps status objects of one kind false, for every Service that has any.
type falseStatus struct {
	metallb *MetalLB
	kind    schema.GroupVersionResource
	name    string // of the kind
}

// falsePrefix begins the names of the status objects that are not a speaker's.
const falsePrefix = "false-"

// stale keeps a status that names the node, for each Service.
func (f *falseStatus) stale(ctx context.Context, node string) (func(context.Context) error, error) {
	return f.keep(ctx, func(ctx context.Context, services map[labelled]bool, _ []unstructured.Unstructured) error {
		var errs []error
		for svc := range services {
			errs = append(errs, f.write(ctx, svc, node))
		}
		return errors.Join(errs...)
	})
}

// lie removes each status that names the node, and writes one that names another node where no other does.
func (f *falseStatus) lie(ctx context.Context, node string) (func(context.Context) error, error) {
	other := ""
	for _, n := range f.metallb.lab.Nodes {
		if n.Name != node {
			other = n.Name
		}
	}
	return f.keep(ctx, func(ctx context.Context, services map[labelled]bool, all []unstructured.Unstructured) error {
		var errs []error
		named := map[labelled]bool{}
		for i := range all {
			if all[i].GetLabels()[metallb.LabelNode] != node {
				named[serviceOf(&all[i])] = true
				continue
			}
			err := f.metallb.dynamic.Resource(f.kind).Namespace(metallbNamespace).Delete(ctx, all[i].GetName(), metav1.DeleteOptions{})
			if !apierrors.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
		for svc := range services {
			if !named[svc] {
				errs = append(errs, f.write(ctx, svc, other))
			}
		}
		return errors.Join(errs...)
	})
}

// labelled is a Service as the labels of a status name it.
type labelled struct{ namespace, name string }

func serviceOf(status *unstructured.Unstructured) labelled {
	l := status.GetLabels()
	return labelled{l[metallb.LabelServiceNamespace], l[metallb.LabelServiceName]}
}

// keep makes the status objects false until it is undone, and returns once they are. It is about every Service that has a
// status when it begins or gets one later.
func (f *falseStatus) keep(
	ctx context.Context, change func(context.Context, map[labelled]bool, []unstructured.Unstructured) error,
) (func(context.Context) error, error) {
	services := map[labelled]bool{}
	round := func(ctx context.Context) error {
		list, err := f.metallb.dynamic.Resource(f.kind).Namespace(metallbNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			services[serviceOf(&list.Items[i])] = true
		}
		return change(ctx, services, list.Items)
	}
	if err := round(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var keeping sync.WaitGroup
	keeping.Go(func() {
		tick := time.NewTicker(keepEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = round(ctx) // the API server may be away; the next round tries again
			}
		}
	})
	return func(ctx context.Context) error {
		cancel()
		keeping.Wait()
		return f.clear(ctx)
	}, nil
}

// clear removes what no speaker wrote.
func (f *falseStatus) clear(ctx context.Context) error {
	client := f.metallb.dynamic.Resource(f.kind).Namespace(metallbNamespace)
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: falseLabel})
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		name := list.Items[i].GetName()
		_, err := client.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err == nil {
			err = client.Delete(ctx, name, metav1.DeleteOptions{})
		}
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// falseLabel is on the status objects that no speaker wrote. As a finalizer it keeps them there when a speaker that took
// over deletes what it finds of others.
const falseLabel = "test.safedrain.dev/false"

// write makes a status that names a node, as a speaker would, if it is not there.
func (f *falseStatus) write(ctx context.Context, svc labelled, node string) error {
	client := f.metallb.dynamic.Resource(f.kind).Namespace(metallbNamespace)
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": f.kind.GroupVersion().String(), "kind": f.name, "spec": map[string]any{},
		"status": map[string]any{"node": node, "serviceName": svc.name, "serviceNamespace": svc.namespace},
	}}
	u.SetName(falsePrefix + svc.namespace + "-" + svc.name + "-" + node)
	u.SetLabels(labels.Set{
		metallb.LabelNode: node, metallb.LabelServiceName: svc.name, metallb.LabelServiceNamespace: svc.namespace, falseLabel: "true",
	})
	u.SetFinalizers([]string{falseLabel})
	made, err := client.Create(ctx, u, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	made.Object["status"] = u.Object["status"] // a creation drops it
	_, err = client.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

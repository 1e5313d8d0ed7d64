package balancers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
)

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
		{Name: "status-lies", Node: true, Says: "status objects name other nodes and not the node, since nobody may write that", Inject: status.lie},
		{Name: "status-lies-hanging", Node: true, Says: "the same, and the speaker of the node hangs", Inject: both(m.freeze, status.lie)},
		{Name: "status-stale", Node: true, Says: "status objects that name the node stay, since nobody may change them", Inject: status.stale},
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
func (l *L2) Faults() []Fault {
	status := &falseStatus{metallb: l.MetalLB, kind: metallb.L2Statuses, name: "ServiceL2Status"}
	all := append(l.faults(status.kind, status.name), Fault{
		Name: "status-half", Node: true, Says: "status objects bear the label of the node and the content of the next one, as after a partition", Inject: status.half,
	})
	slices.SortFunc(all, func(a, b Fault) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Faults are those of the speakers and of ServiceBGPStatus.
func (b *BGP) Faults() []Fault { return b.faults(metallb.BGPStatuses, "ServiceBGPStatus") }

var (
	_ Faulty = (*L2)(nil)
	_ Faulty = (*BGP)(nil)
)

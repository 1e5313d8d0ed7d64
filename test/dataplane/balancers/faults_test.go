package balancers

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/test/controlplane"
)

// scene is a MetalLB that carries a Service, and one of its nodes.
type scene struct {
	*testing.T
	b    Balancer
	svc  *corev1.Service
	node string
}

func newScene(t *testing.T, name string) *scene {
	t.Helper()
	needLab(t)
	s := &scene{T: t, b: set.Get(name)}
	s.svc = app(t, s.b)
	in, err := s.b.Shown(t.Context(), s.svc)
	if err != nil || len(in) == 0 {
		t.Fatalf("in rotation: %v, %v", in, err)
	}
	s.node = in[0]
	return s
}

// inject makes a fault happen to the node and puts things right when the test has ended, at the latest.
func (s *scene) inject(name string) (undo func()) {
	s.Helper()
	fault, err := FaultOf(s.b, name)
	if err != nil {
		s.Fatal(err)
	}
	mend, err := fault.Inject(s.Context(), s.node)
	if err != nil {
		s.Fatal(err)
	}
	done := false
	undo = func() {
		if done {
			return
		}
		done = true
		if err := mend(context.WithoutCancel(s.Context())); err != nil {
			s.Error(err)
		}
	}
	s.Cleanup(undo)
	return undo
}

func (s *scene) command(give func(context.Context, string) error) {
	s.Helper()
	if err := give(s.Context(), s.node); err != nil {
		s.Fatal(err)
	}
}

// pokeAfter is how long MetalLB may show something else before it is made to look at the Service again: a speaker whose write
// was refused, or that was cut off, may leave its status as it is.
const pokeAfter = 10 * time.Second

// see waits until status objects and data plane say what they should of the node.
func (s *scene) see(shown, forwarded bool) {
	s.Helper()
	poked := time.Now()
	err := controlplane.Poll(s.Context(), startTimeout, "status and data plane as expected", func(ctx context.Context) (bool, string, error) {
		in, err := s.b.Shown(ctx, s.svc)
		if err != nil {
			return false, "", err
		}
		to, err := s.b.(Forwarding).Forwards(ctx, s.svc)
		if slices.Contains(in, s.node) == shown && slices.Contains(to, s.node) == forwarded {
			return true, "", err
		}
		if err == nil && time.Since(poked) > pokeAfter {
			poked = time.Now()
			err = s.poke(ctx)
		}
		return false, "shown: " + words(in) + ", forwarded to: " + words(to), err
	})
	if err != nil {
		s.Fatal(err)
	}
}

// poke changes the Service in a way that means nothing.
func (s *scene) poke(ctx context.Context) error {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"test.safedrain.dev/poked":%q}}}`, time.Now().Format(time.RFC3339Nano))
	_, err := lab.Client.CoreV1().Services(s.svc.Namespace).Patch(ctx, s.svc.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func words(nodes []string) string {
	text := ""
	for _, n := range nodes {
		text += " " + n
	}
	return text
}

// stays checks for a while that what was seen stays so.
func (s *scene) stays(shown, forwarded bool) {
	s.Helper()
	for range 20 {
		s.see(shown, forwarded)
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case <-timer.C:
		case <-s.Context().Done():
			return
		}
	}
}

func TestStaleStatus(t *testing.T) {
	for _, name := range []string{MetalLBL2, MetalLBBGP} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, name)
			undo := s.inject("status-stale")
			s.command(s.b.Remove)
			s.see(true, false)
			s.stays(true, false)
			undo()
			s.see(false, false)
			s.command(s.b.Return)
			s.see(true, true)
		})
	}
}

func TestLyingStatus(t *testing.T) {
	for _, name := range []string{MetalLBL2, MetalLBBGP} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, name)
			undo := s.inject("status-lies")
			s.see(false, true)
			s.stays(false, true)
			undo()
			s.command(s.b.Remove) // lets the speakers write again, since their own view has changed
			s.see(false, false)
			s.command(s.b.Return)
			s.see(true, true)
		})
	}
}

// TestHangingSpeaker shows that a node whose speaker hangs does not leave, and neither does its status.
func TestHangingSpeaker(t *testing.T) {
	s := newScene(t, MetalLBBGP)
	undo := s.inject("speaker-hangs")
	s.command(s.b.Remove)
	s.stays(true, true)
	undo()
	s.see(false, false)
	s.command(s.b.Return)
	s.see(true, true)
}

// TestLyingStatusOfHangingSpeaker shows what no reader of status objects can see: they say that the node has left, and its
// router goes on sending to it.
func TestLyingStatusOfHangingSpeaker(t *testing.T) {
	s := newScene(t, MetalLBBGP)
	undo := s.inject("status-lies-hanging")
	s.command(s.b.Remove)
	s.stays(false, true)
	undo()
	s.see(false, false)
	s.command(s.b.Return)
	s.see(true, true)
}

// TestSpeakerGone shows that a node leaves with its speaker and comes back with it.
func TestSpeakerGone(t *testing.T) {
	for _, name := range []string{MetalLBL2, MetalLBBGP} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, name)
			undo := s.inject("speaker-gone")
			s.see(false, false)
			undo()
			s.see(true, true)
		})
	}
}

// TestSpeakerKilled shows that a speaker that crashes is started again.
func TestSpeakerKilled(t *testing.T) {
	s := newScene(t, MetalLBBGP)
	restarts := func() int32 {
		t.Helper()
		list, err := lab.Client.CoreV1().Pods(metallbNamespace).List(t.Context(), metav1.ListOptions{
			FieldSelector: "spec.nodeName=" + s.node, LabelSelector: "component=speaker",
		})
		if err != nil || len(list.Items) != 1 || len(list.Items[0].Status.ContainerStatuses) != 1 {
			t.Fatalf("speaker of %s: %v, %v", s.node, list, err)
		}
		return list.Items[0].Status.ContainerStatuses[0].RestartCount
	}
	before := restarts()
	s.inject("speaker-killed")
	err := controlplane.Poll(t.Context(), startTimeout, "the speaker started again", func(context.Context) (bool, string, error) {
		return restarts() > before, "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.see(true, true)
}

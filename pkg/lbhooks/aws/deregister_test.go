package aws_test

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/aws"
)

// byHand is a Service whose group nobody in the cluster owns.
func byHand() *corev1.Service {
	return service(kind(corev1.ServiceTypeNodePort), annotated(aws.AnnotationGroups, arnOf(region, "g")))
}

var told = map[string]string{"deregister": "true"}

// stands lists the targets of a group, sorted: id:port/zone/quic state.
func (c *cloud) stands(name string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, g := range c.groups {
		for _, t := range g.targets {
			if g.name == name {
				out = append(out, strings.Join([]string{t.id, map[int]string{30080: "80", 30443: "443"}[t.port], t.zone, t.quic, t.state}, " "))
			}
		}
	}
	slices.SortFunc(out, cmp.Compare[string])
	return out
}

// What was there is there again: every port, the zone and the server id; and nothing else was touched.
func TestWithdrawAndRestore(t *testing.T) {
	cloud := newCloud()
	g := nlb("g", healthyTarget("i-n1", 30080), healthyTarget("i-n1", 30443), &target{id: "10.0.0.1", port: 30080, zone: "all", quic: "0x0123456789abcdef", state: "unhealthy"},
		healthyTarget("i-n2", 30080), healthyTarget("i-n2", 30443))
	g.delay = time.Hour
	cloud.groups = []*tg{g}
	hook, kube := newHook(t, cloud.serve(t), told)
	at := lbhooks.Target{Service: byHand(), Node: node("n1")}
	for range 2 {
		if err := hook.Withdraw(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"10.0.0.1 80 all 0x0123456789abcdef draining", "i-n1 443   draining", "i-n1 80   draining", "i-n2 443   healthy", "i-n2 80   healthy"}
	if diff := gocmp.Diff(want, cloud.stands("g")); diff != "" {
		t.Fatalf("after Withdraw: -want +got\n%s", diff)
	}
	if n := cloud.count("DeregisterTargets"); n != 1 {
		t.Errorf("deregistered %d times", n)
	}
	if p, err := hook.Prove(t.Context(), at); err != nil || !p.Out {
		t.Errorf("%+v, %v; want out", p, err)
	}
	stored, err := kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || !strings.Contains(stored.Annotations[aws.AnnotationRecord], `{"id":"10.0.0.1","port":30080,"zone":"all","quicServerID":"0x0123456789abcdef"}`) {
		t.Fatalf("%v: record %q", err, stored.Annotations[aws.AnnotationRecord])
	}
	// another process, and without the option: the record alone says what to put back
	second := aws.New(kube, nil, lbhooks.Options{}, cloud.serve(t)...)
	for range 2 {
		if err := second.Restore(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	for i := range want {
		want[i] = strings.Replace(want[i], "draining", "healthy", 1)
	}
	if diff := gocmp.Diff(want, cloud.stands("g")); diff != "" {
		t.Errorf("after Restore: -want +got\n%s", diff)
	}
	if n := cloud.count("RegisterTargets"); n != 1 {
		t.Errorf("registered %d times", n)
	}
	stored, err = kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if _, still := stored.Annotations[aws.AnnotationRecord]; err != nil || still {
		t.Errorf("%v: the record stays: %v", err, stored.Annotations)
	}
}

// Nothing is deregistered that a controller owns, or without being told.
func TestWithdrawOnlyWhenTold(t *testing.T) {
	for name, test := range map[string]struct {
		svc     *corev1.Service
		options map[string]string
	}{
		"not told":           {svc: byHand()},
		"told no":            {svc: byHand(), options: map[string]string{"deregister": "false"}},
		"a controller's":     {svc: service(class(nlbClass), hosted(nlbHost)), options: told},
		"a cloud provider's": {svc: service(hosted(nlbHost)), options: told},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			cloud.groups = []*tg{nlb("g", onNode("healthy"), other("healthy"))}
			hook, _ := newHook(t, cloud.serve(t), test.options)
			at := lbhooks.Target{Service: test.svc, Node: node("n1")}
			if err := errors.Join(hook.Withdraw(t.Context(), at), hook.Restore(t.Context(), at)); err != nil {
				t.Fatal(err)
			}
			if len(cloud.calls) > 0 {
				t.Errorf("called %q", cloud.calls)
			}
		})
	}
}

// A group is never left without a healthy target.
func TestWithdrawRefusesToEmpty(t *testing.T) {
	for name, others := range map[string][]*target{
		"nobody else":        nil,
		"the other is sick":  {other("unhealthy")},
		"the other is new":   {other("initial")},
		"the other is going": {other("draining")},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			cloud.groups = []*tg{nlb("g", append(others, onNode("healthy"))...)}
			hook, kube := newHook(t, cloud.serve(t), told)
			err := hook.Withdraw(t.Context(), lbhooks.Target{Service: byHand(), Node: node("n1")})
			if err == nil || errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "no other target there is healthy") {
				t.Errorf("%v, want a refusal", err)
			}
			if n := cloud.count("DeregisterTargets"); n != 0 {
				t.Errorf("deregistered %d times", n)
			}
			if stored, err := kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil || len(stored.Annotations) != 0 {
				t.Errorf("%v, %v", stored, err)
			}
		})
	}
}

// Two nodes withdrawn at once, with nobody else in the group: one of them stays.
func TestWithdrawTakesTurns(t *testing.T) {
	cloud := newCloud()
	g := nlb("g", healthyTarget("i-n1", 30080), healthyTarget("i-n2", 30080))
	g.delay = time.Hour
	cloud.groups = []*tg{g}
	hook, _ := newHook(t, cloud.serve(t), told)
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, name := range []string{"n1", "n2"} {
		wg.Go(func() { errs[i] = hook.Withdraw(t.Context(), lbhooks.Target{Service: byHand(), Node: node(name)}) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Errorf("%v; %v: want exactly one refusal", errs[0], errs[1])
	}
	if n := cloud.count("DeregisterTargets"); n != 1 {
		t.Errorf("deregistered %d times", n)
	}
}

// Another run takes the other target out in the same moment: what was deregistered is put back at once.
func TestWithdrawLooksAgain(t *testing.T) {
	cloud := newCloud()
	g := nlb("g", onNode("healthy"), other("healthy"))
	g.delay = time.Hour
	cloud.groups = []*tg{g}
	cloud.after = func(action string) {
		if action == "DeregisterTargets" {
			g.targets[1].state = "draining"
		}
	}
	hook, kube := newHook(t, cloud.serve(t), told)
	if err := hook.Withdraw(t.Context(), lbhooks.Target{Service: byHand(), Node: node("n1")}); err == nil || !strings.Contains(err.Error(), "stays in g") {
		t.Errorf("%v, want a refusal", err)
	}
	if diff := gocmp.Diff([]string{"i-n1 80   healthy", "i-n2 80   draining"}, cloud.stands("g")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if stored, err := kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}); err != nil || stored.Annotations[aws.AnnotationRecord] != "" {
		t.Errorf("%v, record %q", err, stored.Annotations)
	}
}

// Without a record nothing is deregistered; what a record says is not lost when registering fails.
func TestRecord(t *testing.T) {
	cloud := newCloud()
	g := nlb("g", onNode("healthy"), other("healthy"))
	g.delay = time.Hour
	cloud.groups = []*tg{g}
	hook, kube := newHook(t, cloud.serve(t), told)
	at := lbhooks.Target{Service: byHand(), Node: node("n1")}
	refuse := true
	kube.PrependReactor("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		if refuse {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n1", nil)
		}
		return false, nil, nil
	})
	if err := hook.Withdraw(t.Context(), at); !errors.Is(err, lbhooks.ErrUnavailable) || cloud.count("DeregisterTargets") != 0 {
		t.Fatalf("%v, %d deregistered; want none", err, cloud.count("DeregisterTargets"))
	}
	refuse = false
	if err := hook.Withdraw(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	cloud.fail("RegisterTargets", answer{status: 400, code: "InvalidTarget", message: "The following targets are not in a running state and cannot be registered: 'i-n1'"})
	if err := hook.Restore(t.Context(), at); err == nil || !strings.Contains(err.Error(), "InvalidTarget") {
		t.Fatalf("%v, want InvalidTarget", err)
	}
	if err := hook.Restore(t.Context(), at); err != nil || cloud.stands("g")[0] != "i-n1 80   healthy" {
		t.Errorf("%v, %q", err, cloud.stands("g"))
	}
}

func TestBefore(t *testing.T) {
	for name, test := range map[string]struct {
		targets []*target
		fine    bool
	}{
		"both healthy":     {[]*target{onNode("healthy"), other("healthy")}, true},
		"the node is not":  {[]*target{onNode("unhealthy"), other("healthy")}, false},
		"the other is not": {[]*target{onNode("healthy"), other("unhealthy")}, false},
		"not a target":     {[]*target{other("healthy")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			cloud.groups = []*tg{nlb("g", test.targets...)}
			hook, _ := newHook(t, cloud.serve(t), nil)
			evidence, err := hook.Before(t.Context(), lbhooks.Target{Service: byHand(), Node: node("n1")}, nil)
			if test.fine != (err == nil && evidence != "") || !test.fine && !errors.Is(err, lbhooks.ErrNotProven) {
				t.Errorf("%q, %v", evidence, err)
			}
		})
	}
}

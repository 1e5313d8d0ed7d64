package withdraw

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var now = time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC)

// given builds a node by what stands on it.
type given struct {
	cordoned, labelled, deleted, off bool
	idle                             bool // no Service of policy Local on it
	taint                            string
	refused                          time.Duration // before now; 0: never
	claim                            *claim.Claim
}

func (g given) node() *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Annotations: map[string]string{}, Labels: map[string]string{}}}
	n.Spec.Unschedulable = g.cordoned
	if g.labelled {
		n.Labels[lbhooks.ExcludeLabel] = "true"
	}
	if g.deleted {
		n.DeletionTimestamp = &metav1.Time{Time: now}
	}
	if g.off {
		n.Annotations[guard.AnnotationGate] = "off"
	}
	if g.taint != "" {
		n.Spec.Taints = []corev1.Taint{{Key: g.taint}}
	}
	if g.refused > 0 {
		n.Annotations[claim.AnnotationRefused] = now.Add(-g.refused).Format(time.RFC3339)
	}
	if g.claim != nil {
		n.Annotations[claim.Annotation] = g.claim.String()
	}
	return n
}

// held is a claim of the gate, ended some time ago.
func held(phase claim.Phase, ended time.Duration, set ...string) *claim.Claim {
	at := now.Add(-ended)
	return &claim.Claim{Run: "gate-u", Holder: Holder, Phase: phase, Set: set, Ended: &at}
}

// storeOf has the node, with an endpoint of a Service of policy Local or none.
func storeOf(serves bool) *cluster.Store {
	store := cluster.NewStore(nobody{})
	store.SetNode((given{}).node())
	if serves {
		serve(store)
	}
	return store
}

// serve gives the node an endpoint of a Service of policy Local.
func serve(store *cluster.Store) {
	store.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, ClusterIP: "10.96.0.1",
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	})
	node, port, name := "n", int32(80), ""
	store.SetSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &node}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	})
}

// nobody fronts any Service.
type nobody struct{}

func (nobody) Match(*corev1.Service, lbhooks.Objects) lbhooks.Rotation {
	return lbhooks.Rotation{Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true}}
}

func (nobody) Descriptions() []lbhooks.Description { return nil }

func TestDecide(t *testing.T) {
	const minute = time.Minute
	tests := map[string]struct {
		given given
		act   act
		again time.Duration
	}{
		"nothing":                             {given{}, actNone, 0},
		"cordoned only":                       {given{cordoned: true}, actNone, 0},
		"cordoned, refused":                   {given{cordoned: true, refused: minute}, actWithdraw, 0},
		"cordoned, refused long ago":          {given{cordoned: true, refused: 20 * minute}, actTidy, 0},
		"refused, not cordoned":               {given{refused: minute}, actNone, 14 * minute},
		"tainted by cluster-autoscaler":       {given{taint: taintScaleDown}, actWithdraw, 0},
		"tainted by Karpenter":                {given{taint: taintDisrupted}, actWithdraw, 0},
		"tainted, nothing of ours on it":      {given{taint: taintScaleDown, idle: true}, actNone, 0},
		"another taint":                       {given{taint: "node.kubernetes.io/not-ready"}, actNone, 0},
		"being deleted":                       {given{deleted: true}, actWithdraw, 0},
		"tainted, gate off":                   {given{taint: taintScaleDown, off: true}, actNone, 0},
		"claimed by another run":              {given{cordoned: true, refused: minute, claim: &claim.Claim{Run: "r1"}}, actNone, 0},
		"out":                                 {given{taint: taintScaleDown, cordoned: true, labelled: true, claim: held(claim.Proven, minute, "label", "unschedulable")}, actNone, 0},
		"out, the label was taken":            {given{taint: taintScaleDown, cordoned: true, claim: held(claim.Proven, minute, "label", "unschedulable")}, actWithdraw, 0},
		"out, somebody refused since":         {given{taint: taintScaleDown, cordoned: true, labelled: true, refused: minute, claim: held(claim.Proven, 2*minute, "label", "unschedulable")}, actWithdraw, 0},
		"not proven":                          {given{taint: taintScaleDown, cordoned: true, labelled: true, claim: held(claim.Withdrawn, minute, "label", "unschedulable")}, actWithdraw, 0},
		"taint gone, kept":                    {given{cordoned: true, labelled: true, refused: 5 * minute, claim: held(claim.Proven, 9*minute, "label", "unschedulable")}, actNone, 10 * minute},
		"taint gone, kept for long enough":    {given{cordoned: true, labelled: true, refused: 16 * minute, claim: held(claim.Proven, 16*minute, "label", "unschedulable")}, actReturn, 0},
		"uncordoned":                          {given{labelled: true, refused: minute, claim: held(claim.Proven, minute, "label")}, actReturn, 0},
		"cordoned by somebody, old refusal":   {given{cordoned: true, labelled: true, refused: 60 * minute, claim: held(claim.Proven, 60*minute, "label")}, actNone, 0},
		"its return was begun":                {given{cordoned: true, labelled: true, claim: held(claim.Closing, minute, "label", "unschedulable")}, actReturn, 0},
		"on its way back and tainted again":   {given{taint: taintScaleDown, labelled: true, claim: held(claim.Closing, minute, "label")}, actWithdraw, 0},
		"a claim that cannot be read":         {given{cordoned: true, refused: minute, claim: &claim.Claim{}}, actNone, 0},
		"uncordoned, gate off, to be brought": {given{off: true, labelled: true, claim: held(claim.Proven, minute, "label")}, actReturn, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := &Controller{Clock: clocktesting.NewFakeClock(now), Options: Defaults(), Store: storeOf(!tc.given.idle)}
			if got := c.decide(tc.given.node()); got.act != tc.act || got.again != tc.again {
				t.Errorf("act %d, again in %s; want %d, %s", got.act, got.again, tc.act, tc.again)
			}
		})
	}
}

// What serves on a node that somebody empties may be known after that: each kind has a watch of its own.
func TestServesLater(t *testing.T) {
	for name, g := range map[string]given{
		"tainted":           {taint: taintDisrupted},
		"deleted":           {deleted: true},
		"cordoned, refused": {cordoned: true, refused: time.Minute},
		"not emptied":       {cordoned: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storeOf(false)
				store.SetNode(g.node())
				client := fake.NewClientset() // has no node, so that nothing is done about one that is looked up
				c := &Controller{Client: client, Clock: clocktesting.NewFakeClock(now), Options: Defaults(), Store: store, Log: slog.New(slog.DiscardHandler)}
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { _ = c.Run(ctx) })
				synctest.Wait()
				if n := len(client.Actions()); n > 0 {
					t.Errorf("%d calls for a node that serves nothing", n)
				}
				serve(store)
				synctest.Wait()
				if got, want := len(client.Actions()) > 0, name != "not emptied"; got != want {
					t.Errorf("looked up once it serves: %v, want %v", got, want)
				}
				cancel()
				running.Wait()
			})
		})
	}
}

// A failure pauses what was tried, longer each time, and nothing else.
func TestPauses(t *testing.T) {
	clk := clocktesting.NewFakeClock(now)
	c := &Controller{Clock: clk, Options: Options{Retry: time.Second, RetryMost: 3 * time.Second}}
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second} {
		if got := c.failed("n", actWithdraw); got != want {
			t.Errorf("pause %d: %s, want %s", i, got, want)
		}
	}
	if left := c.pausing("n", actWithdraw); left != 3*time.Second {
		t.Errorf("left %s", left)
	}
	if left := c.pausing("n", actReturn); left != 0 {
		t.Errorf("another act waits %s", left)
	}
	clk.Step(3 * time.Second)
	if left := c.pausing("n", actWithdraw); left != 0 {
		t.Errorf("left %s after the time", left)
	}
	if got := c.failed("n", actReturn); got != time.Second {
		t.Errorf("the first pause of another act: %s", got)
	}
}

// While what a node needs is paused, changes of Services around it cost no call.
func TestPausedCallsNobody(t *testing.T) {
	store, client := storeOf(true), fake.NewClientset()
	store.SetNode(given{taint: taintDisrupted}.node())
	c := &Controller{Client: client, Clock: clocktesting.NewFakeClock(now), Options: Defaults(), Store: store}
	wait := c.failed("n", actWithdraw)
	if again, err := c.Reconcile(t.Context(), "n"); again != wait || err != nil || len(client.Actions()) > 0 {
		t.Errorf("again in %s, %v, %d calls; want %s and none", again, err, len(client.Actions()), wait)
	}
}

package claim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		value string
		want  *Claim
		err   error // nil with a nil want: any error
	}{
		"run only":       {`{"run":"7f3a"}`, &Claim{V: 1, Run: "7f3a"}, nil},
		"unknown fields": {`{"v":1,"run":"a","later":{"x":1}}`, &Claim{V: 1, Run: "a"}, nil},
		"newer":          {`{"v":2,"run":"a"}`, nil, ErrNewer},
		"no JSON":        {`mine`, nil, nil},
		"wrong type":     {`{"run":7}`, nil, nil},
		"empty":          {``, nil, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.value)
			if tc.want == nil {
				if err == nil || tc.err != nil && !errors.Is(err, tc.err) {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

func TestStringRoundTrip(t *testing.T) {
	at := time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC)
	c := &Claim{
		V: 1, Run: "r", Holder: "h", Nodes: []string{"a", "b"}, Phase: Withdrawn, Set: []string{"label"},
		Prev: map[string]string{"label": "false"}, Services: map[string]Service{"n/s": {Hook: "metallb-l2", ProofAt: &at}}, Renewed: &at,
	}
	got, err := Parse(c.String())
	if diff := cmp.Diff(c, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if s := (&Claim{Run: "r"}).String(); !strings.HasPrefix(s, `{"v":1,"run":"r","holder":"","nodes":[],"phase":"","set":[],"prev":{}`) {
		t.Errorf("%s", s)
	}
}

func TestHookSet(t *testing.T) {
	hook, service, ok := ParseHookSet(HookSet("http", "ns/name"))
	if hook != "http" || service != "ns/name" || !ok {
		t.Errorf("%q %q %v", hook, service, ok)
	}
	if _, _, ok := ParseHookSet(SetLabel); ok {
		t.Error("label is no hook")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"v":1,"run":"a","set":["label"],"prev":{"label":"false"}}`)
	f.Add(`{"run":"7f3a"}`)
	f.Fuzz(func(t *testing.T, value string) {
		c, err := Parse(value)
		if err != nil {
			return
		}
		again, err := Parse(c.String())
		if err != nil || again.String() != c.String() {
			t.Errorf("%q reads as %s, that as %v, %v", value, c, again, err)
		}
	})
}

func allow(context.Context, Earlier) error { return nil }

func claimer(api Nodes, run string) *Claimer {
	return &Claimer{Nodes: api, Clock: clock.RealClock{}, Run: run, Holder: run + "@host"}
}

func TestWhoMayTakeAClaim(t *testing.T) {
	ended := time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		was      *Claim
		takeOver bool
		renewed  bool // the other run lives
		lost     bool
		took     time.Duration
	}{
		"nobody's":                  {nil, false, false, false, 0},
		"ended":                     {&Claim{Run: "x", Phase: Withdrawn, Ended: &ended}, false, false, false, 0},
		"dead":                      {&Claim{Run: "x", Phase: Granted}, false, false, false, DeadAfter},
		"dead, said so":             {&Claim{Run: "x", Phase: Granted}, true, false, false, 0},
		"alive":                     {&Claim{Run: "x", Phase: Granted}, false, true, true, RenewEvery},
		"alive, taken all the same": {&Claim{Run: "x", Phase: Granted}, true, true, false, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newModelAPI(plainNodes(2)...)
				if tc.was != nil {
					api.set("n1", func(n *corev1.Node) {
						n.Annotations = map[string]string{Annotation: tc.was.String()}
						n.Spec.Unschedulable = true
					})
				}
				if tc.renewed {
					time.AfterFunc(RenewEvery, func() {
						api.set("n1", func(n *corev1.Node) {
							if c, err := Of(n); err == nil && c.Run == "x" {
								c.Renewed = ptr.To(time.Now())
								n.Annotations[Annotation] = c.String()
							}
						})
					})
				}
				before, start := api.node("n1"), time.Now()
				c := claimer(api, "r1")
				c.TakeOver = tc.takeOver
				held, _, err := c.Acquire(t.Context(), []string{"n1"}, allow)
				var lost *LostTo
				if errors.As(err, &lost) != tc.lost || (err != nil) != tc.lost {
					t.Fatalf("error %v", err)
				}
				if took := time.Since(start); took < tc.took || took > tc.took+5*time.Second {
					t.Errorf("took %s, want %s", took, tc.took)
				}
				if tc.lost {
					if c, _ := Of(api.node("n1")); c.Run != "x" {
						t.Errorf("the claim is %v", c)
					}
					return
				}
				if _, err := held[0].Undo(t.Context()); err != nil {
					t.Fatal(err)
				}
				// The earlier run's cordon is not in its claim, so it was there before: it stays.
				want := before.DeepCopy()
				delete(want.Annotations, Annotation)
				if diff := cmp.Diff(want, api.node("n1"), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ResourceVersion")); diff != "" {
					t.Errorf("undone: %s", diff)
				}
			})
		})
	}
}

func TestExpiredListLeavesNothing(t *testing.T) {
	api := newModelAPI(plainNodes(2)...)
	api.compact = 1 << 30
	before := api.node("n1")
	_, _, err := claimer(api, "r1").Acquire(t.Context(), []string{"n1", "n2"}, allow)
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(before, api.node("n1"), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ResourceVersion")); diff != "" {
		t.Errorf("left behind: %s", diff)
	}
}

func TestRefusalOfTheJudgeLeavesNothing(t *testing.T) {
	api := newModelAPI(plainNodes(3)...)
	before := snapshot(api)
	calls := 0
	judge := func(context.Context, Earlier) error {
		if calls++; calls == 2 {
			return errNone
		}
		return nil
	}
	_, _, err := claimer(api, "r1").Acquire(t.Context(), []string{"n3", "n1", "n2"}, judge)
	if !errors.Is(err, errNone) || calls != 2 {
		t.Errorf("error %v after %d calls", err, calls)
	}
	for name, was := range before {
		if diff := cmp.Diff(was, api.node(name), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ResourceVersion")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestNewerClaimIsLeftAlone(t *testing.T) {
	api := newModelAPI(plainNodes(1)...)
	api.set("n1", func(n *corev1.Node) { n.Annotations = map[string]string{Annotation: `{"v":9}`} })
	c := claimer(api, "r1")
	c.TakeOver = true
	if _, _, err := c.Acquire(t.Context(), []string{"n1"}, allow); !errors.Is(err, ErrNewer) {
		t.Errorf("error %v", err)
	}
	if _, err := c.Adopt(t.Context(), "n1"); !errors.Is(err, ErrNewer) {
		t.Errorf("adopt: %v", err)
	}
}

func TestCheck(t *testing.T) {
	manager := func(n *corev1.Node, name string, at time.Time) {
		n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{Manager: name, Time: ptr.To(metav1.NewTime(at))})
	}
	now := time.Date(2026, 11, 30, 14, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		change func(*corev1.Node)
		want   string
	}{
		"nothing": {func(*corev1.Node) {}, ""},
		"uncordoned by kubectl": {func(n *corev1.Node) {
			n.Spec.Unschedulable = false
			manager(n, FieldManager, now)
			manager(n, "kubectl", now.Add(time.Minute))
		}, `node "n1" was uncordoned by somebody else; last writer: "kubectl" at 2026-11-30T14:01:00Z`},
		"uncordoned by nobody known": {func(n *corev1.Node) {
			n.Spec.Unschedulable = false
			manager(n, "kubectl", now)
			manager(n, FieldManager, now.Add(time.Minute))
		}, `node "n1" was uncordoned by somebody else; the API does not record by whom`},
		"label set to false": {
			func(n *corev1.Node) { n.Labels[lbhooks.ExcludeLabel] = "false" },
			`node "n1" lost the label node.kubernetes.io/exclude-from-external-load-balancers=true by somebody else; the API does not record by whom`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := newModelAPI(plainNodes(1)...)
			held, _, err := claimer(api, "r1").Acquire(t.Context(), []string{"n1"}, allow)
			if err != nil {
				t.Fatal(err)
			}
			if err := held[0].Update(t.Context(), Exclude); err != nil {
				t.Fatal(err)
			}
			api.set("n1", tc.change)
			got := ""
			if err := held[0].Check(t.Context()); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got) %s", diff)
			}
			if err := held[0].Finish(t.Context(), func(c *Claim) { c.Phase = Proven }); (err != nil) != (tc.want != "") {
				t.Errorf("finish: %v", err)
			}
			if c, _ := Of(api.node("n1")); (c.Phase == Proven) != (tc.want == "") {
				t.Errorf("phase %s", c.Phase)
			}
		})
	}
}

// Whatever stood on the node, and whatever others write meanwhile to other fields, is there after the undoing.
func TestUndoGivesBackTheNode(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		node := plainNodes(1)[0]
		node.Spec.Unschedulable = rapid.Bool().Draw(rt, "cordoned")
		if rapid.Bool().Draw(rt, "labelled") {
			node.Labels = map[string]string{lbhooks.ExcludeLabel: rapid.SampledFrom([]string{"true", "false", "", "karpenter"}).Draw(rt, "value")}
		}
		api := newModelAPI(node)
		want := api.node("n1")
		run := claimer(api, "r1")
		held, _, err := run.Acquire(context.Background(), []string{"n1"}, allow)
		if err != nil {
			rt.Fatal(err)
		}
		h := held[0]
		for i := range rapid.IntRange(0, 4).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0:
				err = h.Update(context.Background(), Exclude)
			case 1:
				err = h.Renew(context.Background())
			case 2: // the run ends, another one takes it up
				run = claimer(api, "r"+string(rune('2'+i)))
				if err = h.End(context.Background()); err == nil {
					held, _, err = run.Acquire(context.Background(), []string{"n1"}, allow)
					h = held[0]
				}
			case 3: // somebody else writes
				api.set("n1", func(n *corev1.Node) { n.Spec.PodCIDR = "10.0.0.0/24" })
				want.Spec.PodCIDR = "10.0.0.0/24"
			}
			if err != nil {
				rt.Fatal(err)
			}
		}
		if _, err := h.Undo(context.Background()); err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(want, api.node("n1"), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ResourceVersion")); diff != "" {
			rt.Fatal(diff)
		}
	})
}

func TestOverwrittenClaimIsNotTouched(t *testing.T) {
	api := newModelAPI(plainNodes(1)...)
	held, _, err := claimer(api, "r1").Acquire(t.Context(), []string{"n1"}, allow)
	if err != nil {
		t.Fatal(err)
	}
	other := claimer(api, "r2")
	other.TakeOver = true
	if _, _, err := other.Acquire(t.Context(), []string{"n1"}, allow); err != nil {
		t.Fatal(err)
	}
	want := api.node("n1")
	h := held[0]
	_, undo := h.Undo(t.Context())
	for name, err := range map[string]error{
		"update": h.Update(t.Context(), Exclude), "undo": undo, "end": h.End(t.Context()), "renew": h.Renew(t.Context()), "check": h.Check(t.Context()),
	} {
		var taken *TakenOver
		if !errors.As(err, &taken) || taken.Run != "r2" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff(want, api.node("n1")); diff != "" {
		t.Errorf("changed: %s", diff)
	}
}

// A label that somebody changed after this tool had set it is theirs.
func TestForeignLabelValueStays(t *testing.T) {
	api := newModelAPI(plainNodes(1)...)
	held, _, err := claimer(api, "r1").Acquire(t.Context(), []string{"n1"}, allow)
	if err != nil {
		t.Fatal(err)
	}
	if err := held[0].Update(t.Context(), Exclude); err != nil {
		t.Fatal(err)
	}
	api.set("n1", func(n *corev1.Node) { n.Labels[lbhooks.ExcludeLabel] = "karpenter" })
	if _, err := held[0].Undo(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v := api.node("n1").Labels[lbhooks.ExcludeLabel]; v != "karpenter" {
		t.Errorf("label is %q", v)
	}
}

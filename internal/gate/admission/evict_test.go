package admission

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/pkg/guard"
)

// TestEvictionAnswers: a refusal has what every client needs, and nothing else is refused.
func TestEvictionAnswers(t *testing.T) {
	w := edge("s")
	if r := w.ask(t, Enforce, "p"); !r.Allowed || r.Result != nil || len(r.Warnings) > 0 {
		t.Errorf("a pod beside a kept one: %+v", r)
	}
	want := &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: "e/s: the endpoint kept on n1, which may be in rotation; cordon the node to move it out first",
		Details: &metav1.StatusDetails{Name: "k", RetryAfterSeconds: 1, Causes: []metav1.StatusCause{{
			Type: "Keeper", Message: "e/s: the endpoint kept on n1, which may be in rotation; cordon the node to move it out first",
		}}},
	}
	r := w.ask(t, Enforce, "k")
	if diff := cmp.Diff(want, r.Result); diff != "" || r.Allowed {
		t.Errorf("the kept one (-want +got):\n%s", diff)
	}
	if again := w.ask(t, Enforce, "k"); !cmp.Equal(again, r) {
		t.Errorf("not the same at each try: %+v, %+v", r, again)
	}
	if r := w.ask(t, Warn, "k"); !r.Allowed || !slices.Equal(r.Warnings, []string{"safedrain would wait: " + want.Message + " (gate=warn)"}) {
		t.Errorf("warn: %+v", r)
	}
	if r := w.ask(t, Off, "k"); !r.Allowed || len(r.Warnings) > 0 {
		t.Errorf("off: %+v", r)
	}
}

// TestEvictionReads: what no Service of policy Local may need costs no read of the API server.
func TestEvictionReads(t *testing.T) {
	w := edge("s")
	for name, tc := range map[string]struct {
		pod, namespace string
		mode           Mode
		reads          int
	}{
		"another namespace":       {"p", "f", Enforce, 0},
		"off":                     {"p", "e", Off, 0},
		"behind no Service":       {"x", "e", Enforce, 1},
		"with one more on a node": {"p", "e", Enforce, 3},
		"alone":                   {"o", "e", Enforce, 2},
	} {
		w.pod("x", "n1").Labels = nil
		w.reads = 0
		w.ask(t, tc.mode, tc.pod, func(r *admissionv1.AdmissionReview) { r.Request.Namespace = tc.namespace })
		if w.reads != tc.reads {
			t.Errorf("%s: %d reads, want %d", name, w.reads, tc.reads)
		}
	}
}

// TestEvictionNotes: what a withdrawal mends is noted, and a dry run, in the query or in the body, never is.
func TestEvictionNotes(t *testing.T) {
	for name, tc := range map[string]struct {
		node   []func(*corev1.Node)
		change func(*admissionv1.AdmissionReview)
		want   []string
	}{
		"a node that stays": {nil, func(*admissionv1.AdmissionReview) {}, nil},
		"cordoned":          {[]func(*corev1.Node){cordoned}, func(*admissionv1.AdmissionReview) {}, []string{"n2"}},
		"tainted": {[]func(*corev1.Node){func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
		}}, func(*admissionv1.AdmissionReview) {}, []string{"n2"}},
		"dry run by query": {[]func(*corev1.Node){cordoned}, func(r *admissionv1.AdmissionReview) { r.Request.DryRun = ptr.To(true) }, nil},
		"dry run in the body": {[]func(*corev1.Node){cordoned}, func(r *admissionv1.AdmissionReview) {
			r.Request.Object.Raw = []byte(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"o"},"deleteOptions":{"dryRun":["All"]}}`)
		}, nil},
	} {
		w := edge("s")
		w.node("n2", tc.node...)
		if r := w.ask(t, Enforce, "o", tc.change); r.Allowed {
			t.Errorf("%s: allowed", name)
		}
		if !slices.Equal(w.noted, tc.want) {
			t.Errorf("%s: noted %v, want %v", name, w.noted, tc.want)
		}
	}
}

// TestModes: the most specific scope that says a mode decides, and each Service has its own.
func TestModes(t *testing.T) {
	for _, tc := range []struct{ cluster, namespace, service, want Mode }{
		{Enforce, "", "", Enforce},
		{Enforce, Warn, "", Warn},
		{Enforce, Warn, Off, Off},
		{Off, "", Enforce, Enforce},
		{Warn, Enforce, "", Enforce},
		{Enforce, "on", "Off", Enforce},
		{Enforce, Off, "off ", Off},
	} {
		if got := ModeOf(tc.cluster, string(tc.namespace), string(tc.service)); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
	w := edge("s")
	w.service("quiet", map[string]string{guard.AnnotationGate: "warn"}, [2]string{"o", "n2"})
	w.store.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: map[string]string{guard.AnnotationGate: "off"}}})
	if r := w.ask(t, Enforce, "o"); !r.Allowed || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "e/quiet") {
		t.Errorf("the namespace is off and one Service warns: %+v", r)
	}
}

// TestCannotKnow has a row for everything that the gate may not know, with the answer that docs/gate-evictions.md states.
func TestCannotKnow(t *testing.T) {
	broken := errors.New("etcdserver: request timed out")
	failing := func(what ...string) func(context.Context, string) error {
		return func(_ context.Context, asked string) error {
			if slices.Contains(what, asked) {
				return broken
			}
			return nil
		}
	}
	elsewhere := func(w *world) {
		w.service("s", map[string]string{"safedrain.dev/nodes": "none"}, [2]string{"p", "n1"}, [2]string{"o", "n2"})
	}
	for name, tc := range map[string]struct {
		pod    string
		change func(*world)
		fail   func(context.Context, string) error
		allow  bool
		says   string
	}{
		"the pod is gone":                           {"gone", nil, nil, true, ""},
		"the node is gone":                          {"o", func(w *world) { delete(w.nodes, "n2") }, nil, true, ""},
		"the pod cannot be read, no slice names it": {"x", nil, failing("pod x"), true, ""},
		"the pod cannot be read":                    {"p", nil, failing("pod p"), false, "e/s: the pod could not be read, try again"},
		"the pod cannot be read, nobody sends":      {"p", elsewhere, failing("pod p"), true, ""},
		"the pod cannot be read, break-glass":       {"p", func(w *world) { w.node("n1", gateOff) }, failing("pod p"), true, ""},
		"the pod cannot be read, its node is gone":  {"p", func(w *world) { w.store.DeleteNode("n1") }, failing("pod p"), true, ""},
		"the node cannot be read":                   {"o", nil, failing("node n2"), false, "e/s: node n2 could not be read, try again"},
		"the node cannot be read, another is kept":  {"p", nil, failing("node n1"), true, ""},
		"the node cannot be read, nobody sends":     {"o", elsewhere, failing("node n2"), true, ""},
		"the node cannot be read, break-glass":      {"o", func(w *world) { w.node("n2", gateOff) }, failing("node n2"), true, ""},
		"the other pod cannot be read":              {"p", nil, failing("pod k"), false, "e/s: last endpoint on n1"},
		"the hook cannot work": {"o", func(w *world) {
			w.service("s", map[string]string{"safedrain.dev/hook": "unheard-of"}, [2]string{"p", "n1"}, [2]string{"o", "n2"})
		}, nil, false, "e/s: last endpoint on n2, which may be in rotation"},
		"break-glass": {"o", func(w *world) { w.node("n2", gateOff) }, nil, true, ""},
		"the pod is another one than the asked for": {"o", nil, nil, true, ""},
		"a claim that nobody can read":              {"o", func(w *world) { w.node("n2", func(n *corev1.Node) { n.Annotations["safedrain.dev/drain"] = "{" }) }, nil, false, "last endpoint"},
		"a claim of a newer version says it is free": {"o", func(w *world) {
			w.node("n2", cordoned, func(n *corev1.Node) {
				n.Annotations["safedrain.dev/drain"] = `{"v":2,"services":{"e/s":{"released":true}}}`
			})
		}, nil, false, "last endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mode := range []Mode{Enforce, Warn, Off} {
				w := edge("s")
				if tc.change != nil {
					tc.change(w)
				}
				w.fail = tc.fail
				r := w.ask(t, mode, tc.pod, func(r *admissionv1.AdmissionReview) {
					if strings.Contains(name, "another one") {
						r.Request.Object.Raw = []byte(`{"deleteOptions":{"preconditions":{"uid":"other"}}}`)
					}
				})
				allow := tc.allow || mode != Enforce
				if r.Allowed != allow {
					t.Fatalf("%s: allowed %t: %+v", mode, r.Allowed, r)
				}
				if !allow && (r.Result.Code != 429 || r.Result.Reason != metav1.StatusReasonTooManyRequests || !strings.Contains(r.Result.Message, tc.says)) {
					t.Errorf("%s: %+v", mode, r.Result)
				}
				if warns := len(r.Warnings) > 0; warns != (mode == Warn && !tc.allow) {
					t.Errorf("%s: warnings %v", mode, r.Warnings)
				}
			}
		})
	}
}

// TestNotSynced: a replica that has not read the cluster lets nothing pass that it might have to hold.
func TestNotSynced(t *testing.T) {
	for mode, allow := range map[Mode]bool{Enforce: false, Warn: true, Off: true} {
		w := edge("s")
		e := w.evictions(mode)
		e.Synced = func() bool { return false }
		_, r := post(e.Handler(Serving{}), review("p"))
		if r.Allowed != allow || !allow && (r.Result.Code != 429 || r.Result.Details.RetryAfterSeconds != 1) {
			t.Errorf("%s: %+v", mode, r)
		}
		if w.reads != 0 {
			t.Errorf("%s: %d reads", mode, w.reads)
		}
	}
}

// TestDeadline: an API server that does not answer is waited for until the gate's own deadline, or less where the caller
// waits less, and then there is an answer.
func TestDeadline(t *testing.T) {
	for query, want := range map[string]time.Duration{"": 5 * time.Second, "timeout=10s": 5 * time.Second, "timeout=2s": 1500 * time.Millisecond, "timeout=600ms": 300 * time.Millisecond, "timeout=x": 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := edge("s")
			w.fail = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
			began := time.Now()
			_, r := post(w.evictions(Enforce).Handler(Serving{}), review("p"), func(req *http.Request) { req.URL.RawQuery = query })
			if took := time.Since(began); took != want || r.Allowed || r.Result.Code != 429 {
				t.Errorf("%q: after %s, want %s: %+v", query, took, want, r)
			}
		})
	}
}

// TestEvictionReadsAhead: what slices show is read at once; where they lag, what is true is read and decides.
func TestEvictionReadsAhead(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(w *world)
		takes  time.Duration // in reads, one after another
		reads  int
		allow  bool
	}{
		"as slices show it":  {func(*world) {}, 1, 3, true},
		"on another node":    {func(w *world) { w.pod("p", "n2") }, 3, 5, false},
		"reborn":             {func(w *world) { w.pod("p", "n1").UID = "another" }, 2, 4, true},
		"no keeper any more": {func(w *world) { w.pod("k", "n1") }, 1, 3, false},
		"in no slice yet": {func(w *world) {
			w.service("s", nil, [2]string{"k", "n1"}, [2]string{"o", "n2"})
		}, 3, 3, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := edge("s")
			tc.change(w)
			w.fail = func(context.Context, string) error { time.Sleep(time.Second); return nil }
			began := time.Now()
			r := w.ask(t, Enforce, "p")
			if took := time.Since(began); took != tc.takes*time.Second || w.reads != tc.reads || r.Allowed != tc.allow {
				t.Errorf("%s: %s, %d reads, allowed %v; want %s, %d, %v", name, took, w.reads, r.Allowed, tc.takes*time.Second, tc.reads, tc.allow)
			}
		})
	}
}

// TestPanic: a fault of the gate is an answer of HTTP, and the failurePolicy decides.
func TestPanic(t *testing.T) {
	for _, of := range []string{"pod p", "node n1", "pod k"} { // the last one is read beside others
		w := edge("s")
		w.fail = func(_ context.Context, what string) error {
			if what == of {
				panic("a fault")
			}
			return nil
		}
		if code, r := post(w.evictions(Enforce).Handler(Serving{}), review("p")); code != http.StatusInternalServerError || r != nil {
			t.Errorf("reading %s: status %d, response %+v", of, code, r)
		}
	}
}

// TestManyBeside: with many pods of a Service on a node reading ends at the first keepers that do.
func TestManyBeside(t *testing.T) {
	w := newWorld()
	w.node("n1")
	w.node("n2")
	var endpoints [][2]string
	for i := range 60 {
		name := string(rune('a'+i/26)) + string(rune('a'+i%26))
		w.pod(name, "n1")
		endpoints = append(endpoints, [2]string{name, "n1"})
	}
	w.pods["ac"].Annotations[guard.AnnotationKeeper] = "s"
	w.service("s", nil, endpoints...)
	if r := w.ask(t, Enforce, "ca"); !r.Allowed || w.reads != 2+firstReads {
		t.Errorf("%d reads: %+v", w.reads, r)
	}
	w.reads = 0
	if r := w.ask(t, Enforce, "ac"); r.Allowed {
		t.Errorf("the kept one: %+v", r)
	}
}

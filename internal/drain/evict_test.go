package drain

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func status(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: &metav1.StatusDetails{},
	}}
}

func budget429(retryAfter int32, cause string) error {
	e := status(429, metav1.StatusReasonTooManyRequests, "Cannot evict pod as it would violate the pod's disruption budget.")
	e.ErrStatus.Details.RetryAfterSeconds = retryAfter
	e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause, Message: cause}}
	return e
}

func denial(code int32) error {
	return status(code, metav1.StatusReasonForbidden, `admission webhook "evict.kafka.example" denied the request: the operator moves it`)
}

// first answers the first tries with err and later ones with nil.
func first(tries int, err error) func(int) error {
	return func(try int) error {
		if try <= tries {
			return err
		}
		return nil
	}
}

func always(err error) func(int) error { return func(int) error { return err } }

func TestAnswersToEvictions(t *testing.T) {
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p")
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("the object has been modified"))
	reset := fmt.Errorf("read: %w", syscall.ECONNRESET)
	hold := budget429(0, "The disruption budget ledger needs 2 healthy pods and has 2 currently")
	nsTerminating := status(403, metav1.StatusReasonForbidden, "namespace web is being terminated")
	nsTerminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	tests := map[string]struct {
		answer  func(try int) error
		timeout time.Duration
		goes    time.Duration // the pod goes by itself then; 0: it does not
		slow    time.Duration // before an eviction is answered

		want     Outcome
		atMost   int // calls
		atLeast  int
		tookMin  time.Duration
		tookMax  time.Duration
		blocked  string
		inErr    string
		stillHas bool
	}{
		"accepted":                            {answer: always(nil), want: Done, atMost: 1, atLeast: 1, tookMax: 2 * time.Second},
		"not found is gone":                   {answer: always(notFound), goes: time.Second, slow: 2 * time.Second, want: Done, atMost: 1, tookMax: 3 * time.Second},
		"conflict, then accepted":             {answer: first(2, conflict), want: Done, atMost: 3, atLeast: 3, tookMax: 5 * time.Second},
		"budget for 60 s: at most 13 calls":   {answer: always(hold), timeout: time.Minute, want: Unfinished, atMost: 13, atLeast: 10, blocked: "budget web/ledger", stillHas: true},
		"budget, then free":                   {answer: first(3, hold), want: Done, atMost: 4, atLeast: 4, tookMin: 15 * time.Second, blocked: "budget web/ledger"},
		"budget with Retry-After 10":          {answer: first(1, budget429(10, "The disruption budget ledger is still being processed by the server.")), want: Done, atMost: 2, tookMin: 10 * time.Second, tookMax: 14 * time.Second, blocked: "budget web/ledger"},
		"two budgets are for good":            {answer: always(status(500, metav1.StatusReasonInternalError, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")), want: Unfinished, atMost: 1, blocked: "more than one budget", stillHas: true},
		"webhook 403, then accepted":          {answer: first(3, denial(403)), want: Done, atMost: 4, blocked: "webhook evict.kafka.example"},
		"webhook 500, the pod moves":          {answer: always(denial(500)), goes: 20 * time.Second, want: Done, tookMin: 20 * time.Second, tookMax: 21 * time.Second, blocked: "webhook evict.kafka.example"},
		"webhook without end":                 {answer: always(denial(400)), timeout: time.Minute, want: Unfinished, atMost: 25, blocked: "webhook evict.kafka.example", stillHas: true},
		"a webhook that cannot be called":     {answer: first(1, status(500, metav1.StatusReasonInternalError, `Internal error occurred: failed calling webhook "v.example": EOF`)), want: Done, atMost: 2, blocked: "webhook v.example"},
		"500 once":                            {answer: first(1, status(500, metav1.StatusReasonInternalError, "EOF")), want: Done, atMost: 2, atLeast: 2, tookMax: 4 * time.Second},
		"503 without end, no timeout":         {answer: always(status(503, metav1.StatusReasonServiceUnavailable, "down")), want: Unfinished, tookMin: 10 * time.Minute, tookMax: 11 * time.Minute, atMost: 40, inErr: "down", stillHas: true},
		"connection reset, then accepted":     {answer: first(2, reset), want: Done, atMost: 3, atLeast: 3, tookMax: 5 * time.Second},
		"RBAC is for good":                    {answer: always(status(403, metav1.StatusReasonForbidden, `pods "p" is forbidden: User "eve" cannot create resource "pods/eviction" in API group "" in the namespace "web"`)), want: Failed, atMost: 1, inErr: "cannot create resource", stillHas: true},
		"expired credentials are for good":    {answer: always(status(401, metav1.StatusReasonUnauthorized, "Unauthorized")), want: Failed, atMost: 1, inErr: "Unauthorized", stillHas: true},
		"a namespace that ends takes the pod": {answer: always(nsTerminating), goes: 10 * time.Second, want: Done, tookMin: 10 * time.Second, tookMax: 11 * time.Second},
		"throttled five times":                {answer: first(5, status(429, metav1.StatusReasonTooManyRequests, "too many requests")), want: Done, atMost: 6, atLeast: 6, tookMin: 20 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld("n1", "n2")
				p := w.pod("p", "n1", "app")
				w.api.answer = func(_ *corev1.Pod, try int) error { return tc.answer(try) }
				if tc.slow > 0 {
					w.api.before = func(c call) error {
						if c.verb == "evict" {
							time.Sleep(tc.slow)
						}
						return nil
					}
				}
				if tc.goes > 0 {
					time.AfterFunc(tc.goes, func() { w.api.finish(p) })
				}
				opts := options("n1")
				opts.Timeout = tc.timeout
				start := time.Now()
				res := w.runner(t, "r1").Drain(t.Context(), opts)
				took := time.Since(start)
				if res.Outcome != tc.want {
					t.Errorf("outcome %d (%v), want %d", res.Outcome, res.Err, tc.want)
				}
				calls := len(w.api.calls("evict"))
				if tc.atMost > 0 && calls > tc.atMost || calls < tc.atLeast {
					t.Errorf("%d calls, want %d to %d", calls, tc.atLeast, tc.atMost)
				}
				if took < tc.tookMin || tc.tookMax > 0 && took > tc.tookMax {
					t.Errorf("took %s, want %s to %s", took, tc.tookMin, tc.tookMax)
				}
				if tc.inErr != "" && (res.Err == nil || !strings.Contains(res.Err.Error(), tc.inErr)) {
					t.Errorf("error %v does not say %q", res.Err, tc.inErr)
				}
				if (w.api.pod("web/p") != nil) != tc.stillHas {
					t.Errorf("pod is there: %v", !tc.stillHas)
				}
				var by []string
				for _, e := range eventsOf[PodBlocked](w) {
					by = append(by, e.By)
				}
				var want []string
				if tc.blocked != "" {
					want = []string{tc.blocked}
				}
				if tc.blocked != "" {
					if diff := cmp.Diff(want, by); diff != "" {
						t.Errorf("told who blocks (-want +got): %s", diff)
					}
				}
			})
		})
	}
}

// A pod of the same name and another UID is another pod: C22.
func TestRebornPodIsNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		p := w.pod("kafka-1", "n1", "kafka")
		w.api.answer = func(p *corev1.Pod, _ int) error {
			if p.UID == "uid-kafka-1" {
				return denial(403)
			}
			return nil
		}
		time.AfterFunc(7*time.Second, func() {
			w.api.finish(p)
			q := p.DeepCopy()
			q.UID, q.Spec.NodeName = "U2", "n2"
			w.api.addPod(q)
		})
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		for _, c := range w.api.calls("evict") {
			if c.uid != "uid-kafka-1" {
				t.Errorf("evicted %s with uid %s", c.what, c.uid)
			}
		}
		if w.api.pod("web/kafka-1") == nil {
			t.Error("the reborn pod is gone")
		}
	})
}

// 60 of 300 pods are held for ever: the others go in the first pass, and each held one is reported once. C75.
func TestHeldPodsHoldNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		for i := range 300 {
			w.pod(fmt.Sprintf("p%03d", i), "n1", "app")
		}
		w.api.answer = func(p *corev1.Pod, _ int) error {
			if p.Name < "p060" {
				return budget429(0, "The disruption budget b needs 1 healthy pods and has 1 currently")
			}
			return nil
		}
		opts := options("n1")
		opts.Timeout = time.Minute
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		if res.Outcome != Unfinished {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		begin := w.api.calls("evict")[0].at
		at := map[string]time.Duration{}
		for _, c := range w.api.calls("evict") {
			at[c.what] = c.at.Sub(begin)
		}
		for i := 60; i < 300; i++ {
			if d := at[fmt.Sprintf("pods/web/p%03d", i)]; d > time.Second {
				t.Errorf("p%03d was tried after %s", i, d)
			}
		}
		if n := len(w.api.calls("evict")); n > 240+60*13 {
			t.Errorf("%d calls", n)
		}
		if n := len(eventsOf[PodBlocked](w)); n != 60 {
			t.Errorf("%d pods reported as blocked, want 60", n)
		}
		s := res.Nodes[0]
		if s.PodsGone != 240 || len(s.Blocked) != 1 || len(s.Blocked[0].Pods) != 60 {
			t.Errorf("gone %d, blocked %v", s.PodsGone, s.Blocked)
		}
	})
}

func TestRequestsOfAPlainDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		for i := range 250 {
			w.pod(fmt.Sprintf("p%03d", i), "n1", "app")
		}
		start := time.Now()
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		count := map[string]int{}
		for _, c := range w.api.log {
			count[c.verb+" "+strings.SplitN(c.what, "/", 2)[0]]++
		}
		t.Logf("%d requests in %s: %v", len(w.api.log), time.Since(start), count)
		if n := len(w.api.log); n > 250+20 {
			t.Errorf("%d requests for 250 pods", n)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %s although each pod ends in a second", took)
		}
	})
}

func TestGracePeriodAndDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		opts := options("n1")
		opts.GracePeriod, opts.Flags.DisableEviction = 5, true
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		deletes := w.api.calls("delete")
		if res.Outcome != Done || len(deletes) != 1 || len(w.api.calls("evict")) != 0 {
			t.Fatalf("outcome %d (%v), deletes %v", res.Outcome, res.Err, deletes)
		}
		if d := deletes[0]; d.uid != "uid-p" || d.grace == nil || *d.grace != 5 {
			t.Errorf("uid %q, grace %v", d.uid, d.grace)
		}
		if e := eventsOf[PodEvicted](w); len(e) != 1 || !e[0].Deleted {
			t.Errorf("events %v", e)
		}
	})
}

// An unreachable node: the eviction succeeds and nobody confirms the end. C32.
func TestSilentKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.api.setNode("n1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
		w.pod("p", "n1", "app")
		w.api.ends = func(*corev1.Pod) time.Duration { return -1 }
		start := time.Now()
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done {
			t.Fatalf("outcome %d: %v", res.Outcome, res.Err)
		}
		if took := time.Since(start); took < 60*time.Second || took > 63*time.Second {
			t.Errorf("took %s, want the grace of 30s and the margin of 30s", took)
		}
		if len(eventsOf[Warned](w)) != 1 {
			t.Errorf("warnings %v", eventsOf[Warned](w))
		}
	})
}

func TestSkipWaitForDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		w.api.ends = func(*corev1.Pod) time.Duration { return -1 }
		opts := options("n1")
		opts.SkipWaitForDeleteTimeout = 10 * time.Second
		start := time.Now()
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		if took := time.Since(start); res.Outcome != Done || took < 40*time.Second || took > 43*time.Second {
			t.Errorf("outcome %d (%v) after %s", res.Outcome, res.Err, took)
		}
	})
}

// A finalizer: the pod never goes.
func TestPodThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		w.pod("p", "n1", "app")
		w.api.ends = func(*corev1.Pod) time.Duration { return -1 }
		opts := options("n1")
		opts.Timeout = 3 * time.Minute
		res := w.runner(t, "r1").Drain(t.Context(), opts)
		var timedOut *TimedOut
		if res.Outcome != Unfinished || !errors.As(res.Err, &timedOut) {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		if n := len(eventsOf[Waiting](w)); n < 2 || n > 3 {
			t.Errorf("%d signs of life in 3 minutes", n)
		}
		if len(res.Nodes[0].Remaining) != 1 {
			t.Errorf("remaining %v", res.Nodes[0].Remaining)
		}
	})
}

// The server restarts in the middle: the watch breaks, calls fail for a while, and the drain goes on.
func TestServerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("n1", "n2")
		for i := range 40 {
			w.pod(fmt.Sprintf("p%d", i), "n1", "app")
		}
		w.api.ends = func(*corev1.Pod) time.Duration { return 10 * time.Second }
		start := time.Now()
		w.api.before = func(call) error {
			if d := time.Since(start); d > 2*time.Second && d < 30*time.Second {
				return syscall.ECONNREFUSED
			}
			return nil
		}
		time.AfterFunc(2*time.Second, w.api.breakWatches)
		res := w.runner(t, "r1").Drain(t.Context(), options("n1"))
		if res.Outcome != Done {
			t.Errorf("outcome %d: %v", res.Outcome, res.Err)
		}
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("took %s", took)
		}
	})
}

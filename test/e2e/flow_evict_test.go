package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/safedrain/safedrain/test/controlplane"
)

// heldBack are n pods of an app on n1 that a budget holds as long as a pod on n2 is not Ready.
func heldBack(t *testing.T, n int) *scene {
	t.Helper()
	s := newScene(t, 2)
	for i := range n {
		s.pod("db", fmt.Sprintf("db-%d", i), s.nodes[0])
	}
	s.pod("db", "db-unready", s.nodes[1], controlplane.With(map[string]string{controlplane.Ready: "false"}))
	s.Budget("db", intstr.FromInt(n))
	s.remember()
	return s
}

// TestC25BudgetStaysExhausted: no pod is tried more often than once and every five seconds after, other pods do not wait,
// one line is said for all, and the run ends with its timeout.
func TestC25BudgetStaysExhausted(t *testing.T) {
	const n, timeout = 6, 12 * time.Second
	s := heldBack(t, n)
	free := s.pod("free", "free", s.nodes[0])
	r := s.relay(nil)
	e := s.run(s.nodes[0], "--force", "--timeout="+timeout.String())
	e.want(s, 4, "is not drained after 12s", "6 pods held by budget "+s.Namespace+"/db")
	most := 1 + int(timeout.Seconds())/5
	for i := range n {
		got := r.answers(fmt.Sprintf("db-%d", i))
		if len(got) < 2 || len(got) > most || slices.ContainsFunc(got, func(code int) bool { return code != http.StatusTooManyRequests }) {
			t.Errorf("db-%d: answers %v, want 2 to %d times 429", i, got, most)
		}
	}
	r.oneAtATime()
	s.gone(free)
	for i := range n {
		if calls := r.of(fmt.Sprintf("db-%d", i)); len(calls) > 1 && s.journal.get("evicted free").at.After(calls[1].began) {
			t.Errorf("a pod that nothing holds was evicted only when %s was tried again", calls[1].pod)
		}
	}
	if lines := strings.Count(e.stderr, "held by budget"); lines > 2 { // when it starts, and at the end
		t.Errorf("%d lines about the budget:\n%s", lines, e.stderr)
	}
	s.holds(s.nodes[0], true, false, true)
	s.back(s.nodes[0])
}

// TestC25BudgetReleased: pods go on soon after the budget allows it.
func TestC25BudgetReleased(t *testing.T) {
	s := heldBack(t, 2)
	r := s.relay(nil)
	b := s.start(s.nodes[0], "--force", "--timeout=100s")
	s.Wait("both tried", func(context.Context) (bool, string, error) { return len(r.of("")) >= 2, "", nil })
	s.end("db-unready")
	s.pod("db", "db-new-1", s.nodes[1])
	s.pod("db", "db-new-2", s.nodes[1])
	e := b.end(s)
	e.want(s, 0)
	for _, pod := range []string{"db-0", "db-1"} {
		if got := r.answers(pod); len(got) < 2 || got[0] != http.StatusTooManyRequests || got[len(got)-1] != http.StatusCreated {
			t.Errorf("%s: answers %v, want 429 and at last 201", pod, got)
		}
	}
	s.back(s.nodes[0])
}

// TestC25RetryAfter: a budget that is still being processed comes with the seconds to wait, which are waited.
func TestC25RetryAfter(t *testing.T) {
	s := newScene(t, 1)
	pod := s.pod("web", "web-1", s.nodes[0])
	s.remember()
	processed := metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web is still being processed by the server."}
	r := s.relay(func(_ string, n int) http.HandlerFunc {
		if n > 1 {
			return nil
		}
		return replies(429, metav1.StatusReasonTooManyRequests, "Cannot evict pod as it would violate the pod's disruption budget.", 10, processed)
	})
	s.run(s.nodes[0], "--force").want(s, 0)
	calls := r.of("web-1")
	if len(calls) != 2 || calls[1].began.Sub(calls[0].ended) < 10*time.Second {
		t.Errorf("answers %v, want 429 and 201 ten seconds later", r.answers("web-1"))
	}
	s.gone(pod)
	s.back(s.nodes[0])
}

// evictedAtOnce is how many evictions of a node are under way at the same time.
const evictedAtOnce = 25

// TestC25Throttled: a 429 without a cause is the API server's own limit, and everything pauses.
func TestC25Throttled(t *testing.T) {
	s := newScene(t, 1)
	s.Deployment("web", 40) // more than are under way at once
	s.remember()
	r := s.relay(func(_ string, n int) http.HandlerFunc {
		if n > 1 {
			return nil
		}
		return replies(429, metav1.StatusReasonTooManyRequests, "Too many requests, please try again later.", 3)
	})
	s.run(s.nodes[0], "--force").want(s, 0)
	// What is under way at the first answer goes on; then nothing begins for three seconds.
	calls := r.of("")
	slices.SortFunc(calls, func(a, b *evictionCall) int { return a.began.Compare(b.began) })
	before, longest := 0, time.Duration(0)
	for i := 1; i < len(calls); i++ {
		pause := calls[i].began.Sub(calls[i-1].began)
		if before == 0 && pause >= 2900*time.Millisecond {
			before = i
		}
		longest = max(longest, pause)
	}
	if before == 0 || before > evictedAtOnce {
		t.Errorf("%d evictions began before there was a pause, want %d at most, which were under way", before, evictedAtOnce)
	}
	if longest > 20*time.Second { // those under way at the same time are one answer, not a reason to wait ever longer
		t.Errorf("paused for %s where the API server asked for 3s", longest)
	}
	s.back(s.nodes[0])
}

// TestC65Conflicts: a conflict is tried again, one eviction of a pod at a time.
func TestC65Conflicts(t *testing.T) {
	s := newScene(t, 2)
	for i := range 6 {
		s.pod("w", fmt.Sprintf("w-a%d", i), s.nodes[0])
		s.pod("w", fmt.Sprintf("w-b%d", i), s.nodes[1])
	}
	s.Budget("w", intstr.FromInt(5))
	s.remember()
	r := s.relay(func(_ string, n int) http.HandlerFunc {
		if n > 2 {
			return nil
		}
		return replies(409, metav1.StatusReasonConflict, "Operation cannot be fulfilled on poddisruptionbudgets.policy \"w\": the object has been modified", 0)
	})
	s.run(s.nodes[0], "--force").want(s, 0)
	for i := range 6 {
		name := fmt.Sprintf("w-a%d", i)
		if diff := cmp.Diff([]int{409, 409, 201}, r.answers(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if calls := r.of(name); calls[2].began.Sub(calls[1].ended) < 400*time.Millisecond {
			t.Errorf("%s was tried again %s after a conflict", name, calls[2].began.Sub(calls[1].ended))
		}
	}
	r.oneAtATime()
	s.back(s.nodes[0])
}

// unprovenThree is a NodePort Service, which nobody can prove anything of, with three pods on n1 and one on n2.
// Those on n1 serve for some seconds after their deletion.
func unprovenThree(t *testing.T, serves string) (s *scene, elsewhere *corev1.Pod) {
	t.Helper()
	s = newScene(t, 2)
	for i := range 3 {
		s.pod("web", fmt.Sprintf("web-%d", i), s.nodes[0], graceOf(30, serves))
	}
	elsewhere = s.pod("web", "web-elsewhere", s.nodes[1])
	s.Budget("web", intstr.FromInt(1))
	s.Service("web")
	s.EndpointsReady("web", 4)
	s.remember()
	return s, elsewhere
}

// TestC65OneAtATime: on a node that is still in rotation pods of one Service go one after another, whatever the budget
// would allow.
func TestC65OneAtATime(t *testing.T) {
	s, _ := unprovenThree(t, "2")
	s.run(s.nodes[0], "--force", "--accept-unproven="+s.Namespace+"/web").want(s, 0, "not proven, accepted by flag")
	s.journal.inOrder("evicted web-0", "gone web-0", "evicted web-1", "gone web-1", "evicted web-2", "gone web-2")
	s.back(s.nodes[0])
}

// TestC65CoverageReadAnew: between two pods the other nodes are looked at: when their last endpoint is lost, no further pod
// goes.
func TestC65CoverageReadAnew(t *testing.T) {
	s, elsewhere := unprovenThree(t, "never")
	b := s.start(s.nodes[0], "--force", "--accept-unproven="+s.Namespace+"/web")
	s.journal.get("evicted web-0")
	s.end(elsewhere.Name)
	s.EndpointsReady("web", 2)
	s.end("web-0")
	e := b.end(s)
	e.want(s, 4, "no endpoint is left elsewhere for "+s.Namespace+"/web", "safedrain uncordon "+s.nodes[0])
	s.journal.get("gone web-0")
	s.journal.never("evicted web-1", "evicted web-2")
	s.holds(s.nodes[0], true, false, true)
	s.back(s.nodes[0])
}

// TestC23Reset: a connection that breaks is tried again.
func TestC23Reset(t *testing.T) {
	s := newScene(t, 1)
	pod := s.pod("vm1", "vm1", s.nodes[0])
	s.remember()
	r := s.relay(func(_ string, n int) http.HandlerFunc {
		if n > 1 {
			return nil
		}
		return hangsUp
	})
	s.run(s.nodes[0], "--force").want(s, 0)
	if n := len(r.of("vm1")); n != 2 {
		t.Errorf("%d evictions, want 2", n)
	}
	s.gone(pod)
	s.back(s.nodes[0])
}

// TestC22Forbidden: what RBAC forbids is permanent; nothing stays behind.
func TestC22Forbidden(t *testing.T) {
	s := newScene(t, 1)
	pod := s.pod("kafka", "kafka-1", s.nodes[0])
	s.remember()
	user := "no-evictions-" + s.Namespace
	s.mayAllBut(user)
	may(s.Env, user, permission{"", "nodes", "patch"})
	config, err := cluster.UserConfig(user)
	if err != nil {
		t.Fatal(err)
	}
	s.via = s.TempDir() + "/kubeconfig"
	if err := controlplane.WriteKubeconfig(config, s.via); err != nil {
		t.Fatal(err)
	}
	e := s.run(s.nodes[0], "--force", "--timeout=30s")
	e.want(s, 1, "pods/eviction")
	if e.took >= 30*time.Second {
		t.Errorf("gave up after %s only", e.took)
	}
	s.alive(pod)
	s.standsAsBefore(s.nodes[0])
}

// mayAllBut lets a user read everything and patch nodes, and nothing else.
func (s *scene) mayAllBut(user string) {
	s.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"patch"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
	}
	rbac := s.Client.RbacV1()
	if _, err := rbac.ClusterRoles().Create(s.Context(), role, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	if _, err := rbac.ClusterRoleBindings().Create(s.Context(), binding, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = rbac.ClusterRoles().Delete(context.Background(), user, metav1.DeleteOptions{})
		_ = rbac.ClusterRoleBindings().Delete(context.Background(), user, metav1.DeleteOptions{})
	})
}

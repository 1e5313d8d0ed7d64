package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/safedrain/safedrain/pkg/guard"
)

// operated is a database pod on n1 under a budget that demands all there is, with another pod that nothing holds.
func operated(t *testing.T, mutate ...func(*scene, *policyv1.PodDisruptionBudget)) (s *scene, db, other *corev1.Pod) {
	t.Helper()
	s = newScene(t, 2)
	s.defineKinds()
	db = s.pod("db", "db-0", s.nodes[0])
	other = s.pod("other", "other-0", s.nodes[0])
	s.Budget("db", intstr.FromInt(1), func(pdb *policyv1.PodDisruptionBudget) {
		for _, m := range mutate {
			m(s, pdb)
		}
	})
	s.remember()
	return s, db, other
}

// operator releases the budget when the node is cordoned and the other pod was evicted, and not before: the run is past its
// last plan then, which would not have to wait for a budget that allows.
func (s *scene) operator(node string, other *corev1.Pod) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
			if err != nil || !n.Spec.Unschedulable {
				continue
			}
			if _, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, other.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				continue
			}
			patch := []byte(`{"spec":{"minAvailable":0}}`)
			_, err = s.Client.PolicyV1().PodDisruptionBudgets(s.Namespace).Patch(ctx, "db", types.MergePatchType, patch, metav1.PatchOptions{})
			if err == nil {
				return
			}
		}
	}()
	s.Cleanup(func() { cancel(); <-done })
}

// ownedByDatabase makes a custom resource the owner of the budget.
func ownedByDatabase(s *scene, pdb *policyv1.PodDisruptionBudget) {
	db := s.custom(databases, "Database", "db", map[string]any{})
	pdb.OwnerReferences = []metav1.OwnerReference{{APIVersion: db.GetAPIVersion(), Kind: db.GetKind(), Name: db.GetName(), UID: db.GetUID()}}
}

func annotatedToWait(_ *scene, pdb *policyv1.PodDisruptionBudget) {
	pdb.Annotations = map[string]string{guard.AnnotationBudget: "wait"}
}

// TestBudgetHeld: a budget that an operator releases once the node is cordoned does not refuse the drain, told by its
// owner, by its annotation or by a flag.
func TestBudgetHeld(t *testing.T) {
	for name, test := range map[string]struct {
		mutate []func(*scene, *policyv1.PodDisruptionBudget)
		flag   bool
	}{
		"by ownership":  {mutate: []func(*scene, *policyv1.PodDisruptionBudget){ownedByDatabase}},
		"by annotation": {mutate: []func(*scene, *policyv1.PodDisruptionBudget){annotatedToWait}},
		"by flag":       {flag: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, db, other := operated(t, test.mutate...)
			n1 := s.nodes[0]
			args := []string{n1, "--force", "--timeout=100s", "-o", "json"}
			if test.flag {
				s.run(args...).want(s, 3) // nobody says that it will be released
				s.standsAsBefore(n1)
				args = append(args, "--wait-budget="+s.Namespace+"/db")
			}
			s.operator(n1, other)
			e := s.run(args...)
			e.want(s, 0)
			if f, ok := findingCodes(e.report(s))[guard.BudgetHeld]; !ok || f.Budget != s.Namespace+"/db" || f.Severity != guard.Warn {
				t.Errorf("no BudgetHeld in %s", e.stdout)
			}
			s.gone(db, other)
			s.journal.inOrder("cordoned "+n1, "evicted db-0")
			s.back(n1)
		})
	}
}

// TestBudgetNeverReleased: everything else is gone when the time is over, and the budget is named once.
func TestBudgetNeverReleased(t *testing.T) {
	s, db, other := operated(t, ownedByDatabase)
	n1 := s.nodes[0]
	second := s.pod("db", "db-1", n1)
	patch := []byte(`{"spec":{"minAvailable":2}}`)
	if _, err := s.Client.PolicyV1().PodDisruptionBudgets(s.Namespace).Patch(s.Context(), "db", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Wait("budget computed", func(ctx context.Context) (bool, string, error) {
		pdb, err := s.Client.PolicyV1().PodDisruptionBudgets(s.Namespace).Get(ctx, "db", metav1.GetOptions{})
		return err == nil && pdb.Status.DesiredHealthy == 2 && pdb.Status.CurrentHealthy == 2 && pdb.Status.DisruptionsAllowed == 0, "not yet", err
	})
	e := s.run(n1, "--force", "--timeout=7s")
	e.want(s, 4, "2 pods held by budget "+s.Namespace+"/db")
	s.alive(db, second)
	s.gone(other)
	meanwhile, end, _ := strings.Cut(e.stderr, "error: ")
	for when, text := range map[string]string{"while it waits": meanwhile, "at its end": end} {
		if n := strings.Count(text, "budget "+s.Namespace+"/db"); n != 1 {
			t.Errorf("the run names the budget %d times %s, want once:\n%s", n, when, text)
		}
	}
	s.holds(n1, true, false, true)
	s.back(n1)
}

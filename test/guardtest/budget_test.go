package guardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/sweep"
)

const workers = 8

// situation is one pod and the budgets of its namespace, which no controller touches.
type situation struct {
	name    string
	pod     *corev1.Pod
	status  corev1.PodStatus
	deleted bool // the pod is being deleted already
	budgets []*policyv1.PodDisruptionBudget
}

// TestEvictionAgainstAPIServer shows that guard predicts what the real API server answers to an eviction.
func TestEvictionAgainstAPIServer(t *testing.T) {
	c := controlplane.New(t, controlplane.Options{WithoutKwok: true, WithoutScheduler: true, WithoutControllerManager: true})
	client := c.Client()
	s, situations := sweep.Seed(t, rand.Uint64()), sweep.Size(t, 120, 600)
	r := rand.New(rand.NewPCG(s, 1))
	jobs := make(chan *situation)
	answers := map[int]int{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for sit := range jobs {
				code, err := judge(t.Context(), client, sit)
				if err != nil {
					t.Errorf("seed %d, %s: %v", s, sit.name, err)
				}
				mu.Lock()
				answers[code]++
				mu.Unlock()
			}
		})
	}
	for i := range situations {
		jobs <- randomSituation(r, fmt.Sprintf("s-%d", i))
	}
	close(jobs)
	group.Wait()
	t.Logf("seed %d: answers by code: %v", s, answers)
	for _, code := range []int{http.StatusCreated, http.StatusTooManyRequests, http.StatusForbidden, http.StatusInternalServerError} {
		if answers[code] < situations/200 {
			t.Errorf("only %d of %d situations were answered %d: the inputs show too little", answers[code], situations, code)
		}
	}
}

// judge creates a situation, evicts by a dry run and then for real, and compares: both have to answer the same.
func judge(ctx context.Context, client kubernetes.Interface, sit *situation) (int, error) {
	pod, budgets, err := sit.create(ctx, client)
	if err != nil {
		return 0, fmt.Errorf("create the situation: %w", err)
	}
	predicted := guard.PredictEviction(pod, budgets)
	var answers []int
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} {
		code, err := answerCode(evict(ctx, client, pod, dryRun))
		if err != nil {
			return 0, err
		}
		answers = append(answers, code)
	}
	if answers[0] != predicted.Code || answers[1] != predicted.Code {
		return answers[1], fmt.Errorf("guard predicts %d, the API server answers %d to a dry run and then %d\npod %+v\nbudgets %s",
			predicted.Code, answers[0], answers[1], pod.Status, describe(budgets))
	}
	return answers[1], nil
}

// evict asks once; a client would by itself ask again, for minutes, where the answer says when.
func evict(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, dryRun []string) error {
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun},
	}
	return client.PolicyV1().RESTClient().Post().AbsPath("/api/v1").Namespace(pod.Namespace).
		Resource("pods").Name(pod.Name).SubResource("eviction").Body(eviction).MaxRetries(0).Do(ctx).Error()
}

func answerCode(err error) (int, error) {
	if err == nil {
		return http.StatusCreated, nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0, fmt.Errorf("evict: %w", err)
	}
	return int(status.Status().Code), nil
}

// create makes the objects and returns them as a list would.
func (s *situation) create(ctx context.Context, client kubernetes.Interface) (*corev1.Pod, []*policyv1.PodDisruptionBudget, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return nil, nil, err
	}
	pods := client.CoreV1().Pods(s.name)
	pod, err := pods.Create(ctx, s.pod, metav1.CreateOptions{})
	if err != nil {
		return nil, nil, err
	}
	pod.Status = s.status
	if pod, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return nil, nil, err
	}
	if s.deleted {
		if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			return nil, nil, err
		}
		if pod, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return nil, nil, err
		}
	}
	var budgets []*policyv1.PodDisruptionBudget
	for _, b := range s.budgets {
		made, err := client.PolicyV1().PodDisruptionBudgets(s.name).Create(ctx, b, metav1.CreateOptions{})
		if err != nil {
			return nil, nil, err
		}
		made.Status = b.Status
		made.Status.ObservedGeneration += made.Generation
		made, err = client.PolicyV1().PodDisruptionBudgets(s.name).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		if err != nil {
			return nil, nil, err
		}
		budgets = append(budgets, made)
	}
	return pod, budgets, nil
}

func randomSituation(r *rand.Rand, name string) *situation {
	grace := int64(30)
	s := &situation{name: name, pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Labels: map[string]string{"app": "web", "tier": pick(r, "front", "back")}},
		Spec: corev1.PodSpec{
			NodeName: "node-1", TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
		},
	}}
	s.status.Phase = pick(r, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning,
		corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown)
	if ready := pick(r, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown, ""); ready != "" {
		s.status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	}
	finished := s.status.Phase == corev1.PodSucceeded || s.status.Phase == corev1.PodFailed // such a pod is gone at once
	s.deleted = !finished && oneIn(r, 12)
	for i := range pick(r, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3) {
		s.budgets = append(s.budgets, randomBudget(r, fmt.Sprintf("budget-%d", i)))
	}
	return s
}

func randomBudget(r *rand.Rand, name string) *policyv1.PodDisruptionBudget {
	one := intstr.FromInt32(1)
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if oneIn(r, 2) {
		b.Spec.MinAvailable = &one
	} else {
		b.Spec.MaxUnavailable = &one
	}
	b.Spec.Selector = randomSelector(r)
	always, healthy := policyv1.AlwaysAllow, policyv1.IfHealthyBudget
	b.Spec.UnhealthyPodEvictionPolicy = pick(r, nil, &always, &healthy)
	b.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: pick[int64](r, 0, 0, 0, 0, 0, -1), // added to the real one
		DisruptionsAllowed: pick[int32](r, 0, 0, 0, 1, 5),
		CurrentHealthy:     r.Int32N(4),
		DesiredHealthy:     r.Int32N(4),
		ExpectedPods:       r.Int32N(4),
	}
	if n := pick(r, 0, 0, 0, 0, 1, 1999, 2000, 2001); n > 0 {
		b.Status.DisruptedPods = map[string]metav1.Time{}
		for i := range n {
			b.Status.DisruptedPods[fmt.Sprintf("p-%d", i)] = metav1.NewTime(time.Unix(1_700_000_000, 0))
		}
	}
	if oneIn(r, 6) {
		b.Status.Conditions = []metav1.Condition{{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
			Message: "found no controller ref", LastTransitionTime: metav1.NewTime(time.Unix(1_700_000_000, 0)),
		}}
	}
	return b
}

// randomSelector selects the pod, or does not, in every way that a selector can be written; nil selects nothing.
func randomSelector(r *rand.Rand) *metav1.LabelSelector {
	expression := func(key string, op metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	return pick(r, web, web, web, web, &metav1.LabelSelector{}, nil,
		&metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "tier": "front"}},
		expression("tier", metav1.LabelSelectorOpIn, "front", "middle"),
		expression("tier", metav1.LabelSelectorOpNotIn, "front"),
		expression("tier", metav1.LabelSelectorOpExists),
		expression("zone", metav1.LabelSelectorOpDoesNotExist))
}

func describe(budgets []*policyv1.PodDisruptionBudget) string {
	var all string
	for _, b := range budgets {
		b := b.DeepCopy()
		if n := len(b.Status.DisruptedPods); n > 3 {
			b.Status.DisruptedPods = map[string]metav1.Time{fmt.Sprintf("%d of them", n): {}}
		}
		all += fmt.Sprintf("\n%s generation %d spec %+v status %+v", b.Name, b.Generation, b.Spec, b.Status)
	}
	return all
}

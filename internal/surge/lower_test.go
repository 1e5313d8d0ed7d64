package surge

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/pkg/guard"
)

var web = guard.Key{Namespace: ns, Name: "web"}

// object reads what a lever changes.
func object(t *testing.T, b *Bringer, l Lever) *unstructured.Unstructured {
	t.Helper()
	o, err := b.Dynamic.Resource(kinds[l.Kind].resource).Namespace(ns).Get(t.Context(), l.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(o.Object, "metadata", "resourceVersion")
	if labels := o.GetLabels(); len(labels) == 0 {
		unstructured.RemoveNestedField(o.Object, "metadata", "labels")
	}
	return o
}

// somebody patches the object of a lever.
func somebody(t *testing.T, b *Bringer, l Lever, patch string) {
	t.Helper()
	_, err := b.Dynamic.Resource(kinds[l.Kind].resource).Namespace(ns).Patch(t.Context(), l.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// TestUndo: what Raise changes Lower puts back exactly, unless somebody else has changed the number meanwhile.
func TestUndo(t *testing.T) {
	deployment, autoscaler, scaledObject := Lever{kindDeployment, "web", web}, Lever{kindAutoscaler, "web", web}, Lever{kindScaledObject, "web", web}
	const five, gone = `{"spec":{"replicas":5}}`, `{"metadata":{"labels":{"safedrain.dev/surge":null}},"spec":{"replicas":5}}`
	for name, test := range map[string]struct {
		lever     Lever
		change    func(*world)
		words     string // of what is raised
		meanwhile string // a patch by somebody
		back      bool
		note      string
	}{
		"a Deployment":        {deployment, func(*world) {}, "replicas 1 -> 2", "", true, ""},
		"an autoscaler":       {autoscaler, func(w *world) { w.scaler("web", 1, 5) }, "minReplicas of horizontalpodautoscaler/web 1 -> 2", "", true, ""},
		"its least is absent": {autoscaler, func(w *world) { w.scaler("web", 0, 5) }, "minReplicas of horizontalpodautoscaler/web none -> 2", "", true, ""},
		"more than its least": {autoscaler, func(w *world) { w.scaler("web", 1, 5); w.deployment.Spec.Replicas = ptr.To[int32](3) }, "minReplicas of horizontalpodautoscaler/web 1 -> 4", "", true, ""},
		"KEDA":                {scaledObject, func(w *world) { w.keda(map[string]string{"team": "a"}) }, "minReplicaCount of scaledobject/web none -> 2", "", true, ""},
		"changed meanwhile":   {deployment, func(*world) {}, "replicas 1 -> 2", five, false, "replicas of deployment shop/web is 5, and not the 2 of the surge: changed meanwhile, left as it is"},
		"replaced altogether": {deployment, func(*world) {}, "replicas 1 -> 2", gone, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.change(w)
			b := w.bringer()
			before := object(t, b, test.lever)
			r, err := b.Raise(t.Context(), test.lever, []string{"n1"})
			if err != nil || r.Taken {
				t.Fatalf("raised %+v: %v", r, err)
			}
			if r.Words() != test.words {
				t.Errorf("raised %s, want %s", r.Words(), test.words)
			}
			if again, err := b.Raise(t.Context(), test.lever, []string{"n1"}); err != nil || !again.Taken || again.Words() != test.words {
				t.Errorf("raised once more: %+v, %v; want the one that stands", again, err)
			}
			want := before
			if test.meanwhile != "" {
				somebody(t, b, test.lever, test.meanwhile)
				want = object(t, b, test.lever)
				unstructured.RemoveNestedField(want.Object, "metadata", "labels")
			}
			for range 2 { // twice does no more than once
				out, err := b.Lower(t.Context(), test.lever, nil)
				if err != nil || out.Back != test.back || out.Note != test.note {
					t.Errorf("lowered %+v, %v; want back %t, note %q", out, err, test.back, test.note)
				}
				test.back, test.note = false, ""
				if diff := cmp.Diff(want.Object, object(t, b, test.lever).Object); diff != "" {
					t.Errorf("not as it is to be (-want +got):\n%s", diff)
				}
			}
		})
	}
	b := newWorld().bringer()
	if out, err := b.Lower(t.Context(), scaledObject, nil); err != nil || out != (Lowered{}) {
		t.Errorf("of an object that is gone: %+v, %v", out, err)
	}
}

// TestConflict: a patch that comes too late reads anew, and never writes over what it did not read.
func TestConflict(t *testing.T) {
	b := newWorld().bringer()
	lever := Lever{kindDeployment, "web", web}
	conflicts := 2
	b.Dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("patch", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if conflicts--; conflicts < 0 {
			return false, nil, nil
		}
		if !strings.Contains(string(a.(clienttesting.PatchAction).GetPatch()), `"resourceVersion":`) {
			t.Error("a patch without resourceVersion")
		}
		return true, nil, apierrors.NewConflict(kinds[kindDeployment].resource.GroupResource(), "web", errors.New("changed"))
	})
	if r, err := b.Raise(t.Context(), lever, nil); err != nil || r.Words() != "replicas 1 -> 2" {
		t.Errorf("raised %v: %v", r, err)
	}
	conflicts = conflictTries
	if out, err := b.Lower(t.Context(), lever, nil); err == nil || out.Back {
		t.Errorf("lowered %+v against conflicts without end", out)
	}
}

// TestCountBack: an autoscaler's replica goes with its least, unless the autoscaler wants as many by itself.
func TestCountBack(t *testing.T) {
	status := func(active, limited corev1.ConditionStatus) autoscalingv2.HorizontalPodAutoscalerStatus {
		return autoscalingv2.HorizontalPodAutoscalerStatus{CurrentReplicas: 2, DesiredReplicas: 2, Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{
			{Type: autoscalingv2.ScalingActive, Status: active}, {Type: autoscalingv2.ScalingLimited, Status: limited, Reason: "TooFewReplicas"},
		}}
	}
	lever := Lever{kindAutoscaler, "web", web}
	for name, test := range map[string]struct {
		status autoscalingv2.HorizontalPodAutoscalerStatus
		want   int64
		note   string
	}{
		"held up by its least":   {status(corev1.ConditionTrue, corev1.ConditionTrue), 1, ""},
		"without metrics":        {status(corev1.ConditionFalse, corev1.ConditionFalse), 1, ""},
		"it has not looked yet":  {autoscalingv2.HorizontalPodAutoscalerStatus{CurrentReplicas: 1, DesiredReplicas: 1}, 1, ""},
		"by its metrics as many": {status(corev1.ConditionTrue, corev1.ConditionFalse), 2, "horizontalpodautoscaler shop/web wants 2 replicas of deployment shop/web by itself now, and keeps them"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.scaler("web", 1, 5).Status = test.status
			b := w.bringer()
			if _, err := b.Raise(t.Context(), lever, nil); err != nil {
				t.Fatal(err)
			}
			d := Lever{kindDeployment, "web", web}
			somebody(t, b, d, `{"spec":{"replicas":2}}`) // the autoscaler obeys
			out, err := b.Lower(t.Context(), lever, nil)
			got, _, _ := unstructured.NestedInt64(object(t, b, d).Object, "spec", "replicas")
			if err != nil || !out.Back || out.Note != test.note || got != test.want {
				t.Errorf("%d replicas, %+v, %v; want %d, note %q", got, out, err, test.want, test.note)
			}
		})
	}
}

// TestCost: the pod that is to go has the lowest deletion cost meanwhile, and its own again if it is still there.
func TestCost(t *testing.T) {
	lever := Lever{kindDeployment, "web", web}
	for name, test := range map[string]struct{ had, want string }{
		"none":               {"", ""},
		"one":                {"7", "7"},
		"of a run that died": {spent, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			victim := w.pods[0]
			if test.had != "" {
				victim.Annotations = map[string]string{corev1.PodDeletionCost: test.had}
			}
			b := w.bringer()
			cost := func() string {
				p, err := b.Client.CoreV1().Pods(ns).Get(t.Context(), victim.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return p.Annotations[corev1.PodDeletionCost]
			}
			if _, err := b.Raise(t.Context(), lever, nil); err != nil {
				t.Fatal(err)
			}
			during := ""
			b.Dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
				during = cost()
				return true, nil, errors.New("the API server is away")
			})
			if _, err := b.Lower(t.Context(), lever, victim); err == nil {
				t.Error("no error")
			}
			if during != spent || cost() != test.want {
				t.Errorf("cost %q while the number is put back, then %q; want %q, then %q", during, cost(), spent, test.want)
			}
		})
	}
}

func TestMark(t *testing.T) {
	for text, want := range map[string]*Mark{
		"1-2-3f2b":   {ptr.To[int64](1), 2, "3f2b"},
		"none-2-a-b": {nil, 2, "a-b"},
		"0-1-":       {ptr.To[int64](0), 1, ""},
		"":           nil, "1-2": nil, "x-2-a": nil, "1-x-a": nil, "1-99999999999-a": nil,
	} {
		got := parseMark(text)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
		if got != nil && got.String() != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
	for _, set := range []string{"", "hook:web", "surge:pod/web:shop/web", "surge:deployment/web", "surge:deployment:shop/web", "surge:deployment/web:shop"} {
		if l, ok := ParseSet(set); ok {
			t.Errorf("%q is read as %v", set, l)
		}
	}
}

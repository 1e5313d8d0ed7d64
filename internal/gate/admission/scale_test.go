package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

var (
	scaleNow = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	human    = "alice"
	hpa      = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
)

// scaleWorld is Deployment shop/web behind a NodePort Service of policy Local, with pods on nodes n1, n2, ....
type scaleWorld struct {
	store   *cluster.Store
	objects []runtime.Object
	service *corev1.Service
}

// newScaleWorld places pods: so many on each node.
func newScaleWorld(placed ...int) *scaleWorld {
	w := &scaleWorld{store: cluster.NewStore(hookset.New(hookset.Deps{}))}
	labels := map[string]string{"app": "web", "pod-template-hash": "1"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "d"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}},
		},
	}
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", UID: "rs", Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: ptr.To(true)}},
		},
		Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: d.Spec.Template},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(80)), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	total := 0
	for i, n := range placed {
		node := fmt.Sprintf("n%d", i+1)
		w.store.SetNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelHostname: node}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(scaleNow.Add(-time.Hour)),
			}}},
		})
		for range n {
			total++
			name := fmt.Sprintf("web-%d", total)
			ready := metav1.NewTime(scaleNow.Add(-time.Duration(total) * time.Minute))
			w.objects = append(w.objects, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: name, UID: types.UID(name), Labels: labels, CreationTimestamp: ready,
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs", Controller: ptr.To(true)}},
				},
				Spec: corev1.PodSpec{NodeName: node},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
					Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: ready,
				}}},
			})
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.0.0.%d", total)}, NodeName: ptr.To(node),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: name, UID: types.UID(name)},
			})
		}
	}
	d.Spec.Replicas, set.Spec.Replicas = ptr.To(int32(total)), ptr.To(int32(total))
	d.Status.Replicas, set.Status.Replicas = int32(total), int32(total)
	w.objects = append(w.objects, d, set)
	w.service = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, ClusterIP: "10.96.0.1",
			Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}},
		},
	}
	w.store.SetService(w.service.DeepCopy())
	w.store.SetSlice(slice)
	return w
}

// keepers marks a pod on each node, as the gate's controller does.
func (w *scaleWorld) keepers() {
	kept := map[string]bool{}
	for _, o := range w.objects {
		if pod, ok := o.(*corev1.Pod); ok && !kept[pod.Spec.NodeName] {
			kept[pod.Spec.NodeName] = true
			pod.Annotations = map[string]string{guard.AnnotationKeeper: "web", corev1.PodDeletionCost: guard.KeeperCost}
		}
	}
}

// annotate changes the Service.
func (w *scaleWorld) annotate(key, value string) {
	w.service.Annotations = map[string]string{key: value}
	w.service.ResourceVersion += "1"
	w.store.SetService(w.service.DeepCopy())
}

func (w *scaleWorld) scaler(policy ScalePolicy, m Mode) *Scaler {
	return &Scaler{
		Store: w.store, Workloads: LiveWorkloads{fake.NewClientset(w.objects...)}, Mode: m, Policy: policy,
		Synced: func() bool { return true }, Clock: testingclock.NewFakePassiveClock(scaleNow),
	}
}

// scaleReview is a review of a Scale; -1 leaves the replicas out, as 0 is.
func scaleReview(before, after int32, user string) *admissionv1.AdmissionRequest {
	raw := func(n int32) runtime.RawExtension {
		spec := map[string]any{}
		if n > 0 {
			spec["replicas"] = n
		}
		text, _ := json.Marshal(map[string]any{"kind": "Scale", "metadata": map[string]any{"uid": "d"}, "spec": spec})
		return runtime.RawExtension{Raw: text}
	}
	return &admissionv1.AdmissionRequest{
		UID: "r", Namespace: "shop", Name: "web", Resource: metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		SubResource: "scale", Object: raw(after), OldObject: raw(before), UserInfo: authenticationv1.UserInfo{Username: user},
	}
}

// TestScale: what each policy and mode answers to a mutating and to a validating webhook.
func TestScale(t *testing.T) {
	type want struct {
		mutate, check string // decision and reason
		replicas      int32  // of the patch
		message       string // of the refusal, or the warning of the first
	}
	three := "3 nodes send for Service shop/web"
	tests := map[string]struct {
		placed        []int
		policy        ScalePolicy
		mode          Mode
		before, after int32
		user          string
		annotate      [2]string
		want          want
	}{
		"clamped at the floor": {
			[]int{2, 2, 2},
			ScaleClamp, Enforce, 6, 2, hpa,
			[2]string{},
			want{"clamp BelowFloor", "deny BelowFloor", 3, "safedrain kept 3 replicas, asked for 2: " + three},
		},
		"denied": {
			[]int{2, 2, 2},
			ScaleDeny, Enforce, 6, 2, hpa,
			[2]string{},
			want{"deny BelowFloor", "deny BelowFloor", 0, "deployment shop/web needs 3: " + three + " (raise minReplicas, or safedrain.dev/floor there)"},
		},
		"warned by the policy": {
			[]int{2, 2, 2},
			ScaleWarn, Enforce, 6, 2, hpa,
			[2]string{},
			want{"warn BelowFloor", "allow BelowFloor", 0, "safedrain would keep 3 replicas, asked for 2: " + three + " (gate=warn)"},
		},
		"warned by the mode": {
			[]int{2, 2, 2},
			ScaleClamp, Warn, 6, 2, hpa,
			[2]string{},
			want{"warn BelowFloor", "allow BelowFloor", 0, "safedrain would keep 3 replicas, asked for 2: " + three + " (gate=warn)"},
		},
		"the Service enforces where the cluster warns": {
			[]int{2, 2, 2},
			ScaleClamp, Warn, 6, 2, hpa,
			[2]string{guard.AnnotationGate, "enforce"},
			want{"clamp BelowFloor", "deny BelowFloor", 3, "safedrain kept 3 replicas, asked for 2: " + three},
		},
		"the Service only warns": {
			[]int{2, 2, 2},
			ScaleDeny, Enforce, 6, 2, hpa,
			[2]string{guard.AnnotationGate, "warn"},
			want{"warn BelowFloor", "allow BelowFloor", 0, "safedrain would keep 3 replicas, asked for 2: " + three + " (gate=warn)"},
		},
		"off for the Service": {[]int{2, 2, 2}, ScaleDeny, Enforce, 6, 2, hpa, [2]string{guard.AnnotationGate, "off"}, want{"allow Off", "allow Off", 0, ""}},
		"off by the policy":   {[]int{2, 2, 2}, ScaleOff, Enforce, 6, 2, hpa, [2]string{}, want{"allow Off", "allow Off", 0, ""}},
		"off by the mode":     {[]int{2, 2, 2}, ScaleDeny, Off, 6, 2, hpa, [2]string{}, want{"allow Off", "allow Off", 0, ""}},
		"the floor is a number": {
			[]int{2, 2, 2},
			ScaleClamp, Enforce, 6, 2, hpa,
			[2]string{guard.AnnotationFloor, "5"},
			want{"clamp BelowFloor", "deny BelowFloor", 5, "safedrain kept 5 replicas, asked for 2: safedrain.dev/floor=5 on Service shop/web"},
		},
		"the floor is off":            {[]int{2, 2, 2}, ScaleClamp, Enforce, 6, 2, hpa, [2]string{guard.AnnotationFloor, "off"}, want{"allow Safe", "allow Safe", 0, ""}},
		"enough":                      {[]int{2, 2, 2}, ScaleDeny, Enforce, 6, 4, hpa, [2]string{}, want{"allow Safe", "allow Safe", 0, ""}},
		"already below, no further":   {[]int{1, 1, 0}, ScaleClamp, Enforce, 2, 1, hpa, [2]string{}, want{"clamp BelowFloor", "deny BelowFloor", 2, "safedrain kept 2 replicas, asked for 1: " + three}},
		"up":                          {[]int{1, 1, 0}, ScaleDeny, Enforce, 2, 3, hpa, [2]string{}, want{"allow Up", "allow Up", 0, ""}},
		"equal":                       {[]int{1, 1, 0}, ScaleDeny, Enforce, 2, 2, hpa, [2]string{}, want{"allow Up", "allow Up", 0, ""}},
		"zero by a human":             {[]int{2, 2, 2}, ScaleDeny, Enforce, 6, 0, human, [2]string{}, want{"allow ToZero", "allow ToZero", 0, ""}},
		"one by a human":              {[]int{2, 2, 2}, ScaleDeny, Enforce, 6, 1, human, [2]string{}, want{"deny BelowFloor", "deny BelowFloor", 0, "needs 3"}},
		"zero by a service account":   {[]int{2, 2, 2}, ScaleClamp, Enforce, 6, 0, hpa, [2]string{}, want{"clamp BelowFloor", "deny BelowFloor", 3, "asked for 0"}},
		"zero without an own account": {[]int{2, 2, 2}, ScaleDeny, Enforce, 6, 0, controllerManager, [2]string{}, want{"deny BelowFloor", "deny BelowFloor", 0, "needs 3"}},
		"the controller's choice empties a node with one pod": {
			[]int{1, 1, 1},
			ScaleClamp, Enforce, 3, 2, hpa,
			[2]string{"safedrain.dev/nodes", "kubernetes.io/hostname=n1"},
			want{"deny EmptiesNode", "deny EmptiesNode", 0, "empty n1, in rotation; keepers are being marked, try again"},
		},
		"the controller's choice empties a node": {
			[]int{3, 2},
			ScaleClamp, Enforce, 5, 2, hpa,
			[2]string{},
			want{"deny EmptiesNode", "deny EmptiesNode", 0, "deployment shop/web: at 2 its controller would empty n1, in rotation; keepers are being marked, try again"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newScaleWorld(test.placed...)
			if test.want.mutate != "deny EmptiesNode" {
				w.keepers()
			}
			if test.annotate[0] != "" {
				w.annotate(test.annotate[0], test.annotate[1])
			}
			s := w.scaler(test.policy, test.mode)
			var told []Kept
			s.Kept = func(k Kept) { told = append(told, k) }
			mutated, err := s.mutate(t.Context(), scaleReview(test.before, test.after, test.user))
			if err != nil {
				t.Fatal(err)
			}
			checked, err := s.check(t.Context(), scaleReview(test.before, test.after, test.user))
			if err != nil {
				t.Fatal(err)
			}
			if got := mutated.decision + " " + mutated.reason; got != test.want.mutate {
				t.Errorf("mutating: %s, want %s", got, test.want.mutate)
			}
			if got := checked.decision + " " + checked.reason; got != test.want.check {
				t.Errorf("validating: %s, want %s", got, test.want.check)
			}
			if checked.patch != nil || len(checked.warnings) > 0 {
				t.Errorf("a validating webhook patches or warns: %+v", checked)
			}
			patch := ""
			if test.want.replicas > 0 {
				patch = fmt.Sprintf(`[{"op":"add","path":"/spec/replicas","value":%d}]`, test.want.replicas)
			}
			if string(mutated.patch) != patch {
				t.Errorf("patch %s, want %s", mutated.patch, patch)
			}
			text := strings.Join(mutated.warnings, " ")
			if mutated.status != nil {
				text = mutated.status.Message
				if mutated.status.Code != http.StatusForbidden || mutated.status.Reason != metav1.StatusReasonForbidden {
					t.Errorf("refused with %d %s", mutated.status.Code, mutated.status.Reason)
				}
			}
			if !strings.Contains(text, test.want.message) || (test.want.message == "") != (text == "") {
				t.Errorf("says %q, want %q", text, test.want.message)
			}
			if stopped := test.want.replicas > 0 || strings.HasPrefix(test.want.mutate, "warn"); stopped != (len(told) > 0) {
				t.Errorf("told of %v", told)
			}
		})
	}
}

// TestScaleKept: a keeper on each node makes the refused scale-down pass.
func TestScaleKept(t *testing.T) {
	w := newScaleWorld(3, 2)
	w.keepers()
	a, err := w.scaler(ScaleClamp, Enforce).mutate(t.Context(), scaleReview(5, 2, hpa))
	if err != nil || a.decision != Allowed {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestReplicasOfWorkloads: changes of a workload's own replicas are refused and never clamped; absent ones are one.
func TestReplicasOfWorkloads(t *testing.T) {
	w := newScaleWorld(2, 2, 2)
	w.keepers()
	s := w.scaler(ScaleClamp, Enforce)
	review := func(resource string, before, after any, controlled bool) *admissionv1.AdmissionRequest {
		raw := func(n any) runtime.RawExtension {
			meta, spec := map[string]any{}, map[string]any{}
			if n != nil {
				spec["replicas"] = n
			}
			if controlled {
				meta["ownerReferences"] = []map[string]any{{"kind": "Deployment", "controller": true}}
			}
			text, _ := json.Marshal(map[string]any{"metadata": meta, "spec": spec})
			return runtime.RawExtension{Raw: text}
		}
		req := scaleReview(0, 0, human)
		req.SubResource, req.Resource.Resource, req.Object, req.OldObject = "", resource, raw(after), raw(before)
		return req
	}
	for name, test := range map[string]struct {
		req  *admissionv1.AdmissionRequest
		want string
	}{
		"fewer":            {review("deployments", 6, 2, false), "deny BelowFloor"},
		"left out":         {review("deployments", 6, nil, false), "deny BelowFloor"},
		"zero":             {review("deployments", 6, 0, false), "allow ToZero"},
		"enough":           {review("deployments", 6, 3, false), "allow Safe"},
		"more":             {review("deployments", nil, 2, false), "allow Up"},
		"a rollout":        {review("replicasets", 6, 2, true), "allow Rollout"},
		"one that is gone": {review("statefulsets", 6, 2, false), "allow NoWorkload"},
		"a set that is owned": {func() *admissionv1.AdmissionRequest {
			r := scaleReview(6, 2, hpa)
			r.Resource.Resource, r.Name = "replicasets", "web-1"
			return r
		}(), "allow Rollout"},
		"another one's pods": {func() *admissionv1.AdmissionRequest {
			r := review("deployments", 6, 2, false)
			r.Namespace = "else"
			return r
		}(), "allow NotBehind"},
	} {
		a, err := s.replicas(t.Context(), test.req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := a.decision + " " + a.reason; got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
		if a.patch != nil {
			t.Errorf("%s: clamped", name)
		}
	}
}

// unreadable answers nothing before the deadline.
type unreadable struct{ err error }

func (u unreadable) Target(ctx context.Context, _ schema.GroupResource, _ guard.Key, _ string) (*guard.ScaleTarget, error) {
	if u.err != nil {
		return nil, u.err
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestScaleUnknown: what cannot be judged is answered within the deadline and as it is stated: refused where a Service of the
// namespace enforces, let pass with a warning where they warn, and let pass without a look where there is no such Service.
func TestScaleUnknown(t *testing.T) {
	w := newScaleWorld(2, 2, 2)
	for name, test := range map[string]struct {
		mode      Mode
		namespace string
		synced    bool
		workloads Workloads
		want      string
	}{
		"slow, enforced":          {Enforce, "shop", true, unreadable{}, "deny CannotJudge"},
		"slow, warned":            {Warn, "shop", true, unreadable{}, "warn CannotJudge"},
		"slow, off":               {Off, "shop", true, unreadable{}, "allow Off"},
		"broken":                  {Enforce, "shop", true, unreadable{errors.New("etcd is gone")}, "deny CannotJudge"},
		"nothing to judge there":  {Enforce, "else", true, unreadable{}, "allow NotBehind"},
		"not read yet":            {Enforce, "else", false, unreadable{}, "deny CannotJudge"},
		"not read yet and warned": {Warn, "else", false, unreadable{}, "warn CannotJudge"},
	} {
		t.Run(name, func(t *testing.T) {
			s := w.scaler(ScaleClamp, test.mode)
			s.Workloads, s.Synced = test.workloads, func() bool { return test.synced }
			req := scaleReview(6, 2, hpa)
			req.Namespace = test.namespace
			body, err := json.Marshal(admissionv1.AdmissionReview{
				TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req,
			})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			recorder := httptest.NewRecorder()
			http := httptest.NewRequest(http.MethodPost, "/scale", bytes.NewReader(body))
			http.Header.Set("Content-Type", "application/json")
			s.Handlers(Serving{Deadline: 50 * time.Millisecond})["/scale"].ServeHTTP(recorder, http)
			if took := time.Since(began); took > time.Minute {
				t.Errorf("answered after %s", took)
			}
			var review admissionv1.AdmissionReview
			if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil {
				t.Fatalf("%v: %s", err, recorder.Body)
			}
			a, err := s.mutate(expired(t), req)
			if err != nil {
				t.Fatal(err)
			}
			if got := a.decision + " " + a.reason; got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if review.Response.Allowed != (a.status == nil) || review.Response.UID != "r" {
				t.Errorf("response %+v", review.Response)
			}
		})
	}
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// matched notes which Services a rotation is derived for.
type matched struct {
	*hookset.Set
	names []string
}

func (m *matched) Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	m.names = append(m.names, svc.Name)
	return m.Set.Match(svc, objects)
}

// TestScaleDerives: of the Services of a namespace only those that send to the workload are looked at: by their selector, or by
// slices alone.
func TestScaleDerives(t *testing.T) {
	w := newScaleWorld(2, 2, 2)
	m := &matched{Set: hookset.New(hookset.Deps{})}
	w.store = cluster.NewStore(m)
	w.store.SetService(w.service.DeepCopy())
	for name, selector := range map[string]map[string]string{"other": {"app": "other"}, "by-hand": nil, "elsewhere": nil} {
		svc := w.service.DeepCopy()
		svc.Name, svc.Spec.Selector = name, selector
		w.store.SetService(svc)
	}
	port, text, node := int32(80), "", "n1"
	for service, pod := range map[string]string{"by-hand": "web-1", "elsewhere": "x-1"} {
		w.store.SetSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &text, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{"10.0.1.1"}, NodeName: &node,
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: pod, UID: types.UID(pod)},
			}},
		})
	}
	if _, err := w.scaler(ScaleDeny, Enforce).mutate(t.Context(), scaleReview(6, 2, hpa)); err != nil {
		t.Fatal(err)
	}
	slices.Sort(m.names)
	if got := slices.Compact(m.names); !slices.Equal(got, []string{"by-hand", "web"}) {
		t.Errorf("looked at %v", got)
	}
}

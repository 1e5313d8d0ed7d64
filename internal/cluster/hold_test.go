package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/pkg/guard"
)

// holdCluster has Service shop/web, whose pod of ReplicaSet web runs on n1.
func holdCluster(annotate bool, labels map[string]string, held string) *fake.Clientset {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }
	svc := &corev1.Service{ObjectMeta: meta("web"), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, ClusterIP: "10.0.0.1",
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	if annotate {
		svc.Annotations = map[string]string{guard.AnnotationHold: "true"}
	}
	headless := &corev1.Service{ObjectMeta: meta("peers"), Spec: corev1.ServiceSpec{ClusterIP: "None", Selector: map[string]string{"app": "web"}}}
	pod := &corev1.Pod{ObjectMeta: meta("web-a"), Spec: corev1.PodSpec{NodeName: "n1"}}
	pod.UID, pod.Labels = "a", labels
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}}
	if held != "" {
		pod.Annotations = map[string]string{guard.AnnotationHeld: held}
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta("web-1"), AddressType: discoveryv1.AddressTypeIPv4}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}, NodeName: ptr.To("n1")}}
	set := &appsv1.ReplicaSet{ObjectMeta: meta("web"), Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	set.UID = "rs"
	return fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, svc, headless, pod, slice, set,
		&networkingv1.NetworkPolicy{ObjectMeta: meta("np")}, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "np"}},
	)
}

// allow answers access reviews, and refuses what is denied.
func allow(c *fake.Clientset, denied ...string) {
	c.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
		of := r.Spec.ResourceAttributes
		r.Status.Allowed = of.Namespace == "shop" && !slices.Contains(denied, of.Verb+" "+of.Resource)
		return true, r, nil
	})
	for _, d := range denied {
		verb, resource, _ := strings.Cut(d, " ")
		c.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
		})
	}
}

// TestLoadHolds: what a hold needs is read where one may be, and nothing of it where none is.
func TestLoadHolds(t *testing.T) {
	app := map[string]string{"app": "web"}
	held := guard.Held{Run: "r", Labels: app}.String()
	for name, tc := range map[string]struct {
		cluster *fake.Clientset
		flags   []string
		denied  []string
		read    bool
		lacks   []string
	}{
		"nobody asks":       {holdCluster(false, app, ""), nil, nil, false, nil},
		"of another":        {holdCluster(false, app, ""), []string{"shop/api"}, nil, false, nil},
		"by name":           {holdCluster(false, app, ""), []string{"shop/web"}, nil, true, nil},
		"all":               {holdCluster(false, app, ""), []string{"all"}, nil, true, nil},
		"by annotation":     {holdCluster(true, app, ""), nil, nil, true, nil},
		"begun":             {holdCluster(false, map[string]string{"app": "held-a"}, held), nil, nil, true, nil},
		"lacks permissions": {holdCluster(true, app, ""), nil, []string{"list networkpolicies", "create endpointslices"}, true, []string{"list networkpolicies.networking.k8s.io", "create endpointslices.discovery.k8s.io"}},
		"lacks the owners":  {holdCluster(true, app, ""), nil, []string{"get replicasets"}, true, []string{"get replicasets.apps"}},
	} {
		t.Run(name, func(t *testing.T) {
			allow(tc.cluster, tc.denied...)
			snap, err := Load(context.Background(), &Clients{Kubernetes: tc.cluster}, nil, Scope{Nodes: []string{"n1"}, Hold: tc.flags})
			if err != nil {
				t.Fatal(err)
			}
			facts, ok := snap.Index(unknown(), nil).HoldFacts("shop")
			asked := slices.ContainsFunc(tc.cluster.Actions(), func(a clienttesting.Action) bool {
				return slices.Contains([]string{"networkpolicies", "replicasets", "selfsubjectaccessreviews"}, a.GetResource().Resource)
			})
			if ok != tc.read || asked != tc.read {
				t.Fatalf("read %t, asked %t, want %t", ok, asked, tc.read)
			}
			if !tc.read {
				return
			}
			if diff := cmp.Diff(tc.lacks, facts.Denied); diff != "" {
				t.Errorf("denied: %s", diff)
			}
			if len(facts.Headless) != 1 || facts.Headless[0].Name != "peers" {
				t.Errorf("headless %v", facts.Headless)
			}
			if tc.denied == nil && (len(facts.Policies) != 2 || facts.Owners["rs"] == nil) {
				t.Errorf("facts %+v", facts)
			}
		})
	}
}

// TestLoadHoldsExpired: a list of NetworkPolicies that expires on the server while it is paged is begun once more.
func TestLoadHoldsExpired(t *testing.T) {
	c := holdCluster(true, map[string]string{"app": "web"}, "")
	allow(c)
	calls := 0
	c.PrependReactor("list", "networkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		page := &networkingv1.NetworkPolicyList{Items: []networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "np"}}}}
		switch calls++; calls {
		case 1:
			page.Continue = "more"
		case 2:
			return true, nil, apierrors.NewResourceExpired("the token is too old")
		}
		return true, page, nil
	})
	snap, err := Load(context.Background(), &Clients{Kubernetes: c}, nil, Scope{Nodes: []string{"n1"}})
	if err != nil {
		t.Fatal(err)
	}
	if facts, ok := snap.Index(unknown(), nil).HoldFacts("shop"); !ok || len(facts.Policies) != 1 || calls != 3 {
		t.Errorf("%t, %+v after %d calls", ok, facts, calls)
	}
}

// TestLoadHoldsAsksOnce: a permission that the user has is asked for once, one that is lacking at every load.
func TestLoadHoldsAsksOnce(t *testing.T) {
	c := holdCluster(true, map[string]string{"app": "web"}, "")
	allow(c, "create endpointslices")
	clients := &Clients{Kubernetes: c}
	asked := func() (n int) {
		for _, a := range c.Actions() {
			if a.GetResource().Resource == "selfsubjectaccessreviews" {
				n++
			}
		}
		c.ClearActions()
		return n
	}
	for i, want := range []int{len(holdVerbs), 1, 1} {
		snap, err := Load(context.Background(), clients, nil, Scope{Nodes: []string{"n1"}})
		if err != nil {
			t.Fatal(err)
		}
		if facts, _ := snap.Index(unknown(), nil).HoldFacts("shop"); asked() != want || len(facts.Denied) != 1 {
			t.Errorf("load %d: want %d questions; denied %v", i+1, want, facts.Denied)
		}
	}
}

package cli

import (
	"encoding/json"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/safedrain/safedrain/internal/cluster"
)

// metalLBKinds are the kinds of MetalLB that the example has, and the one of AWS's controller.
var metalLBKinds = map[string]string{"ipaddresspools": "IPAddressPool", "l2advertisements": "L2Advertisement", "servicel2statuses": "ServiceL2Status"}

// custom is a client of the example's custom objects.
func custom(t *testing.T, name string) *dynamicfake.FakeDynamicClient {
	t.Helper()
	list := exampleList(t, name)
	kinds := map[schema.GroupVersionResource]string{{Group: "elbv2.k8s.aws", Version: "v1beta1", Resource: "targetgroupbindings"}: "TargetGroupBindingList"}
	for resource, kind := range metalLBKinds {
		kinds[schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: resource}] = kind + "List"
	}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	for i := range list.Items {
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(list.Items[i].Raw, u); err != nil {
			t.Fatal(err)
		}
		for resource, kind := range metalLBKinds {
			if u.GetKind() != kind {
				continue
			}
			gvr := schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: resource}
			if _, err := client.Resource(gvr).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return client
}

// What a hook lacks is said by name: a kind that is not served, a verb that a role does not have, a credential.
func TestHooksSayWhatIsMissing(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "", "AWS_REGION": "", "AWS_ENDPOINT_URL": "",
		"AWS_WEB_IDENTITY_TOKEN_FILE": "", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "",
	} {
		t.Setenv(name, value)
	}
	for name, test := range map[string]struct {
		without string // a resource of MetalLB that is not served
		deny    string // one that may not be listed
		aws     bool   // the Service is behind AWS
		hook    string
		says    string
		fix     string
	}{
		"nothing":      {hook: "metallb-l2", says: "metallb-l2 +node-1 +ServiceL2Status +-", fix: "nothing to mend"},
		"a kind":       {without: "l2advertisements", hook: "metallb-l2", says: "no kind L2Advertisement.metallb.io: its CRD is not installed", fix: "which nodes may announce by L2"},
		"a verb":       {deny: "l2advertisements", hook: "metallb-l2", says: "not allowed to list l2advertisements.metallb.io", fix: "safedrain rbac --hook=metallb-l2 | kubectl apply -f -"},
		"a credential": {aws: true, hook: "aws", says: "no credentials: set AWS_PROFILE, log in, or give this pod a role", fix: "no credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			l, dyn := newLive(t, "metallb"), custom(t, "metallb")
			served := &metav1.APIResourceList{GroupVersion: "metallb.io/v1beta1"}
			for resource, kind := range metalLBKinds {
				if resource != test.without {
					served.APIResources = append(served.APIResources, metav1.APIResource{Name: resource, Kind: kind, Namespaced: true, Verbs: metav1.Verbs{"list"}})
				}
			}
			l.client.Resources = append(l.client.Resources, served)
			dyn.PrependReactor("list", test.deny, func(a clienttesting.Action) (bool, runtime.Object, error) {
				return test.deny != "", nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", nil)
			})
			if test.aws {
				l.client.Resources = nil
				behindAWS(t, l)
			}
			clients := func() (*cluster.Clients, error) { return &cluster.Clients{Kubernetes: l.client, Dynamic: dyn}, nil }
			for _, args := range [][]string{{"hooks"}, {"hooks", "-o", "json"}, {"hooks", "--fix"}} {
				l.out.Reset()
				l.errOut.Reset()
				a := newApp(Process{Args: []string{"safedrain"}, Streams: Streams{In: strings.NewReader(""), Out: &l.out, ErrOut: &l.errOut}})
				a.kube.connect = clients
				want := strings.ReplaceAll(test.says, " +", " ")
				if args[len(args)-1] == "--fix" {
					want = test.fix
				}
				got := strings.Join(strings.Fields(l.runApp(t, a, args)), " ")
				if len(args) == 3 { // the document
					if !strings.Contains(got, `"hook": "`+test.hook+`"`) || name != "nothing" && !strings.Contains(got, want) {
						t.Errorf("%v: %s", args, got)
					}
				} else if !strings.Contains(got, want) {
					t.Errorf("%v lacks %q: %s", args, want, got)
				}
			}
		})
	}
}

// runApp runs a command line that ends with 0, and returns what it wrote.
func (l *live) runApp(t *testing.T, a *app, args []string) string {
	t.Helper()
	if code := a.execute(t.Context(), args); code != 0 {
		t.Fatalf("%v: exit code %d\n%s", args, code, l.errOut.String())
	}
	return l.out.String()
}

// behindAWS puts the example's Service behind a balancer of AWS.
func behindAWS(t *testing.T, l *live) {
	t.Helper()
	services := l.client.CoreV1().Services("kubelings")
	svc, err := services.Get(t.Context(), "checkout", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	class := "service.k8s.aws/nlb"
	svc.Annotations, svc.Spec.LoadBalancerClass = nil, &class
	if _, err := services.Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := l.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		n := &list.Items[i]
		n.Spec.ProviderID = "aws:///i-" + n.Name
		if _, err := l.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

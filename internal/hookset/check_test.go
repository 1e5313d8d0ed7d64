package hookset_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
)

// onAWS is a cluster with a Service behind a balancer of AWS, and one that nobody is known to front.
const onAWS = `
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {providerID: "aws:///i-1"}, status: {conditions: [{type: Ready, status: "True"}]}}
- {apiVersion: v1, kind: Node, metadata: {name: n2}, spec: {providerID: "aws:///i-2"}, status: {conditions: [{type: Ready, status: "True"}]}}
- apiVersion: v1
  kind: Service
  metadata: {namespace: e, name: lb}
  spec: {type: LoadBalancer, loadBalancerClass: service.k8s.aws/nlb, externalTrafficPolicy: Local, healthCheckNodePort: 32000, clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ipFamilies: [IPv4], ports: [{port: 80, nodePort: 30080}]}
- apiVersion: v1
  kind: Service
  metadata: {namespace: e, name: np}
  spec: {type: NodePort, externalTrafficPolicy: Local, clusterIP: 10.0.0.2, clusterIPs: [10.0.0.2], ipFamilies: [IPv4], ports: [{port: 80, nodePort: 30081}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {namespace: e, name: lb-1, labels: {kubernetes.io/service-name: lb}}
  addressType: IPv4
  ports: [{name: "", port: 8080, protocol: TCP}]
  endpoints: [{addresses: [10.1.0.1], nodeName: n1, conditions: {ready: true}}, {addresses: [10.1.0.2], nodeName: n2, conditions: {ready: true}}]
`

// What a hook cannot do without is found before anything depends on it, live only, and on the nodes that matter only.
func TestCheck(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "", "AWS_REGION": "",
		"AWS_WEB_IDENTITY_TOKEN_FILE": "", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "",
	} {
		t.Setenv(name, value)
	}
	snap, err := cluster.Read(t.Context(), []string{"-"}, strings.NewReader(onAWS))
	if err != nil {
		t.Fatal(err)
	}
	live := hookset.Deps{Kubernetes: fake.NewClientset(), Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "elbv2.k8s.aws", Version: "v1beta1", Resource: "targetgroupbindings"}: "TargetGroupBindingList",
	})}
	for name, test := range map[string]struct {
		deps   hookset.Deps
		nodes  []string
		broken bool
	}{
		"live":               {live, []string{"n1"}, true},
		"live, all nodes":    {live, nil, true},
		"live, another node": {live, []string{"n3"}, false},
		"offline":            {hookset.Deps{}, []string{"n1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			set := hookset.New(test.deps)
			for range 2 {
				set.Check(t.Context(), snap, test.nodes)
			}
			for svc := range snap.Index(set, nil).Services() {
				want := test.broken && svc.Key.Name == "lb"
				if got := svc.Rotation.Broken; want != strings.Contains(got, "no credentials") || !want && got != "" {
					t.Errorf("%s: broken %q, want %t", svc.Key, got, want)
				}
			}
			if got := len(set.Missing("aws")) > 0; got != test.broken || len(set.Missing("gcp")) > 0 {
				t.Errorf("missing %+v", set.Missing("aws"))
			}
			plan := guard.Plan(snap.Index(set, []string{"n1"}), guard.Request{Nodes: []string{"n1"}})
			verdict := map[bool]guard.Verdict{true: guard.Unproven, false: guard.Withdraw}[test.broken]
			if len(plan.Services) != 1 || plan.Services[0].Verdict != verdict {
				t.Errorf("%+v, want verdict %s", plan.Services, verdict)
			}
		})
	}
}

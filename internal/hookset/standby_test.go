package hookset_test

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
)

// elb answers for one target group with three nodes.
type elb struct {
	mu     sync.Mutex
	states map[string]string // by instance
	asked  map[string]bool   // calls for their health; the SDK may send one twice
}

// heal makes a target healthy.
func (e *elb) heal(instance string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.states[instance] = "healthy"
}

const groupARN = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/g/0123456789abcdef"

func (e *elb) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	action := r.FormValue("Action")
	result := "<TargetGroups><member><TargetGroupArn>" + groupARN + "</TargetGroupArn><TargetGroupName>g</TargetGroupName><Protocol>TCP</Protocol><TargetType>instance</TargetType></member></TargetGroups>"
	if action == "DescribeTargetHealth" {
		e.asked[r.Header.Get("Amz-Sdk-Invocation-Id")] = true
		result = "<TargetHealthDescriptions>"
		for id, state := range e.states {
			result += fmt.Sprintf("<member><Target><Id>%s</Id><Port>30080</Port></Target><TargetHealth><State>%s</State></TargetHealth></member>", id, state)
		}
		result += "</TargetHealthDescriptions>"
	}
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(w, `%s<%[2]sResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><%[2]sResult>%[3]s</%[2]sResult></%[2]sResponse>`, xml.Header, action, result)
}

// The API server calls all endpoints ready, and the balancer has lost the other nodes: nothing is begun. C18.
func TestNobodyElseAtTheBalancer(t *testing.T) {
	const healthy, unhealthy = "healthy", "unhealthy"
	for name, test := range map[string]struct {
		first, second, third string
		nodes                []string
		verdict              guard.Verdict
		asked                int // in two looks, beside the check of permissions
	}{
		"all healthy":             {healthy, healthy, healthy, []string{"n1"}, guard.Withdraw, 1},
		"one other healthy":       {healthy, unhealthy, healthy, []string{"n1"}, guard.Withdraw, 1},
		"the others unhealthy":    {healthy, unhealthy, unhealthy, []string{"n1"}, guard.Unproven, 2},
		"the others initial":      {healthy, "initial", "initial", []string{"n1"}, guard.Unproven, 2},
		"it alone unhealthy":      {unhealthy, healthy, healthy, []string{"n1"}, guard.Withdraw, 1},
		"the last two go at once": {healthy, healthy, unhealthy, []string{"n1", "n2"}, guard.Unproven, 2},
		"another's":               {healthy, unhealthy, unhealthy, nil, guard.Withdraw, 0},
	} {
		t.Run(name, func(t *testing.T) {
			balancer := &elb{states: map[string]string{"i-1": test.first, "i-2": test.second, "i-3": test.third}, asked: map[string]bool{}}
			server := httptest.NewServer(balancer)
			defer server.Close()
			for key, value := range map[string]string{
				"AWS_ENDPOINT_URL": server.URL, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "x", "AWS_SESSION_TOKEN": "",
				"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_PROFILE": "", "AWS_REGION": "eu-west-1",
			} {
				t.Setenv(key, value)
			}
			snap, err := cluster.Read(t.Context(), []string{"-"}, strings.NewReader(threeOnAWS()))
			if err != nil {
				t.Fatal(err)
			}
			set := hookset.New(hookset.Deps{Kubernetes: fake.NewClientset(), Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
				{Group: "elbv2.k8s.aws", Version: "v1beta1", Resource: "targetgroupbindings"}: "TargetGroupBindingList",
			})})
			for range 2 {
				set.Check(t.Context(), snap, test.nodes)
			}
			if got := len(balancer.asked) - 1; got != test.asked {
				t.Errorf("asked %d times who else is there, want %d", got, test.asked)
			}
			nodes := test.nodes
			if nodes == nil {
				nodes = []string{"n1"}
			}
			plan := guard.Plan(snap.Index(set, nodes), guard.Request{Nodes: nodes})
			if len(plan.Services) != 1 || plan.Services[0].Verdict != test.verdict {
				t.Fatalf("%+v, want %s", plan.Services, test.verdict)
			}
			if test.verdict == guard.Withdraw {
				return
			}
			wantFinding(t, &plan.Services[0], guard.HookUnavailable, "no other target is healthy at target group g")
			balancer.heal("i-3")
			set.Check(t.Context(), snap, nodes)
			if plan := guard.Plan(snap.Index(set, nodes), guard.Request{Nodes: nodes}); plan.Services[0].Verdict != guard.Withdraw {
				t.Errorf("when n3 is healthy: %+v", plan.Services[0])
			}
		})
	}
}

// threeOnAWS is the Service of onAWS on three nodes, with a group that is named.
func threeOnAWS() string {
	const second = "- {apiVersion: v1, kind: Node, metadata: {name: n2}"
	all := strings.Replace(onAWS, second, strings.ReplaceAll(second, "n2", "n3")+`, spec: {providerID: "aws:///i-3"}, status: {conditions: [{type: Ready, status: "True"}]}}`+"\n"+second, 1)
	all = strings.Replace(all, "metadata: {namespace: e, name: lb}", `metadata: {namespace: e, name: lb, annotations: {safedrain.dev/aws-target-groups: "`+groupARN+`"}}`, 1)
	return strings.Replace(all, "endpoints: [", "endpoints: [{addresses: [10.1.0.3], nodeName: n3, conditions: {ready: true}}, ", 1)
}

func wantFinding(t *testing.T, s *guard.ServicePlan, code guard.Code, says string) {
	t.Helper()
	for i := range s.Findings {
		if f := &s.Findings[i]; f.Code == code && strings.Contains(f.Message, says) {
			return
		}
	}
	t.Errorf("no %s that says %q: %+v", code, says, s.Findings)
}

package e2e

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const groupARN = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/gw/0123456789abcdef"

const oneTargetGroup = "<TargetGroups><member><TargetGroupArn>" + groupARN + "</TargetGroupArn><TargetGroupName>gw</TargetGroupName><Protocol>TCP</Protocol><TargetType>instance</TargetType></member></TargetGroups>"

// targetGroup is Elastic Load Balancing with one group of instances, the nodes of a scene. The first node drains while it
// bears the exclude label, as AWS's controller has it; then the others are in the state that the test says.
type targetGroup struct {
	*scene
	others string
}

func (g *targetGroup) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	action := r.FormValue("Action")
	result := oneTargetGroup
	if action == "DescribeTargetHealth" {
		first, err := g.Client.CoreV1().Nodes().Get(r.Context(), g.nodes[0], metav1.GetOptions{})
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		own, others := "healthy", "healthy"
		if lbhooks.ExcludedByPresence(first) {
			own, others = "draining", g.others
		}
		states := map[string]string{}
		for i, node := range g.nodes {
			if states[node] = others; i == 0 {
				states[node] = own
			}
		}
		result = targetHealth(states)
	}
	answerAWS(w, action, result)
}

// targetHealth is the health of the nodes' instances, as Elastic Load Balancing describes it.
func targetHealth(states map[string]string) string {
	result := "<TargetHealthDescriptions>"
	for node, state := range states {
		result += fmt.Sprintf("<member><Target><Id>i-%s</Id><Port>30080</Port></Target><TargetHealth><State>%s</State></TargetHealth></member>", node, state)
	}
	return result + "</TargetHealthDescriptions>"
}

func answerAWS(w http.ResponseWriter, action, result string) {
	w.Header().Set("Content-Type", "text/xml")
	_, _ = fmt.Fprintf(w, `%s<%[2]sResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><%[2]sResult>%[3]s</%[2]sResult></%[2]sResponse>`, xml.Header, action, result)
}

// behindAWS is a Service gw on two of three nodes, behind a network balancer of AWS's controller. as runs safedrain with
// credentials for it.
func behindAWS(t *testing.T, others string) (g *targetGroup, gw *corev1.Pod, as program) {
	t.Helper()
	g = &targetGroup{others: others, scene: newScene(t, 3, func(n *corev1.Node) { n.Spec.ProviderID = "aws:///eu-west-1a/i-" + n.Name })}
	gw = g.pod("gw", "gw-1", g.nodes[0])
	g.pod("gw", "gw-2", g.nodes[1])
	g.Service("gw", byAWS)
	g.EndpointsReady("gw", 2)
	g.remember()
	return g, gw, asAWS(t, g)
}

// byAWS is a Service behind a network balancer with the one target group.
func byAWS(svc *corev1.Service) {
	class := "service.k8s.aws/nlb"
	svc.Spec.Type, svc.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, &class
	svc.Annotations = map[string]string{"safedrain.dev/aws-target-groups": groupARN}
}

// asAWS serves Elastic Load Balancing, and runs safedrain with credentials for it.
func asAWS(t *testing.T, balancer http.Handler) program {
	t.Helper()
	server := httptest.NewServer(balancer)
	t.Cleanup(server.Close)
	return program{path: binary, kubeconfig: kubeconfig, env: []string{
		"AWS_ENDPOINT_URL=" + server.URL, "AWS_REGION=eu-west-1", "AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY=x",
		"AWS_EC2_METADATA_DISABLED=true",
	}}
}

// TestC18OthersTurnInitial: all targets are healthy when the drain begins; once n1 is withdrawn the balancer has no other
// healthy one. That is no proof, whatever the API server calls ready: nothing is evicted, and n1 goes back.
func TestC18OthersTurnInitial(t *testing.T) {
	for name, test := range map[string]struct {
		others   string
		rollback bool
		code     int
	}{
		"they turn initial":            {"initial", true, 5},
		"they turn unhealthy":          {"unhealthy", true, 5},
		"initial, and the state stays": {"initial", false, 5},
		"they stay healthy":            {"healthy", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g, gw, as := behindAWS(t, test.others)
			n1 := g.nodes[0]
			patience := "5s" // the whole of it where no proof comes
			if test.code == 0 {
				patience = "60s"
			}
			args := []string{n1, "--force", "--hook-timeout=" + patience, "--settle=1s"}
			if test.rollback {
				args = append(args, "--rollback")
			}
			e := flowRun{as.start(t, args...), time.Now()}.end(g.scene)
			if test.code == 0 {
				e.want(g.scene, 0)
				g.gone(gw)
				g.back(n1)
				return
			}
			e.want(g.scene, test.code, g.Namespace+"/gw is not proven out of aws", "0 others healthy", "sends to all of its targets")
			g.alive(gw)
			g.journal.never("evicted gw-1")
			if test.rollback {
				g.standsAsBefore(n1)
				return
			}
			e.want(g.scene, test.code, "safedrain uncordon "+n1)
			g.holds(n1, true, true, true)
			g.back(n1)
		})
	}
}

package e2e

import (
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// checkedGroup is a target group whose health check asks the nodes: a target is healthy some time after its node has a Ready
// endpoint, and drains while the node bears the exclude label.
type checkedGroup struct {
	*scene
	takes time.Duration

	mu      sync.Mutex
	serving map[string]time.Time // since when, by node
	second  time.Time            // when a further target was healthy first
}

func (g *checkedGroup) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	action, result := r.FormValue("Action"), oneTargetGroup
	if action == "DescribeTargetHealth" {
		states, err := g.states(r)
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		result = targetHealth(states)
	}
	answerAWS(w, action, result)
}

func (g *checkedGroup) states(r *http.Request) (map[string]string, error) {
	slices, err := g.Client.DiscoveryV1().EndpointSlices(g.Namespace).List(r.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	nodes, err := g.Client.CoreV1().Nodes().List(r.Context(), metav1.ListOptions{LabelSelector: controlplane.PoolLabel + "=" + g.Namespace})
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now, since := time.Now(), map[string]time.Time{}
	for i := range slices.Items {
		for _, e := range slices.Items[i].Endpoints {
			if e.NodeName != nil && e.Conditions.Ready != nil && *e.Conditions.Ready {
				if since[*e.NodeName] = g.serving[*e.NodeName]; since[*e.NodeName].IsZero() {
					since[*e.NodeName] = now
				}
			}
		}
	}
	g.serving = since
	states, healthy := map[string]string{}, 0
	for i := range nodes.Items {
		n := &nodes.Items[i]
		at, serves := since[n.Name]
		switch {
		case lbhooks.ExcludedByPresence(n):
			states[n.Name] = "draining"
		case serves && now.Sub(at) >= g.takes:
			states[n.Name] = "healthy"
			healthy++
		default:
			states[n.Name] = "unhealthy"
		}
	}
	if healthy > 1 && g.second.IsZero() {
		g.second = now
	}
	return states, nil
}

// TestSurgeAtABalancerThatChecks: the balancer's own check sees nobody besides the node of the only pod. Without --surge that
// is refused; with it the replacement is started first, and the node withdrawn only once the balancer, too, sees that one.
func TestSurgeAtABalancerThatChecks(t *testing.T) {
	g := &checkedGroup{takes: 3 * time.Second, serving: map[string]time.Time{}, scene: newScene(t, 2, func(n *corev1.Node) { n.Spec.ProviderID = "aws:///eu-west-1a/i-" + n.Name })}
	pod := g.Deployment("gw", 1, controlplane.Template(map[string]string{controlplane.ReadyAfter: "1"}))[0]
	n1 := pod.Spec.NodeName
	g.Service("gw", byAWS)
	g.EndpointsReady("gw", 1)
	g.serving[n1] = time.Now().Add(-time.Hour)
	g.remember()
	as := asAWS(t, g)
	flowRun{as.start(t, n1, "--ignore-daemonsets"), time.Now()}.end(g.scene).want(g.scene, 3)
	e := flowRun{as.start(t, n1, "--ignore-daemonsets", "--surge", "--settle=0s"), time.Now()}.end(g.scene)
	e.want(g.scene, 0)
	fresh := g.PodsReady("gw", 1)[0]
	g.journal.inOrder("ready "+fresh.Name, "labelled "+n1, "evicted "+pod.Name)
	if at := g.journal.get("labelled " + n1).at; g.second.IsZero() || at.Before(g.second) {
		t.Errorf("withdrawn at %s, when the balancer saw the replacement at %s", at, g.second)
	}
	if d, err := g.Client.AppsV1().Deployments(g.Namespace).Get(t.Context(), "gw", metav1.GetOptions{}); err != nil || *d.Spec.Replicas != 1 {
		t.Errorf("%v: the replicas are not what they were", err)
	}
	g.back(n1)
}

// TestSurgeTooLateForTheDeadline: a replacement that does not come holds the pod no longer than until the deadline less its
// grace period and the reserve. Exit code 5 and the report say so, and nothing of the surge is left.
func TestSurgeTooLateForTheDeadline(t *testing.T) {
	s := newSoloShop(t, 2, controlplane.Template(map[string]string{controlplane.ReadyAfter: "60"}), func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](2)
	})
	must(s.Env, s.Client.PolicyV1().PodDisruptionBudgets(s.Namespace).Delete(t.Context(), "web", metav1.DeleteOptions{})) // it would hold the only pod
	began := time.Now()
	e := s.run(s.args("--deadline=20s", "-o", "json")...)
	e.want(s.scene, 5, "the replacement of deployment "+s.Namespace+"/web", "in time for the deadline")
	const cutoff = 20*time.Second - 2*time.Second - 10*time.Second
	if after := s.journal.get("evicted " + s.pod.Name).at.Sub(began); after < cutoff-time.Second || after > 50*time.Second {
		t.Errorf("evicted after %s, want %s, long before the replacement is Ready", after, cutoff)
	}
	var outcomes []string
	for _, step := range e.report(s.scene).Steps {
		if slices.Contains([]string{"surge", "surged", "unsurge"}, step.Name) {
			outcomes = append(outcomes, step.Name+" "+step.Outcome)
		}
	}
	if want := []string{"surge done", "surged failed", "unsurge done"}; !slices.Equal(outcomes, want) {
		t.Errorf("steps of the report: %v, want %v", outcomes, want)
	}
	s.asBefore()
	if _, marked := s.deployment().Labels[surge.Label]; marked {
		t.Error("the mark is left")
	}
	s.back(s.n1)
}

// TestSurgeNodeDeleted: somebody deletes the node while its replacement is awaited. The drain is over, the replacement stays in
// the place of the pod that went with the node, and the Deployment is what it was.
func TestSurgeNodeDeleted(t *testing.T) {
	s := &soloShop{scene: newScene(t, 2)}
	s.pod = s.Deployment("web", 1, controlplane.Template(map[string]string{controlplane.ReadyAfter: "15"}))[0]
	s.n1 = s.pod.Spec.NodeName
	s.Service("web")
	s.EndpointsReady("web", 1)
	s.was = s.deployment()
	b := begin(s, s.args("--accept-unproven=all")...)
	b.says(s.Env, "starting one more replica")
	if err := s.Client.CoreV1().Nodes().Delete(t.Context(), s.n1, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	said, code := b.end()
	if code != 0 {
		t.Errorf("exit code %d, want 0\n%s", code, said)
	}
	wantSaid(t, said, "node/"+s.n1+" was deleted meanwhile", "deployment "+s.Namespace+"/web has as many replicas as before")
	if diff := cmp.Diff(s.was.Spec, s.deployment().Spec) + cmp.Diff(s.was.Labels, s.deployment().Labels); diff != "" {
		t.Errorf("the Deployment is not as before:\n%s", diff)
	}
	if left := s.PodsReady("web", 1); left[0].Spec.NodeName == s.n1 {
		t.Errorf("pod %s on the deleted node is what is left\n%s", left[0].Name, said)
	}
}

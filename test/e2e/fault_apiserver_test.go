package e2e

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/controlplane"
)

// TestAPIServerAway ends the API server, as a crash does, in the middle of drains and starts it again some seconds later:
// the drains go on to their end. It has a cluster of its own, and all its drains at once.
func TestAPIServerAway(t *testing.T) {
	t.Parallel()
	c := controlplane.New(t, controlplane.Options{})
	as := program{path: binary, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := c.Kubeconfig(as.kubeconfig); err != nil {
		t.Fatal(err)
	}
	drains := map[string]*away{
		"while it evicts":  {flags: []string{"--timeout=3m"}, grace: 8, says: "evicting"},
		"while it settles": {flags: []string{"--settle=6s", "--accept-unproven=all"}, service: true, says: "settling"},
		"interrupted":      {flags: nil, grace: 60, says: "evicting"},
	}
	for _, d := range drains {
		d.start(t, c, as)
	}
	if err := c.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := as.run(t, drains["while it evicts"].node); code != 1 || stdout != "" {
		t.Errorf("a drain begun while it is away: exit code %d, want 1\n%s", code, stderr)
	} else {
		wantSaid(t, stderr, "cannot reach the cluster")
	}
	drains["interrupted"].interrupted(t)
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"while it evicts", "while it settles"} {
		drains[name].ends(t, name)
	}
}

// away is a drain that the API server leaves alone.
type away struct {
	flags   []string
	grace   int // seconds that its pod takes to end
	service bool
	says    string
	e       *controlplane.Env
	node    string
	run     *begun
}

func (a *away) start(t *testing.T, c *controlplane.Cluster, as program) {
	t.Helper()
	a.e = c.Env(t)
	nodes := a.e.Nodes(2)
	a.node = nodes[0]
	for i, node := range nodes {
		a.e.Pod([]string{"web-0", "web-1"}[i], node, labelled(controlplane.AppLabel, "web"), terminatesAfter(a.grace), func(p *corev1.Pod) {
			grace := int64(60)
			p.Spec.TerminationGracePeriodSeconds = &grace
		})
	}
	if a.service {
		svc := a.e.Service("web", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer })
		a.e.ServiceStatus(svc, "203.0.113.10")
		a.e.EndpointsReady("web", 2)
	}
	a.run = as.begin(t, append([]string{a.node, "--force"}, a.flags...)...)
	a.run.says(a.e, a.says)
}

// interrupted ends a drain that cannot write to its node any more: at once, and not for ever.
func (a *away) interrupted(t *testing.T) {
	t.Helper()
	a.run.signal(t, os.Interrupt)
	said, code := a.run.end()
	if code != 130 {
		t.Errorf("interrupted while it is away: exit code %d, want 130\n%s", code, said)
	}
	wantSaid(t, said, "safedrain uncordon "+a.node)
}

func (a *away) ends(t *testing.T, name string) {
	t.Helper()
	said, code := a.run.end()
	if code != 0 {
		t.Errorf("%s: exit code %d, want 0\n%s", name, code, said)
	}
	wantSaid(t, said, "node/"+a.node+" drained")
	pods, err := a.e.Client.CoreV1().Pods(a.e.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + a.node})
	if err != nil || len(pods.Items) != 0 {
		t.Errorf("%s: %d pods are left, %v", name, len(pods.Items), err)
	}
}

package probetest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/dataplane"
)

func TestProbeNFTables(t *testing.T) { t.Parallel(); suite(t, up(t, dataplane.NFTables)) }

func TestProbeIPTables(t *testing.T) { t.Parallel(); suite(t, up(t, dataplane.IPTables)) }

func suite(t *testing.T, p *place) {
	for _, test := range []struct {
		name string
		run  func(*place, *testing.T)
	}{
		{"as the rules say", (*place).agrees},
		{"terminating endpoint", (*place).terminating},
		{"no endpoint at all", (*place).nobody},
		{"closed target port", (*place).closedTarget},
		{"firewall on a node", (*place).firewall},
		{"from a node", (*place).fromNode},
		{"from a pod", (*place).fromPod},
		{"from behind a firewall", (*place).behindFirewall},
		{"stopped proxy", (*place).stoppedProxy},
	} {
		t.Run(test.name, func(t *testing.T) {
			sub := *p
			sub.namespace = p.Env(t).Namespace
			test.run(&sub, t)
		})
	}
}

// Rows as seen writes them.
const (
	serves      = "http OK/OK; healthCheck 200/200"
	drops       = "http Blackhole/Blackhole; healthCheck 503/503"
	rejects     = "http Refused/Refused; healthCheck 503/503"
	terminates  = "http OK/OK; healthCheck 503/503"
	thisNode    = "http: we run on this node; healthCheck: we run on this node"
	thisPodNode = "http: we run in a pod on this node; healthCheck: we run in a pod on this node"
	inPod       = "http: we run in a pod: a proxy that knows pods by the cluster's range treats those of other nodes as its own; healthCheck "
)

func expect(t *testing.T, report *guard.CoverageReport, want map[string]string) {
	t.Helper()
	for node, w := range want {
		if got := seen(report, node); got != w {
			t.Errorf("%s: %s\nwant %s", node, got, w)
		}
	}
}

func (p *place) agrees(t *testing.T) {
	svc := p.app(t, "edge", []int{1, 2})
	for n, want := range map[int]string{1: "accepted", 2: "accepted", 3: "silent", 4: "silent"} {
		for _, addr := range []netip.Addr{p.Nodes[n-1].Addr, p.Nodes[n-1].Addr6} {
			p.eventually(t, p.client, nodePort(addr, svc), want)
		}
	}
	report, stderr := p.from(t, p.client, "edge")
	expect(t, report, map[string]string{"node-1": serves, "node-2": serves, "node-3": drops, "node-4": drops})
	if f := disagreement(report); f != nil {
		t.Errorf("finding %+v", f)
	}
	// Of four nodes two families each: a TCP port, a health check, and a UDP port that is not counted.
	if s := report.Probe; s.Ports != 24 || s.Counted != 16 || s.Disagree != 0 || len(s.NoProof) > 0 || s.Place != "outside the nodes" {
		t.Errorf("summary %+v", s)
	}
	if !strings.HasPrefix(stderr, "probing 16 ports of 4 nodes from here, outside the nodes") {
		t.Errorf("stderr: %s", stderr)
	}
}

func (p *place) terminating(t *testing.T) {
	svc := p.app(t, "edge", []int{1}, dataplane.WithPreStop(100*time.Second), dataplane.WithGrace(110*time.Second))
	p.scale(t, "edge", 0)
	p.wait(t, "the endpoint terminates", func() bool {
		endpoints, err := p.Endpoints(t.Context(), p.namespace, "edge")
		return err == nil && len(endpoints) == 2 && *endpoints[0].Conditions.Terminating && *endpoints[1].Conditions.Terminating
	})
	p.eventually(t, p.client, nodePort(p.Nodes[0].Addr, svc), "accepted")
	report, _ := p.from(t, p.client, "edge")
	expect(t, report, map[string]string{"node-1": terminates, "node-3": drops})
	if f := disagreement(report); f != nil {
		t.Errorf("finding %+v", f)
	}
	pods, err := p.Client.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	now := int64(0)
	if err := p.Client.CoreV1().Pods(p.namespace).Delete(t.Context(), pods.Items[0].Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []netip.Addr{p.Nodes[0].Addr, p.Nodes[0].Addr6, p.Nodes[2].Addr, p.Nodes[2].Addr6} {
		p.eventually(t, p.client, nodePort(addr, svc), "refused")
	}
	report, _ = p.from(t, p.client, "edge")
	expect(t, report, map[string]string{"node-1": rejects, "node-3": rejects})
}

func (p *place) nobody(t *testing.T) {
	svc := p.app(t, "nobody", nil)
	p.eventually(t, p.client, nodePort(p.Nodes[0].Addr, svc), "refused")
	report, _ := p.from(t, p.client, "nobody")
	expect(t, report, map[string]string{"node-1": rejects, "node-2": rejects, "node-3": rejects, "node-4": rejects})
	if f := disagreement(report); f != nil {
		t.Errorf("finding %+v", f)
	}
}

// closedTarget has a pod that is Ready and does not listen on the Service's target port.
func (p *place) closedTarget(t *testing.T) {
	svc := p.app(t, "edge", []int{1})
	svc.Spec.Ports[0].TargetPort.IntVal = 9
	if _, err := p.Client.CoreV1().Services(p.namespace).Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.eventually(t, p.client, nodePort(p.Nodes[0].Addr, svc), "refused")
	report, _ := p.from(t, p.client, "edge")
	expect(t, report, map[string]string{"node-1": "http OK/Refused; healthCheck 200/200", "node-2": drops})
	p.contradiction(t, report, "node-1", "the rules say ok, a probe saw refused twice")
}

// firewall breaks one node of two: a rule on it drops what comes in for the node port.
func (p *place) firewall(t *testing.T) {
	svc := p.app(t, "edge", []int{1, 2})
	rules := fmt.Sprintf("add table inet probetest; add chain inet probetest in { type filter hook prerouting priority -400; }; add rule inet probetest in tcp dport %d drop", svc.Spec.Ports[0].NodePort)
	if _, err := p.Nodes[1].Run(t.Context(), "nft", rules); err != nil {
		t.Fatal(err)
	}
	defer p.must(t, &p.Nodes[1].Host, "nft", "delete table inet probetest")
	report, _ := p.from(t, p.client, "edge")
	expect(t, report, map[string]string{"node-1": serves, "node-2": "http OK/Blackhole; healthCheck 200/200", "node-3": drops})
	p.contradiction(t, report, "node-2", "the rules say ok, a probe saw BLACKHOLE twice")
}

func (p *place) contradiction(t *testing.T, report *guard.CoverageReport, node, message string) {
	t.Helper()
	f := disagreement(report)
	if f == nil || strings.Join(f.Nodes, ",") != node || f.Severity != guard.Warn || !strings.Contains(f.Message, message) {
		t.Errorf("finding %+v, want one of %s: %s", f, node, message)
	}
}

// fromNode runs on a node without an endpoint, which is served nevertheless: that proves nothing.
func (p *place) fromNode(t *testing.T) {
	svc := p.app(t, "edge", []int{1, 2})
	p.eventually(t, p.client, nodePort(p.Nodes[2].Addr, svc), "silent")
	if got := truth(t.Context(), &p.Nodes[2].Host, nodePort(p.Nodes[2].Addr, svc)); got != "accepted" {
		t.Errorf("node-3 to itself: %s, want accepted: a node looks healthy to itself", got)
	}
	report, stderr := p.from(t, &p.Nodes[2].Host, "edge")
	expect(t, report, map[string]string{"node-1": serves, "node-2": serves, "node-3": thisNode, "node-4": drops})
	if f := disagreement(report); f != nil || report.Probe.Place != "on node-3" || !strings.Contains(stderr, "of 3 nodes from here, on node-3") {
		t.Errorf("finding %+v, place %q, stderr %s", f, report.Probe.Place, stderr)
	}
	report, _ = p.from(t, &p.Nodes[0].Host, "edge")
	expect(t, report, map[string]string{"node-1": thisNode, "node-3": drops})
}

// fromPod runs in pods. The kube-proxies of the lab know pods by the range of the whole cluster. A node without an endpoint
// serves its own pods nevertheless.
func (p *place) fromPod(t *testing.T) {
	svc := p.app(t, "edge", []int{1, 2})
	if _, err := p.Deployment(t.Context(), p.namespace, "other", 1, dataplane.WithSpec(onNodes([]int{4}))); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 4} { // pods reach the API server as those of most network plugins do: behind their node
		node := p.Nodes[n-1]
		p.must(t, &node.Host, "nft", fmt.Sprintf("add table ip probetest; add chain ip probetest out { type nat hook postrouting priority 100; }; "+
			"add rule ip probetest out ip saddr %s ip daddr %s masquerade", node.PodRange, p.Gateway()))
		defer p.must(t, &node.Host, "nft", "delete table ip probetest")
	}
	for app, want := range map[string]map[string]string{
		// Its own endpoint on node-1 tells where it runs; the API and the node's range do.
		"edge":  {"node-1": thisPodNode, "node-2": inPod + "200/200", "node-3": inPod + "503/503"},
		"other": {"node-4": thisPodNode, "node-2": inPod + "200/200", "node-3": inPod + "503/503"},
	} {
		node, pid := p.process(t, app)
		if app == "other" {
			p.must(t, &node.Host, "nsenter", "--net", "--target", pid, "--", "timeout", "3", "bash", "-c",
				fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", node.Addr, svc.Spec.Ports[0].NodePort))
			p.eventually(t, p.client, nodePort(node.Addr, svc), "silent")
		}
		cmd := node.Command(t.Context(), "nsenter", "--net", "--target", pid, "--", binary, "audit", p.namespace+"/edge", "--probe", "-o", "json")
		report, _ := p.audit(t, cmd)
		expect(t, report, want)
		if f := disagreement(report); f != nil {
			t.Errorf("from a pod of %s: finding %+v", app, f)
		}
		if report.Probe.Place != "in a pod on "+node.Name {
			t.Errorf("from a pod of %s: %s", app, report.Probe.Place)
		}
	}
}

// process returns the node of an app's first pod and the process id of its server.
func (p *place) process(t *testing.T, app string) (*dataplane.Node, string) {
	t.Helper()
	pods, err := p.Client.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: dataplane.AppLabel + "=" + app})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("no pod of %s: %v", app, err)
	}
	pod := &pods.Items[0]
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName < pod.Spec.NodeName {
			pod = &pods.Items[i]
		}
	}
	pid, _, _ := strings.Cut(strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, dataplane.ContainerIDPrefix), ".")
	for _, n := range p.Nodes {
		if n.Name == pod.Spec.NodeName {
			return n, pid
		}
	}
	t.Fatalf("no node %q", pod.Spec.NodeName)
	return nil, ""
}

// behindFirewall probes from a host that hears nothing of node ports and health checks.
func (p *place) behindFirewall(t *testing.T) {
	p.app(t, "edge", []int{1, 2})
	host, err := p.AddHost(t.Context(), "walled")
	if err != nil {
		t.Fatal(err)
	}
	p.must(t, host, "nft", "add table inet probetest; add chain inet probetest in { type filter hook input priority 0; }; add rule inet probetest in tcp sport 30000-32767 drop")
	report, stderr := p.from(t, host, "edge", "--probe-timeout=1s")
	if f := disagreement(report); f != nil || report.Probe.Counted != 0 || len(report.Probe.NoProof) != 2 {
		t.Errorf("finding %+v, summary %+v; want that nothing is proven", f, report.Probe)
	}
	if strings.Count(stderr, "Warning: the probe proves nothing: no node answers on any port over IPv") != 2 {
		t.Errorf("stderr: %s", stderr)
	}
}

// stoppedProxy stops the proxy of a node, then gives the node an endpoint that its rules never hear of.
func (p *place) stoppedProxy(t *testing.T) {
	svc := p.app(t, "edge", []int{1})
	p.eventually(t, p.client, nodePort(p.Nodes[2].Addr, svc), "silent")
	proxy := p.Nodes[2]
	if err := proxy.StopProxy(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := proxy.StartProxy(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := p.Deployment(t.Context(), p.namespace, "more", 1, dataplane.WithSpec(onNodes([]int{3})), dataplane.WithLabel("extra", "yes")); err != nil {
		t.Fatal(err)
	}
	// The pods of the second workload become endpoints of the Service too.
	p.join(t, "more", "edge")
	report, _ := p.from(t, p.client, "edge")
	expect(t, report, map[string]string{"node-1": serves, "node-2": drops, "node-3": "http OK/Blackhole; healthCheck 200/Refused"})
	p.contradiction(t, report, "node-3", "the rules say ok, a probe saw BLACKHOLE twice")
	p.contradiction(t, report, "node-3", "the rules say 200, a probe saw refused twice")
}

// join puts the app label of a Service on the pods of another workload that no controller reads by it, and waits for the
// endpoints.
func (p *place) join(t *testing.T, from, service string) {
	t.Helper()
	pods, err := p.Client.CoreV1().Pods(p.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: dataplane.AppLabel + "=" + from})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		pod.Labels[dataplane.AppLabel] = service
		if _, err := p.Client.CoreV1().Pods(p.namespace).Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.wait(t, "endpoints on two nodes", func() bool {
		endpoints, err := p.Endpoints(t.Context(), p.namespace, service)
		return err == nil && len(endpoints) == 4
	})
}

func (p *place) scale(t *testing.T, name string, replicas int32) {
	t.Helper()
	scale, err := p.Client.AppsV1().Deployments(p.namespace).GetScale(t.Context(), name, metav1.GetOptions{})
	if err == nil {
		scale.Spec.Replicas = replicas
		_, err = p.Client.AppsV1().Deployments(p.namespace).UpdateScale(t.Context(), name, scale, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p *place) wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

func (p *place) must(t *testing.T, h *dataplane.Host, name string, args ...string) {
	t.Helper()
	if _, err := h.Run(t.Context(), name, args...); err != nil {
		t.Error(err)
	}
}

package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// onLoopback moves the nodes of an example to loopback, and its Service to a port on which the workers of these names
// accept connections.
func (l *live) onLoopback(t *testing.T, accepting ...string) {
	t.Helper()
	nodes := l.client.CoreV1().Nodes()
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addresses := map[string]string{}
	for i := range list.Items {
		n := &list.Items[i]
		addresses[n.Name] = fmt.Sprintf("127.0.1.%d", i+1)
		n.Spec.PodCIDRs = nil
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addresses[n.Name]}}
		if _, err := nodes.Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	port := 0
	for _, name := range accepting {
		door, err := net.Listen("tcp", net.JoinHostPort(addresses[name], fmt.Sprint(port)))
		if err != nil {
			t.Skipf("cannot listen on loopback: %v", err)
		}
		t.Cleanup(func() { door.Close() })
		port = door.Addr().(*net.TCPAddr).Port
	}
	services := l.client.CoreV1().Services("kubelings")
	svc, err := services.Get(t.Context(), "checkout", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	svc.Spec.Ports[0].NodePort = int32(port)
	if _, err := services.Update(t.Context(), svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestAuditProbeLive(t *testing.T) {
	l := newLive(t, "after")
	l.onLoopback(t, "node-1", "node-2", "node-3")
	if code := l.run(t, nil, "audit", "--probe", "--probe-timeout=1m", "--fail-on=warn"); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, l.out.String(), l.errOut.String())
	}
	if got := l.out.String(); !strings.Contains(got, "of 3 ports 3 as the rules say\n") || !strings.Contains(got, "ok          ok\n") {
		t.Errorf("stdout:\n%s", got)
	}
	if got := l.errOut.String(); !strings.HasPrefix(got, "probing 3 ports of 3 nodes from here, outside the nodes: at most 50 a second, at most 5m\n") {
		t.Errorf("stderr:\n%s", got)
	}
	if w := l.writes(); len(w) > 0 {
		t.Errorf("a probe wrote %v", w)
	}
}

// TestAuditProbeDisagrees: node-3 refuses although a pod of the Service is there.
func TestAuditProbeDisagrees(t *testing.T) {
	l := newLive(t, "after")
	l.onLoopback(t, "node-1", "node-2")
	if code := l.run(t, nil, "audit", "--probe", "--probe-timeout=1m", "--fail-on=warn", "-o", "json"); code != 3 {
		t.Fatalf("exit code %d, want 3\n%s%s", code, l.out.String(), l.errOut.String())
	}
	var report guard.CoverageReport
	if err := json.Unmarshal(l.out.Bytes(), &report); err != nil {
		t.Fatalf("stdout is not one document: %v\n%s", err, l.out.String())
	}
	s := report.Services[0]
	i := slices.IndexFunc(s.Findings, func(f guard.Finding) bool { return f.Code == guard.ProbeDisagrees })
	if i < 0 || !slices.Equal(s.Findings[i].Nodes, []string{"node-3"}) || !strings.Contains(s.Findings[i].Message, "the rules say ok, a probe saw refused twice") {
		t.Errorf("findings %+v", s.Findings)
	}
	results := map[string]guard.ProbeResult{}
	for _, row := range s.Nodes {
		if row.Probe != nil {
			results[row.Name] = row.Probe.Result
		}
	}
	if results["node-1"] != guard.ProbeAgrees || results["node-3"] != guard.ProbeContradict {
		t.Errorf("results %v", results)
	}
	if report.Probe == nil || report.Probe.Counted != 3 || report.Probe.Disagree != 1 {
		t.Errorf("summary %+v", report.Probe)
	}
}

package probetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/dataplane"
)

// envBinary names a ready safedrain; without it one is built from this tree.
const envBinary = "SAFEDRAIN_TEST_BINARY"

var binary string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if dataplane.ForTests() != nil {
		return m.Run() // every test skips
	}
	dir, err := os.MkdirTemp("", "safedrain-probe-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		binary, err = buildBinary(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func buildBinary(ctx context.Context, dir string) (string, error) {
	if path := os.Getenv(envBinary); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(dir, "safedrain")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/safedrain")
	cmd.Dir = filepath.Join("..", "..", "..") // its own module: the versions that are shipped
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build safedrain: %w\n%s", err, out)
	}
	return path, nil
}

// place is a lab of four nodes with a client beside them.
type place struct {
	*dataplane.Lab
	client    *dataplane.Host
	namespace string
}

func up(t *testing.T, mode string) *place {
	t.Helper()
	if err := dataplane.ForTests(); err != nil {
		t.Skip(err)
	}
	lab, err := dataplane.Up(t.Context(), dataplane.Options{Nodes: 4, ProxyMode: mode, IPv6: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(lab.Logs())
		}
		if err := lab.Down(context.Background()); err != nil { // the test's own context has ended
			t.Error(err)
		}
	})
	p := &place{Lab: lab}
	if p.client, err = lab.AddHost(t.Context(), "client"); err != nil {
		t.Fatal(err)
	}
	return p
}

// app makes a workload with one pod on each of the nodes of these numbers, and a Service of type LoadBalancer before it,
// and waits until its nodes serve over both families. The Service has another port on which no pod listens, and a UDP one.
func (p *place) app(t *testing.T, name string, on []int, options ...dataplane.PodOption) *corev1.Service {
	t.Helper()
	if len(on) > 0 {
		options = append(options, dataplane.WithSpec(onNodes(on)))
		if _, err := p.Deployment(t.Context(), p.namespace, name, int32(len(on)), options...); err != nil {
			t.Fatal(err)
		}
	}
	svc, err := p.Service(t.Context(), p.namespace, name, dataplane.LoadBalancer, func(svc *corev1.Service) {
		ports := &svc.Spec.Ports
		*ports = append(*ports, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: (*ports)[0].TargetPort})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range on {
		for _, addr := range []netip.Addr{p.Nodes[n-1].Addr, p.Nodes[n-1].Addr6} {
			p.eventually(t, p.client, nodePort(addr, svc), "accepted")
		}
	}
	return svc
}

// onNodes lets one pod run on each of some nodes, and nowhere else.
func onNodes(on []int) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		var names []string
		for _, n := range on {
			names = append(names, fmt.Sprintf("node-%d", n))
		}
		t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names},
			}}},
		}}}
		dataplane.WithSpread()(t)
		t.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.DoNotSchedule
		t.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = nil
	}
}

func nodePort(addr netip.Addr, svc *corev1.Service) netip.AddrPort {
	return netip.AddrPortFrom(addr, uint16(svc.Spec.Ports[0].NodePort))
}

// truth is what a connection from a host comes to, by other means than the program under test.
func truth(ctx context.Context, from *dataplane.Host, to netip.AddrPort) string {
	ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", to.String())
	var timeout net.Error
	switch {
	case err == nil:
		_ = conn.Close()
		return "accepted"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "silent"
	case strings.Contains(err.Error(), "refused"):
		return "refused"
	}
	return err.Error()
}

func (p *place) eventually(t *testing.T, from *dataplane.Host, to netip.AddrPort, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if got = truth(t.Context(), from, to); got == want {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	t.Fatalf("%s from %s: %s, want %s", to, from.Name, got, want)
}

// audit runs the program and returns its report and what it said on stderr; it must end with exit code 0.
func (p *place) audit(t *testing.T, cmd *exec.Cmd) (*guard.CoverageReport, string) {
	t.Helper()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "KUBECONFIG=" + p.Kubeconfig}
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, errOut.String())
	}
	var report guard.CoverageReport
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if report.Probe == nil || len(report.Services) != 1 {
		t.Fatalf("no probe, or not one Service:\n%s", out.String())
	}
	return &report, errOut.String()
}

// from runs the probe of a Service on a host.
func (p *place) from(t *testing.T, h *dataplane.Host, service string, flags ...string) (*guard.CoverageReport, string) {
	t.Helper()
	args := append([]string{"audit", p.namespace + "/" + service, "--probe", "-o", "json"}, flags...)
	return p.audit(t, h.Command(t.Context(), binary, args...))
}

// seen writes what the probe of a node came to: "http: OK/Blackhole; check: 200/200" as predicted and seen, one for each
// family where they differ.
func seen(report *guard.CoverageReport, node string) string {
	for _, row := range report.Services[0].Nodes {
		if row.Name != node || row.Probe == nil {
			continue
		}
		var out []string
		for _, port := range row.Probe.Ports {
			if port.Protocol() == corev1.ProtocolUDP {
				continue
			}
			text := fmt.Sprintf("%s %s/%s", strings.TrimSuffix(port.Port, "/TCP"), port.Predicted, port.Observed)
			if port.NotCounted != "" {
				text = strings.TrimSuffix(port.Port, "/TCP") + ": " + port.NotCounted
			}
			if len(out) == 0 || out[len(out)-1] != text {
				out = append(out, text)
			}
		}
		return strings.Join(out, "; ")
	}
	return "no row"
}

// disagreement is the finding of the Service, nil when there is none.
func disagreement(report *guard.CoverageReport) *guard.Finding {
	for i, f := range report.Services[0].Findings {
		if f.Code == guard.ProbeDisagrees {
			return &report.Services[0].Findings[i]
		}
	}
	return nil
}

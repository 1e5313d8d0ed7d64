package deploy_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/safedrain/safedrain/internal/gate/metrics"
	"github.com/safedrain/safedrain/test/controlplane"
)

// ofOthers are metrics that the gate does not make itself: Prometheus', the API server's, those of every Go process.
var ofOthers = []string{
	"up", "process_resident_memory_bytes", "process_cpu_seconds_total",
	"apiserver_admission_webhook_fail_open_count", "apiserver_admission_webhook_rejection_count",
	"apiserver_admission_webhook_admission_duration_seconds_bucket",
}

// TestMonitoring: Prometheus takes the alerts, its parser every query of the dashboard, and both read only metrics that there
// are.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	dir, err := controlplane.OtherPrograms(t.Context(), "deploy/promql", map[string]string{"promql": "."})
	if err != nil {
		t.Fatal(err)
	}
	files := []string{filepath.Join(chartDir, "files", "alerts.yaml"), filepath.Join(chartDir, "files", "dashboard.json")}
	for _, file := range files {
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "promql"), file).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
			continue
		}
		known := append(made(t), ofOthers...)
		for _, name := range strings.Fields(string(out)) {
			if !slices.Contains(known, name) {
				t.Errorf("%s reads %s, which nobody makes", filepath.Base(file), name)
			}
		}
	}
}

// made lists the metrics of the gate, with the series of its histograms.
func made(t testing.TB) []string {
	t.Helper()
	r := &names{}
	if _, err := metrics.New(r); err != nil {
		t.Fatal(err)
	}
	return r.all
}

// names is a registry that keeps the names of metrics.
type names struct{ all []string }

// Register keeps the names of a collector.
func (n *names) Register(c prometheus.Collector) error {
	described := make(chan *prometheus.Desc, 16)
	c.Describe(described)
	close(described)
	for d := range described {
		_, rest, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)
		n.all = append(n.all, name, name+"_bucket")
	}
	return nil
}

// MustRegister is not used.
func (n *names) MustRegister(...prometheus.Collector) {}

// Unregister is not used.
func (n *names) Unregister(prometheus.Collector) bool { return false }

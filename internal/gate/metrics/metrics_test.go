package metrics

import (
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/safedrain/safedrain/pkg/guard"
)

// filled returns a registry with every metric used once.
func filled(t *testing.T) (*Metrics, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	m, err := New(r)
	if err != nil {
		t.Fatal(err)
	}
	m.Decision("pods/eviction", "deny", "Keeper", time.Millisecond)
	m.Withdrawal("proven")
	m.Keepers(3)
	m.CertificateExpires(time.Unix(1000, 0))
	m.Elected(true)
	m.Synced(true)
	m.Blackholed(map[guard.Key]int{{Namespace: "shop", Name: "web"}: 2, {Namespace: "shop", Name: "old"}: 1})
	return m, r
}

// TestNames holds the names to the rules: the prefix, base units, _total for counters, help, and no label that grows with
// the cluster's pods or nodes.
func TestNames(t *testing.T) {
	_, r := filled(t)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 8 {
		t.Errorf("%d metrics, want 8", len(families))
	}
	name := regexp.MustCompile(`^safedrain_[a-z]+(_[a-z]+)*$`)
	allowed := map[string]bool{"resource": true, "decision": true, "reason": true, "outcome": true, "namespace": true, "service": true}
	for _, f := range families {
		if !name.MatchString(f.GetName()) || f.GetHelp() == "" {
			t.Errorf("%s: name or help: %q", f.GetName(), f.GetHelp())
		}
		if counter := f.GetType().String() == "COUNTER"; counter != regexp.MustCompile(`_total$`).MatchString(f.GetName()) {
			t.Errorf("%s: a counter ends in _total, nothing else does", f.GetName())
		}
		if regexp.MustCompile(`milli|minute|kilo`).MatchString(f.GetName()) {
			t.Errorf("%s: not a base unit", f.GetName())
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !allowed[l.GetName()] {
					t.Errorf("%s: label %s", f.GetName(), l.GetName())
				}
			}
		}
	}
}

// TestBlackholed: a Service that is gone leaves no series behind, and one that is mended shows 0.
func TestBlackholed(t *testing.T) {
	m, r := filled(t)
	m.Blackholed(map[guard.Key]int{{Namespace: "shop", Name: "web"}: 0})
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "safedrain_blackholed_nodes" {
			continue
		}
		for _, series := range f.GetMetric() {
			got[series.GetLabel()[0].GetValue()+"/"+series.GetLabel()[1].GetValue()] = series.GetGauge().GetValue()
		}
	}
	if diff := cmp.Diff(map[string]float64{"shop/web": 0}, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// TestNil: who reports to nobody needs no condition.
func TestNil(*testing.T) {
	var m *Metrics
	m.Decision("scale", "allow", "Up", 0)
	m.Withdrawal("proven")
	m.Keepers(1)
	m.CertificateExpires(time.Time{})
	m.Elected(true)
	m.Synced(true)
	m.Blackholed(nil)
}

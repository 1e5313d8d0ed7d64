// Package metrics holds what the gate counts. Every name begins with safedrain_, every unit is a base unit, and no label
// names a pod or a node.
package metrics

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Metrics is what the parts of the gate report to. A nil one takes everything and keeps nothing.
type Metrics struct {
	decisions   *prometheus.CounterVec
	latency     *prometheus.HistogramVec
	withdrawals *prometheus.CounterVec
	keepers     prometheus.Gauge
	expiry      prometheus.Gauge
	elected     prometheus.Gauge
	synced      prometheus.Gauge
	blackholed  *prometheus.GaugeVec

	mu     sync.Mutex
	before map[guard.Key]int // what blackholed shows
}

// New makes the metrics and registers them.
func New(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "safedrain_gate_decisions_total",
			Help: "Admission reviews answered, by resource (pods/eviction, scale, replicas), decision (allow, deny, clamp, warn) and reason.",
		}, []string{"resource", "decision", "reason"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "safedrain_gate_decision_seconds",
			Help:    "Time from the arrival of an admission review to its answer, by resource.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"resource"}),
		withdrawals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "safedrain_gate_withdrawals_total",
			Help: "Withdrawals of nodes that others drain, by outcome.",
		}, []string{"outcome"}),
		keepers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "safedrain_gate_keepers",
			Help: "Pods that are marked as keepers, as the elected replica sees them; 0 on the others.",
		}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "safedrain_gate_certificate_expiry_seconds",
			Help: "When the webhook certificate of this replica ends, in seconds since 1970.",
		}),
		elected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "safedrain_gate_elected",
			Help: "1 on the replica that runs the controllers, 0 on the others.",
		}),
		synced: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "safedrain_gate_synced",
			Help: "1 once this replica has read the cluster, 0 before.",
		}),
		blackholed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "safedrain_blackholed_nodes",
			Help: "Nodes that a balancer sends to for a Service of policy Local and that have no usable endpoint of it.",
		}, []string{"namespace", "service"}),
		before: map[guard.Key]int{},
	}
	for _, c := range m.all() {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.decisions, m.latency, m.withdrawals, m.keepers, m.expiry, m.elected, m.synced, m.blackholed}
}

// Decision counts the answer to a review. The reason is one of a closed set of codes.
func (m *Metrics) Decision(resource, decision, reason string, took time.Duration) {
	if m == nil {
		return
	}
	m.decisions.WithLabelValues(resource, decision, reason).Inc()
	m.latency.WithLabelValues(resource).Observe(took.Seconds())
}

// Withdrawal counts the end of the withdrawal of a node.
func (m *Metrics) Withdrawal(outcome string) {
	if m != nil {
		m.withdrawals.WithLabelValues(outcome).Inc()
	}
}

// Keepers states how many pods are marked.
func (m *Metrics) Keepers(n int) {
	if m != nil {
		m.keepers.Set(float64(n))
	}
}

// CertificateExpires states when the certificate of this replica ends.
func (m *Metrics) CertificateExpires(at time.Time) {
	if m != nil {
		m.expiry.Set(float64(at.Unix()))
	}
}

// Elected states whether this replica runs the controllers.
func (m *Metrics) Elected(yes bool) {
	if m != nil {
		m.elected.Set(number(yes))
	}
}

// Synced states whether this replica has read the cluster.
func (m *Metrics) Synced(yes bool) {
	if m != nil {
		m.synced.Set(number(yes))
	}
}

// Blackholed states the number of blackholed nodes of every Service of policy Local, zero included; a Service that is not
// among them any more is forgotten.
func (m *Metrics) Blackholed(nodes map[guard.Key]int) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.before {
		if _, still := nodes[key]; !still {
			m.blackholed.DeleteLabelValues(key.Namespace, key.Name)
		}
	}
	for key, n := range nodes {
		if had, known := m.before[key]; !known || had != n {
			m.blackholed.WithLabelValues(key.Namespace, key.Name).Set(float64(n))
		}
	}
	m.before = maps.Clone(nodes)
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

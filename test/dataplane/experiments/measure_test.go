package experiments

import (
	"errors"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/balancers"
	"github.com/safedrain/safedrain/test/dataplane/load"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// secondAt is a second of load that starts so many milliseconds after the action began.
func secondAt(ms, failed int) *load.Second {
	s := &load.Second{Start: began.Add(time.Duration(ms) * time.Millisecond)}
	s.New = load.Counts{Scheduled: 10, OK: 10 - failed, Timeout: failed}
	return s
}

func failureAt(ms int, class load.Class) *load.Failure {
	return &load.Failure{At: began.Add(time.Duration(ms) * time.Millisecond), Class: class}
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	seconds := []*load.Second{
		secondAt(-3300, 5), secondAt(-2300, 0), secondAt(-1300, 0), secondAt(-300, 0), secondAt(700, 2), secondAt(1700, 0), secondAt(2700, 0), secondAt(3700, 9),
	}
	failures := []*load.Failure{
		failureAt(-2900, load.Timeout), failureAt(900, load.Timeout), failureAt(1200, load.Refused), failureAt(1300, load.Cut), failureAt(3900, load.Timeout),
	}
	r := &results.Record{}
	if err := measure(r, seconds, failures[:4], window{began, began.Add(3 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	if r.New.Scheduled != 40 || r.Steady.Scheduled != 20 || r.First != 0.9 || r.Last != 1.2 {
		t.Errorf("new %+v, steady %+v, failures from %v to %v", r.New, r.Steady, r.First, r.Last)
	}
	want := results.Series{From: -2, OK: []int{10, 10, 10, 8, 10}, Failed: []int{0, 0, 1, 1, 0}}
	if diff := cmp.Diff(want, r.Series); diff != "" {
		t.Error(diff)
	}
}

func TestMeasureDiscards(t *testing.T) {
	t.Parallel()
	late := secondAt(700, 0)
	late.LagMS = 1000
	tests := map[string]struct {
		seconds  []*load.Second
		failures []*load.Failure
	}{
		"a failure before the action": {failures: []*load.Failure{failureAt(-100, load.Timeout)}},
		"a generator that was late":   {seconds: []*load.Second{late}},
	}
	for name, tt := range tests {
		err := measure(&results.Record{}, tt.seconds, tt.failures, window{began, began.Add(3 * time.Second)})
		if !errors.Is(err, errDiscard) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSurplus(t *testing.T) {
	t.Parallel()
	pods := func(nodes ...string) []corev1.Pod {
		var out []corev1.Pod
		for i, node := range nodes {
			p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: "p" + strconv.Itoa(i), Labels: map[string]string{dataplane.AppLabel: "web"},
				CreationTimestamp: metav1.NewTime(began.Add(time.Duration(i) * time.Second)),
			}}
			p.Spec.NodeName = node
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			out = append(out, p)
		}
		return out
	}
	terminating := pods("a", "b", "c", "d", "d")
	terminating[4].DeletionTimestamp = &metav1.Time{Time: began}
	tests := map[string]struct {
		pods    []corev1.Pod
		surplus string
		done    bool
	}{
		"one on each":        {pods("a", "b", "c", "d"), "", true},
		"two on one":         {pods("a", "b", "b", "c"), "p2", false},
		"one too many":       {pods("a", "b", "c", "d", "b"), "p4", false},
		"one is to come":     {pods("a", "b", "c"), "", false},
		"one is to go":       {terminating, "", false},
		"others don't count": {append(pods("a", "b", "c", "d"), corev1.Pod{}), "", true},
	}
	for name, tt := range tests {
		got, open := surplusOf(tt.pods, "web", &Round{})
		if (got == nil) != (tt.surplus == "") || got != nil && got.Name != tt.surplus || (open == "") != tt.done {
			t.Errorf("%s: %v, %q", name, got, open)
		}
	}
}

// The winner of MetalLB's election, as `printf 'node-N#10.64.0.250' | sha256sum` orders them.
func TestLeader(t *testing.T) {
	t.Parallel()
	var nodes []*dataplane.Node
	for _, name := range []string{"node-1", "node-2", "node-3", "node-4"} {
		nodes = append(nodes, &dataplane.Node{Host: dataplane.Host{Name: name}})
	}
	if got := balancers.Leader(nodes, netip.MustParseAddr("10.64.0.250")); got != "node-3" {
		t.Errorf("leader %s", got)
	}
}

package bench

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// What is promised of a plan on the large cluster.
const (
	planRatio  = 1.3 // of the time of the lists that it needs
	planMemory = 150 << 20
	planRuns   = 7
)

// BenchmarkPlan plans the drain of one node of the large cluster, beside the bare lists that this needs.
func BenchmarkPlan(b *testing.B) {
	l := newLarge(b)
	l.objects.Nodes, l.objects.Slices, l.objects.Pods, l.objects.Budgets = nil, nil, nil, nil // they are on the server now
	runtime.GC()
	b.Run("plain", func(b *testing.B) { l.plan(b, false) })
	l.metalLB(b, 1)
	b.Run("metallb", func(b *testing.B) { l.plan(b, true) })
}

// plan measures both in turn; the middle of several runs counts.
func (l *large) plan(b *testing.B, metalLB bool) {
	b.Helper()
	p := through(b, l.Cluster)
	run(b, p.Config(), safedrain, "plan", "n0")
	requests, kinds := 0, map[string]int{}
	for _, r := range p.Requests() {
		if r.Continue {
			r.Path += " (further pages)"
		} else {
			requests++
		}
		kinds[kindOf(&r)]++
	}
	b.Logf("requests of a plan\n%s", table(kinds))
	var plans []cost
	var bare, oneByOne []time.Duration
	for b.Loop() {
		for range planRuns {
			for atOnce, took := range map[int]*[]time.Duration{8: &bare, 1: &oneByOne} {
				d, err := listBare(b.Context(), l.Config(), "n0", metalLB, atOnce)
				if err != nil {
					b.Fatal(err)
				}
				*took = append(*took, d)
			}
			c, output := run(b, l.Config(), safedrain, "plan", "n0")
			if c.Code != 0 && c.Code != 3 {
				b.Fatalf("exit code %d\n%s", c.Code, output)
			}
			plans = append(plans, c)
		}
	}
	took := median(plans, func(c cost) float64 { return seconds(c.Took) })
	memory := median(plans, func(c cost) float64 { return float64(c.MaxRSS) })
	b.Logf("plan %s\nlists %.2f s, one by one %.2f s", costs(plans), median(bare, seconds), median(oneByOne, seconds))
	if ratio := took / median(bare, seconds); ratio > planRatio {
		b.Errorf("the plan took %.2f of the time of its lists, want %.2f at most", ratio, planRatio)
	}
	if memory > planMemory {
		b.Errorf("the plan took %.0f MiB, want %d at most", memory/(1<<20), planMemory>>20)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(took, "plan-s")
	b.ReportMetric(median(bare, seconds), "lists-s")
	b.ReportMetric(median(oneByOne, seconds), "lists-one-by-one-s")
	b.ReportMetric(took/median(bare, seconds), "ratio")
	b.ReportMetric(memory/(1<<20), "MiB")
	b.ReportMetric(float64(requests), "requests")
}

func costs(all []cost) string {
	text := ""
	for _, c := range all {
		text += fmt.Sprintf("%.2f s (CPU %.2f s, %d MiB) ", seconds(c.Took), seconds(c.CPU), c.MaxRSS>>20)
	}
	return text
}

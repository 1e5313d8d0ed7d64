package bench

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safedrain/safedrain/test/apiproxy"
)

// What is promised of a drain that no Service depends on.
const (
	podsOnNode    = 250
	spareRequests = 20  // beside one a pod and further pages
	timeRatio     = 0.2 // of kubectl drain's time
	atOnce        = 32  // requests in flight
)

// drainCost is what a drain took, as the API server's side saw it.
type drainCost struct {
	cost

	requests, pages, conflicts, inFlight, throttled int
}

// limit is the most requests that are promised. A patch of the node that met another writer's is tried once more, after
// the node was read again: that is the other writer's doing.
func (d *drainCost) limit() int { return podsOnNode + spareRequests + d.pages + 2*d.conflicts }

// drain runs a drain of a full node through the proxy.
func drain(b *testing.B, p *apiproxy.Proxy, tool string, args ...string) drainCost {
	b.Helper()
	n := newFullNode(b, podsOnNode)
	p.Reset()
	c, output := run(b, p.Config(), tool, append(args, n.name)...)
	d := drainCost{cost: c, inFlight: p.MaxInFlight()}
	kinds := map[string]int{}
	for _, r := range p.Requests() {
		d.requests++
		kinds[kindOf(&r)]++
		if r.Continue {
			d.pages++
		}
		switch r.Code {
		case http.StatusTooManyRequests:
			d.throttled++
		case http.StatusConflict:
			d.conflicts++
		}
	}
	if testing.Verbose() {
		b.Log(timeline(p))
	}
	if c.Code != 0 {
		b.Errorf("%s: exit code %d, want 0\n%s", tool, c.Code, output)
	}
	n.wantEmpty()
	n.remove()
	b.Logf("%s: %.2f s, CPU %.2f s, %d requests, at most %d at once, %d conflicts, %d answered 429, %d MiB\n%s",
		filepath.Base(tool), seconds(c.Took), seconds(c.CPU), d.requests, d.inFlight, d.conflicts, d.throttled, c.MaxRSS>>20, table(kinds))
	return d
}

// kindOf is a request without the names in it.
func kindOf(r *apiproxy.Request) string {
	kind := r.Method + " " + r.Path
	if i := strings.Index(kind, "/pods/"); i >= 0 {
		rest := "/pods/*"
		if j := strings.IndexByte(kind[i+len("/pods/"):], '/'); j >= 0 {
			rest += kind[i+len("/pods/")+j:]
		}
		kind = kind[:i] + rest
	}
	if r.Watch {
		kind += " (watch)"
	}
	return kind
}

// timeline lists all requests but evictions.
func timeline(p *apiproxy.Proxy) string {
	var lines []string
	all := p.Requests()
	for _, r := range all {
		if !evicts(r.Method, r.Path) {
			lines = append(lines, fmt.Sprintf("  %6.3f for %6.3f s: %d %s", seconds(r.Began.Sub(all[0].Began)), seconds(r.Ended.Sub(r.Began)), r.Code, kindOf(&r)))
		}
	}
	return "requests, evictions apart\n" + strings.Join(lines, "\n")
}

func table(kinds map[string]int) string {
	var lines []string
	for kind, n := range kinds {
		lines = append(lines, fmt.Sprintf("  %4d %s", n, kind))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

// BenchmarkDrain drains nodes with 250 pods that end at once and that no Service needs, by kubectl and by safedrain in turn.
func BenchmarkDrain(b *testing.B) {
	kubectl, err := whole(b).Programs().Kubectl()
	if err != nil {
		b.Fatal(err)
	}
	p := through(b, whole(b))
	var theirs, ours []drainCost
	for b.Loop() {
		theirs = append(theirs, drain(b, p, kubectl, "drain"))
		ours = append(ours, drain(b, p, safedrain))
	}
	for _, d := range ours {
		if d.requests > d.limit() {
			b.Errorf("safedrain made %d requests, want %d at most", d.requests, d.limit())
		}
		if d.inFlight > atOnce {
			b.Errorf("safedrain had %d requests in flight, want %d at most", d.inFlight, atOnce)
		}
	}
	b.ReportMetric(median(ours, func(d drainCost) float64 { return float64(d.conflicts) }), "safedrain-conflicts")
	ratio := median(ours, tookOf) / median(theirs, tookOf)
	if ratio > timeRatio {
		b.Errorf("safedrain took %.2f of kubectl's time, want %.2f at most", ratio, timeRatio)
	}
	requests := func(d drainCost) float64 { return float64(d.requests) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(theirs, tookOf), "kubectl-s")
	b.ReportMetric(median(ours, tookOf), "safedrain-s")
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(median(theirs, requests), "kubectl-requests")
	b.ReportMetric(median(ours, requests), "safedrain-requests")
	b.ReportMetric(median(theirs, func(d drainCost) float64 { return float64(d.inFlight) }), "kubectl-at-once")
	b.ReportMetric(median(ours, func(d drainCost) float64 { return float64(d.inFlight) }), "safedrain-at-once")
}

func tookOf(d drainCost) float64 { return d.Took.Seconds() }

// median is the middle of some numbers, the lower one of two.
func median[T any](of []T, number func(T) float64) float64 {
	all := make([]float64, 0, len(of))
	for _, x := range of {
		all = append(all, number(x))
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

// seconds is for tables.
func seconds(d time.Duration) float64 { return d.Seconds() }

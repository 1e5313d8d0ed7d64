package experiments

import (
	"fmt"
	"math"
	"time"

	"github.com/safedrain/safedrain/test/dataplane/load"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// window is the time of a run that counts: from the beginning of the action to the end of the watching.
type window struct{ begin, end time.Time }

// measure fills a record with what the load on a target saw within a window, and in the steady seconds before it. A failure
// in those, or a generator that was late itself, discards the run.
func measure(r *results.Record, seconds []*load.Second, failures []*load.Failure, w window) error {
	r.Started = w.begin.UTC()
	length := steadyTime + int(w.end.Sub(w.begin)/time.Second)
	r.Series = results.Series{From: -steadyTime, OK: make([]int, length), Failed: make([]int, length)}
	for _, s := range seconds {
		after := s.Start.Sub(w.begin)
		switch {
		case after+time.Second/2 < -steadyTime*time.Second, s.Start.After(w.end):
			continue
		case after+time.Second <= 0:
			r.Steady.Add(s.New)
		default:
			addTraffic(r, &s.Traffic)
		}
		put(&r.Series, r.Series.OK, after+time.Second/2, s.New.OK) // where the middle of the second lies
	}
	for _, f := range failures {
		after := f.At.Sub(w.begin)
		if after >= -steadyTime*time.Second && after < 0 {
			return fmt.Errorf("%w: %s failed %s before the action: %s", errDiscard, f.Target, -after, f.Error)
		}
		if after < 0 || f.At.After(w.end.Add(time.Second)) || f.Kept || f.Class == load.Cut {
			continue
		}
		put(&r.Series, r.Series.Failed, after, 1)
		at := inSeconds(after)
		if r.First == 0 {
			r.First = at
		}
		r.First, r.Last = min(r.First, at), max(r.Last, at)
	}
	if lag := time.Duration(r.Lag * float64(time.Millisecond)); lag > maxLag {
		return fmt.Errorf("%w: the generator was late by %s: this machine has too much to do", errDiscard, lag)
	}
	return nil
}

func addTraffic(r *results.Record, t *load.Traffic) {
	r.New.Add(t.New)
	r.Kept.Add(t.Kept)
	r.Broken += t.Broken
	r.Closed += t.Closed
	r.Preserved += t.Preserved
	r.Translated += t.Translated
	r.Lag = max(r.Lag, t.LagMS)
	r.Latency.P50 = max(r.Latency.P50, t.Latency.P50)
	r.Latency.P99 = max(r.Latency.P99, t.Latency.P99)
	r.Latency.Max = max(r.Latency.Max, t.Latency.Max)
}

// put adds n to the second of a series in which a moment lies, if it has that second.
func put(s *results.Series, values []int, after time.Duration, n int) {
	if i := int(math.Floor(after.Seconds())) - s.From; i >= 0 && i < len(values) {
		values[i] += n
	}
}

// inSeconds is a time with the precision of a record.
func inSeconds(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// outcome is how one request ended.
type outcome struct {
	at       time.Time // its scheduled moment
	lag      time.Duration
	latency  time.Duration
	kept     bool
	open     bool // the connection was there
	broken   bool // a kept connection that had answered before is lost
	closed   int  // kept connections that the other side ended in order
	err      error
	answer   answer
	source   netip.AddrPort
	expected netip.Addr
}

// class tells how the request ended.
func (o *outcome) class() Class {
	class := classify(o.err)
	if class == Reset && o.open {
		return Cut
	}
	return class
}

// tally counts the requests of one target. Its methods may be called from anywhere.
type tally struct {
	target Target
	start  time.Time
	lines  *writer

	mu      sync.Mutex
	seconds map[int]*account
	reached []*atomic.Int64 // up to where each series of moments is scheduled
	next    int             // the first second that is not written
	total   *account
	first   time.Time
	last    time.Time
}

// account is Traffic in the making.
type account struct {
	Traffic
	latencies []time.Duration
}

func newAccount() *account {
	return &account{Traffic: Traffic{Pods: map[string]int{}, Nodes: map[string]int{}}}
}

func newTally(target Target, start time.Time, lines *writer) *tally {
	return &tally{target: target, start: start, lines: lines, seconds: map[int]*account{}, total: newAccount()}
}

func (t *tally) second(at time.Time) *account {
	i := int(at.Sub(t.start) / time.Second)
	if t.seconds[i] == nil {
		t.seconds[i] = newAccount()
	}
	return t.seconds[i]
}

// scheduled counts a request before it is sent.
func (t *tally) scheduled(at time.Time, kept bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range []*account{t.second(at), t.total} {
		a.counts(kept).Scheduled++
	}
}

// ended counts how a scheduled request ended.
func (t *tally) ended(o *outcome) {
	t.mu.Lock()
	for _, a := range []*account{t.second(o.at), t.total} {
		a.add(o)
	}
	if o.err != nil && !o.kept {
		if t.first.IsZero() || o.at.Before(t.first) {
			t.first = o.at
		}
		if o.at.After(t.last) {
			t.last = o.at
		}
	}
	t.mu.Unlock()
	if o.err != nil {
		t.lines.write(Line{Failure: &Failure{
			Target: t.target.Name, At: o.at, Class: o.class(), Kept: o.kept, Source: o.source, Error: o.err.Error(),
		}})
	}
}

func (a *account) counts(kept bool) *Counts {
	if kept {
		return &a.Kept
	}
	return &a.New
}

func (a *account) add(o *outcome) {
	*a.counts(o.kept).field(o.class())++
	a.LagMS = max(a.LagMS, milliseconds(o.lag))
	a.Closed += o.closed
	if o.broken {
		a.Broken++
	}
	if o.err != nil {
		return
	}
	if !o.kept {
		a.latencies = append(a.latencies, o.latency)
	}
	if o.answer.client == o.expected {
		a.Preserved++
	} else {
		a.Translated++
	}
	a.Pods[o.answer.Pod]++
	a.Nodes[o.answer.Node]++
}

// traffic completes an account.
func (a *account) traffic() Traffic {
	slices.Sort(a.latencies)
	if n := len(a.latencies); n > 0 {
		at := func(percent int) float64 { return milliseconds(a.latencies[(n-1)*percent/100]) }
		a.Latency = Latency{P50: at(50), P99: at(99), Max: at(100)}
	}
	return a.Traffic
}

// follow notes a series of moments that is about to be scheduled, and returns where to store how far it has come.
func (t *tally) follow(from time.Duration) *atomic.Int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	reached := &atomic.Int64{}
	reached.Store(int64(from))
	t.reached = append(t.reached, reached)
	return reached
}

// flush writes the seconds that are over, in their order, up to the first one that is not all scheduled and ended.
func (t *tally) flush(now time.Duration) {
	for {
		second := t.take(now)
		if second == nil {
			return
		}
		t.lines.write(Line{Second: second})
	}
}

func (t *tally) take(now time.Duration) *Second {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := time.Duration(t.next+1) * time.Second
	for _, reached := range t.reached {
		now = min(now, time.Duration(reached.Load()))
	}
	a := t.seconds[t.next]
	if a == nil {
		a = newAccount()
	}
	if now < end || a.New.Ended() < a.New.Scheduled || a.Kept.Ended() < a.Kept.Scheduled {
		return nil
	}
	delete(t.seconds, t.next)
	t.next++
	return &Second{Target: t.target.Name, Index: t.next - 1, Start: t.start.Add(end - time.Second), Traffic: a.traffic()}
}

// summary closes the account once every request has ended.
func (t *tally) summary(ended time.Time) (Summary, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Summary{Target: t.target, Started: t.start, Ended: ended, Traffic: t.total.traffic(), First: t.first, Last: t.last}
	for _, c := range []Counts{s.New, s.Kept} {
		if c.Ended() != c.Scheduled {
			return s, fmt.Errorf("target %q: %d requests were scheduled and %d have ended: a defect of the generator", t.target.Name, c.Scheduled, c.Ended())
		}
	}
	return s, nil
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

// writer writes lines, one at a time.
type writer struct {
	mu  sync.Mutex
	out *json.Encoder
	err error
}

func newWriter(out io.Writer) *writer { return &writer{out: json.NewEncoder(out)} }

func (w *writer) write(line Line) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.err, w.out.Encode(line))
}

func (w *writer) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

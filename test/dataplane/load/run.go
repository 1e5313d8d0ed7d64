package load

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// flushInterval is how often complete seconds are looked for.
const flushInterval = 200 * time.Millisecond

// runner is one run.
type runner struct {
	config    Config
	start     time.Time
	tallies   []*tally
	requests  sync.WaitGroup
	schedules sync.WaitGroup
	inFlight  atomic.Int64
	left      atomic.Int64 // requests that may still be scheduled
	stop      context.CancelFunc
}

// Run sends load until the duration is over, the limit is reached or ctx ends, waits for the requests under way, and
// writes its lines to out. An end of ctx is no error: the summaries tell of what was sent until then.
func Run(ctx context.Context, config Config, out io.Writer) ([]Summary, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	lines := newWriter(out)
	r := &runner{config: config, start: time.Now()}
	r.left.Store(int64(config.Limit))
	ctx, r.stop = context.WithCancel(ctx)
	defer r.stop()
	for i, target := range config.Targets {
		t := newTally(target, r.start, lines)
		r.tallies = append(r.tallies, t)
		// Targets take turns rather than being sent to at the same moment.
		r.schedule(ctx, t, time.Duration(i)*time.Second/time.Duration(len(config.Targets)))
	}
	done := make(chan struct{})
	go func() {
		r.schedules.Wait()
		r.requests.Wait()
		close(done)
	}()
	r.flushUntil(done)
	return r.summaries(lines)
}

// schedule starts the new connections and the kept ones of a target.
func (r *runner) schedule(ctx context.Context, t *tally, phase time.Duration) {
	if rate := t.target.Rate; rate > 0 {
		interval := time.Duration(float64(time.Second) / rate)
		offset := time.Duration(float64(phase) / rate)
		r.schedules.Go(func() { r.arrivals(ctx, rhythm{t, false, offset, interval}) })
	}
	for i := range t.target.Kept {
		k := &kept{target: t.target}
		offset := keptInterval * time.Duration(i) / time.Duration(t.target.Kept)
		r.schedules.Go(func() {
			defer k.close()
			r.every(ctx, rhythm{t, true, offset, keptInterval}, func(at time.Time) {
				r.request(t, at, true, k.ask)
			})
		})
	}
}

// rhythm is a series of moments at which a target gets a request.
type rhythm struct {
	tally    *tally
	kept     bool
	offset   time.Duration
	interval time.Duration
}

// arrivals makes a request on a new connection at each moment of a rhythm, without waiting for those before.
func (r *runner) arrivals(ctx context.Context, beat rhythm) {
	target := beat.tally.target
	send := func(ctx context.Context, o *outcome, deadline time.Time) { once(ctx, target, o, deadline) }
	r.every(ctx, beat, func(at time.Time) {
		r.requests.Go(func() { r.request(beat.tally, at, false, send) })
	})
}

// every counts a request as scheduled and calls do for each moment of a rhythm, at once for moments that it is late for,
// until ctx or the limit ends.
func (r *runner) every(ctx context.Context, beat rhythm, do func(at time.Time)) {
	reached := beat.tally.follow(beat.offset)
	defer reached.Store(math.MaxInt64)
	timer := time.NewTimer(beat.offset)
	defer timer.Stop()
	for offset := beat.offset; offset < r.config.Duration; offset += beat.interval {
		at := r.start.Add(offset)
		reached.Store(int64(offset))
		if wait := time.Until(at); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
		if ctx.Err() != nil {
			return
		}
		if r.left.Add(-1) < 0 {
			r.stop()
			return
		}
		beat.tally.scheduled(at, beat.kept)
		do(at)
	}
}

// request makes one request that is counted as scheduled, and counts how it ended.
func (r *runner) request(t *tally, at time.Time, kept bool, do func(context.Context, *outcome, time.Time)) {
	o := &outcome{at: at, kept: kept, lag: time.Since(at)}
	if r.inFlight.Add(1) > int64(r.config.InFlight) {
		o.err = errLate
	} else {
		do(context.Background(), o, at.Add(r.config.Timeout)) // the deadline bounds it; an end of the run lets it end
	}
	r.inFlight.Add(-1)
	t.ended(o)
}

// flushUntil writes seconds as they are complete, and the rest once done.
func (r *runner) flushUntil(done <-chan struct{}) {
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			for _, t := range r.tallies {
				t.flush(time.Since(r.start) + time.Second) // and the last, which may be a part of a second
			}
			return
		case <-tick.C:
			for _, t := range r.tallies {
				t.flush(time.Since(r.start))
			}
		}
	}
}

func (r *runner) summaries(lines *writer) ([]Summary, error) {
	ended := time.Now()
	var errs []error
	summaries := make([]Summary, 0, len(r.tallies))
	for _, t := range r.tallies {
		s, err := t.summary(ended)
		errs = append(errs, err)
		summaries = append(summaries, s)
		lines.write(Line{Summary: &s})
	}
	return summaries, errors.Join(append(errs, lines.failed())...)
}

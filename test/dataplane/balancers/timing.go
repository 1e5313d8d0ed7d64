package balancers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

// How often is asked, while a removal is timed.
const (
	requestEvery = 10 * time.Millisecond
	showEvery    = 5 * time.Millisecond
	// quiet is for how long a node has to get nothing, to be out of the data plane: 200 requests.
	quiet = 2 * time.Second
)

// Timing is when a balancer did what it was told, from the moment of the command. Zero means that it did not happen.
type Timing struct {
	Balancer string `json:"balancer"`
	Node     string `json:"node"`
	// LastAnswer is when the node last answered a new connection: from then on the data plane sent it nothing.
	LastAnswer time.Duration `json:"lastAnswer"`
	// Shown is from when on the balancer's own API or socket no longer showed the node.
	Shown time.Duration `json:"shown"`
	// Back is when the node first answered again after the command that put it back.
	Back time.Duration `json:"back"`
	// Requests and Failed count new connections during all of it. Reset are those of Failed that were reset or ended while
	// they waited for their answer: where open connections do not outlive a change, one that is under way then breaks.
	Requests int `json:"requests"`
	Failed   int `json:"failed"`
	Reset    int `json:"reset"`
}

// Measure takes a node out of a balancer by the balancer's own means, puts it back, and times both, with a request every
// ten milliseconds. The balancer has to carry the Service, and the node has to be in its rotation.
func Measure(ctx context.Context, b Balancer, svc *corev1.Service, from *dataplane.Host, node string) (Timing, error) {
	t := Timing{Balancer: b.Traits().Name, Node: node}
	load := &stream{from: from, to: b.Target(svc)}
	stop := load.start(ctx)
	defer stop()
	if err := load.waitNode(ctx, node, time.Time{}); err != nil {
		return t, fmt.Errorf("before the command: %w", err)
	}
	removed := time.Now()
	if err := b.Remove(ctx, node); err != nil {
		return t, err
	}
	shown, err := waitShown(ctx, b, svc, node)
	if err != nil {
		return t, err
	}
	t.Shown = shown.Sub(removed)
	last, err := load.waitQuiet(ctx, node)
	if err != nil {
		return t, err
	}
	t.LastAnswer = max(0, last.Sub(removed))
	returned := time.Now()
	if err := b.Return(ctx, node); err != nil {
		return t, err
	}
	if err := load.waitNode(ctx, node, returned); err != nil {
		return t, fmt.Errorf("after it was put back: %w", err)
	}
	t.Back = load.first(node, returned).Sub(returned)
	stop()
	t.Requests, t.Failed, t.Reset = load.counts()
	return t, nil
}

// waitShown returns the moment from which on the balancer did not show the node.
func waitShown(ctx context.Context, b Balancer, svc *corev1.Service, node string) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("%s shows %s still", b.Traits().Name, node))
	defer cancel()
	tick := time.NewTicker(showEvery)
	defer tick.Stop()
	for {
		nodes, err := b.Shown(ctx, svc)
		if err != nil {
			return time.Time{}, err
		}
		if !slices.Contains(nodes, node) {
			return time.Now(), nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// stream is requests at a steady pace.
type stream struct {
	from *dataplane.Host
	to   netip.AddrPort

	mu      sync.Mutex
	answers map[string][]time.Time // when each node answered, in no order
	total   int
	failed  []error
	waiting sync.WaitGroup
}

// start begins to send and returns what ends it and waits for the last answer.
func (s *stream) start(ctx context.Context) (stop func()) {
	s.answers = map[string][]time.Time{}
	ctx, cancel := context.WithCancel(ctx)
	s.waiting.Go(func() {
		tick := time.NewTicker(requestEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s.waiting.Go(func() { s.once(context.WithoutCancel(ctx)) })
			}
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		s.waiting.Wait()
	})
}

func (s *stream) once(ctx context.Context) {
	answer, err := Request(ctx, s.from, s.to)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total++
	if err != nil {
		s.failed = append(s.failed, err)
		return
	}
	s.answers[answer.Node] = append(s.answers[answer.Node], now)
}

func (s *stream) counts() (total, failed, reset int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, err := range s.failed {
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
			reset++
		}
	}
	return s.total, len(s.failed), reset
}

// errors joins the first failures.
func (s *stream) errors() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.failed[:min(len(s.failed), 3)]...)
}

// first returns when a node answered first after a moment; zero when it did not.
func (s *stream) first(node string, after time.Time) (first time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.answers[node] {
		if at.After(after) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// last returns when a node answered last.
func (s *stream) last(node string) (last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.answers[node] {
		if at.After(last) {
			last = at
		}
	}
	return last
}

func (s *stream) waitNode(ctx context.Context, node string, after time.Time) error {
	return controlplane.Poll(ctx, startTimeout, "an answer from "+node, func(context.Context) (bool, string, error) {
		return !s.first(node, after).IsZero(), fmt.Sprintf("none; failures: %v", s.errors()), nil
	})
}

// waitQuiet waits until a node has not answered for a while, and returns when it did last.
func (s *stream) waitQuiet(ctx context.Context, node string) (last time.Time, err error) {
	err = controlplane.Poll(ctx, startTimeout, "no more answers from "+node, func(context.Context) (bool, string, error) {
		last = s.last(node)
		return time.Since(last) > quiet, fmt.Sprintf("the last %s ago", time.Since(last).Round(time.Millisecond)), nil
	})
	return last, err
}

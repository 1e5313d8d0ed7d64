// Package probe makes real connections to the node ports and health check ports of Local Services, and puts what it saw
// beside what the rules predict. It sends no application data to a node port: a connection that is accepted is enough.
package probe

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/safedrain/safedrain/pkg/guard"
)

// Options bound what a Prober does. Every field must be positive.
type Options struct {
	Timeout     time.Duration // of one probe; silence for that long is a blackhole
	Rate        float64       // probes begun a second, in all
	Concurrency int           // probes in flight
	Total       time.Duration // of all probes together: later none begins
}

// Target is one port to probe.
type Target struct {
	Service     guard.Key
	Address     netip.AddrPort
	HealthCheck bool // ask it over HTTP as a balancer does; else a TCP connection alone
}

// Seen is one observation. Where nothing was observed, Answer is empty and Detail says why.
type Seen struct {
	Answer guard.Answer
	Detail string // one line, for people; may be empty
}

// timeUp is the detail of a probe that was not begun.
const timeUp = "not probed: the time for all probes was up"

// Prober probes ports. It may be used from several goroutines; they share its bounds.
type Prober struct {
	options Options
	limiter *rate.Limiter
	until   time.Time
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	http    *http.Client
}

// New returns a Prober; its total time begins now.
func New(o Options) *Prober {
	return newProber(o, (&net.Dialer{}).DialContext)
}

func newProber(o Options, dial func(ctx context.Context, network, address string) (net.Conn, error)) *Prober {
	// net/http goes on connecting when nobody waits for it any more: connecting has the bound of a probe too.
	bounded := func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, o.Timeout)
		defer cancel()
		return dial(ctx, network, address)
	}
	p := &Prober{options: o, limiter: rate.NewLimiter(rate.Limit(o.Rate), 1), until: time.Now().Add(o.Total), dial: dial}
	p.http = &http.Client{
		// No proxy, no kept connection: the node itself is asked, anew each time.
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: bounded},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p
}

// Run probes every target once and returns what was seen, in the order of the targets. It fails only when ctx ends.
func (p *Prober) Run(ctx context.Context, targets []Target) ([]Seen, error) {
	seen := make([]Seen, len(targets))
	begin, cancel := context.WithDeadline(ctx, p.until)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(p.options.Concurrency)
	for i := range targets {
		group.Go(func() error {
			if err := p.limiter.Wait(begin); err != nil {
				seen[i] = Seen{Detail: timeUp}
				return nil //nolint:nilerr // the bound is no failure; the end of ctx is asked for below
			}
			seen[i] = p.one(ctx, &targets[i])
			return nil
		})
	}
	_ = group.Wait()
	return seen, ctx.Err()
}

// one probes a target within the timeout of one probe.
func (p *Prober) one(ctx context.Context, t *Target) Seen {
	ctx, cancel := context.WithTimeout(ctx, p.options.Timeout)
	defer cancel()
	if t.HealthCheck {
		return p.health(ctx, t)
	}
	conn, err := p.dial(ctx, "tcp", t.Address.String())
	if err != nil {
		return failed(err)
	}
	_ = conn.Close()
	return Seen{Answer: guard.AnswerOK}
}

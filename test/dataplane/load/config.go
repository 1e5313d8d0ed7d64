package load

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Bounds of one run. They keep a mistyped flag from filling the machine.
const (
	maxDuration = 2 * time.Hour
	maxRate     = 5000
	maxKept     = 2000
)

// Defaults of a Config.
const (
	// DefaultTimeout is shorter than the second after which a kernel sends a lost SYN again, so that a connection whose
	// first packet was dropped counts as failed.
	DefaultTimeout = 900 * time.Millisecond
	// DefaultInFlight is how many requests may wait for their answers at once.
	DefaultInFlight = 8192
	// DefaultLimit is how many requests a run schedules at most.
	DefaultLimit = 1_000_000
)

// Target is an address that gets requests.
type Target struct {
	// Name stands in every line about the target.
	Name string `json:"name"`
	// Address is where to connect to, of either family.
	Address netip.AddrPort `json:"address"`
	// Rate is how many new connections are opened each second.
	Rate float64 `json:"rate"`
	// Kept is how many connections are kept, each of which asks once a second.
	Kept int `json:"kept"`
	// Source is the address that the pod has to see for the source to count as preserved: the connection's own when it is
	// not valid.
	Source netip.Addr `json:"source,omitzero"`
}

// Config says what to send.
type Config struct {
	Targets []Target
	// Duration is how long requests are scheduled; those under way at its end are waited for.
	Duration time.Duration
	// Timeout is how long after its scheduled moment a request has to be answered; DefaultTimeout when zero. It is less
	// than a second wherever connections are kept.
	Timeout time.Duration
	// InFlight is how many requests may wait for their answers at once; DefaultInFlight when zero. What is scheduled
	// beyond it is not sent and ends as Other.
	InFlight int
	// Limit is how many requests are scheduled at most, after which the run ends; DefaultLimit when zero.
	Limit int
}

// complete returns the Config with its defaults, or why it cannot be run.
func (c Config) complete() (Config, error) {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.InFlight == 0 {
		c.InFlight = DefaultInFlight
	}
	if c.Limit == 0 {
		c.Limit = DefaultLimit
	}
	var errs []error
	if len(c.Targets) == 0 {
		errs = append(errs, errors.New("no target: name one"))
	}
	if c.Duration <= 0 || c.Duration > maxDuration {
		errs = append(errs, fmt.Errorf("duration %s: not above 0 and at most %s", c.Duration, maxDuration))
	}
	if c.Timeout < 0 || c.InFlight < 1 || c.Limit < 1 {
		errs = append(errs, errors.New("timeout, requests in flight and limit have to be above 0"))
	}
	names := map[string]bool{}
	for _, t := range c.Targets {
		if names[t.Name] {
			errs = append(errs, fmt.Errorf("target %q is there twice", t.Name))
		}
		names[t.Name] = true
		errs = append(errs, t.check(c.Timeout))
	}
	return c, errors.Join(errs...)
}

func (t Target) check(timeout time.Duration) error {
	switch {
	case t.Name == "":
		return fmt.Errorf("target %s has no name", t.Address)
	case !t.Address.IsValid():
		return fmt.Errorf("target %q has no address", t.Name)
	case t.Rate < 0 || t.Rate > maxRate || t.Kept < 0 || t.Kept > maxKept:
		return fmt.Errorf("target %q: rate from 0 to %d and kept connections from 0 to %d", t.Name, maxRate, maxKept)
	case t.Rate == 0 && t.Kept == 0:
		return fmt.Errorf("target %q gets nothing: give it a rate or kept connections", t.Name)
	case t.Kept > 0 && timeout >= keptInterval:
		return fmt.Errorf("target %q: a timeout below %s is needed where connections are kept", t.Name, keptInterval)
	}
	return nil
}

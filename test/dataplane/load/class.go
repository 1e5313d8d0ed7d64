package load

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// Class is how a request ended.
type Class string

// The classes. Each request ends in exactly one.
const (
	// OK is an answer with status 200 within the timeout.
	OK Class = "ok"
	// Timeout is no answer within the timeout: a dropped packet, or an answer that came too late.
	Timeout Class = "timeout"
	// Refused is a connection that was refused.
	Refused Class = "refused"
	// Reset is a connection that was reset while it was being opened.
	Reset Class = "reset"
	// Cut is a connection that was open, and was reset or ended before its answer was complete: what a move of an address
	// does to those that it meets on their way.
	Cut Class = "cut"
	// Other is any other end: another status, an unreachable network, a request that could not be sent.
	Other Class = "other"
)

// Classes are all classes, in the order in which tables show them.
var Classes = []Class{OK, Timeout, Refused, Reset, Cut, Other}

// classify tells the class of a request by its error, for one whose connection was never open.
func classify(err error) Class {
	var timeout net.Error
	switch {
	case err == nil:
		return OK
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Reset
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return Timeout
	}
	return Other
}

// Counts are requests by how they ended. In a complete record the classes add up to Scheduled.
type Counts struct {
	Scheduled int `json:"scheduled"`
	OK        int `json:"ok"`
	Timeout   int `json:"timeout,omitempty"`
	Refused   int `json:"refused,omitempty"`
	Reset     int `json:"reset,omitempty"`
	Cut       int `json:"cut,omitempty"`
	Other     int `json:"other,omitempty"`
}

// Failed is how many requests did not end well.
func (c Counts) Failed() int { return c.Timeout + c.Refused + c.Reset + c.Cut + c.Other }

// Ended is how many requests have ended.
func (c Counts) Ended() int { return c.OK + c.Failed() }

// Of is how many requests ended in a class.
func (c *Counts) Of(class Class) int { return *c.field(class) }

// Add adds what was counted elsewhere.
func (c *Counts) Add(other Counts) {
	c.Scheduled += other.Scheduled
	for _, class := range Classes {
		*c.field(class) += other.Of(class)
	}
}

func (c *Counts) field(class Class) *int {
	switch class {
	case OK:
		return &c.OK
	case Timeout:
		return &c.Timeout
	case Refused:
		return &c.Refused
	case Reset:
		return &c.Reset
	case Cut:
		return &c.Cut
	case Other:
	}
	return &c.Other
}

// Package safely keeps a fault in one piece of work from ending the process: with the gate every review would end.
package safely

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// restartPause is how long what runs all the time rests after a panic.
const restartPause = 5 * time.Second

// Panic is a panic as an error, with the stack of whoever panicked.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("panic: %v\n%s", p.Value, p.Stack) }

// Call calls a function and turns its panic into a [*Panic]. It sees none of the goroutines that the function starts.
func Call(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &Panic{r, debug.Stack()}
		}
	}()
	return f()
}

// Do calls a function and logs its panic.
func Do(name string, log *slog.Logger, f func()) {
	if err := Call(func() error { f(); return nil }); err != nil {
		log.Error("something panicked", "what", name, "error", err)
	}
}

// Run runs what runs all the time, and again after a panic; any other end of it is the end.
func Run(ctx context.Context, name string, log *slog.Logger, run func(context.Context) error) error {
	for {
		err := Call(func() error { return run(ctx) })
		var fault *Panic
		if !errors.As(err, &fault) {
			return err
		}
		log.Error("something panicked; it runs again", "what", name, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartPause):
		}
	}
}

package balancers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/spawn"
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 10 * time.Second
)

// daemon is a running program of a balancer, on a host of the lab.
type daemon struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended
	err  error         // how it ended; to be read after done
}

// start runs a program on a host with its output in dir/NAME.log.
func start(spawner *spawn.Spawner, host *dataplane.Host, dir string, argv ...string) (*daemon, error) {
	name := filepath.Base(argv[0])
	d := &daemon{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	d.cmd = exec.Command(argv[0], argv[1:]...)
	d.cmd.Dir = dir
	d.cmd.Stdout, d.cmd.Stderr = out, out
	if err := errors.Join(spawner.Start(d.cmd, host.Netns), out.Close()); err != nil {
		return nil, fmt.Errorf("%s on %s: %w", name, host.Name, err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	return d, nil
}

// ended returns an error with the end of the log when the program is no longer running.
func (d *daemon) ended() error {
	select {
	case <-d.done:
		return fmt.Errorf("%s ended: %w\n%s", d.name, errors.Join(d.err, errors.New("last lines of its log")), controlplane.Tail(d.log))
	default:
		return nil
	}
}

// while returns a context that ends, with a cause, when the program does.
func (d *daemon) while(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-d.done:
			cancel(d.ended())
		}
	}()
	return ctx, func() { cancel(nil) }
}

// stop ends the program at once and waits for its end.
func (d *daemon) stop(ctx context.Context) error {
	if d == nil || d.ended() != nil {
		return nil
	}
	if err := d.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", d.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s, pid %d, did not end: %w", d.name, d.cmd.Process.Pid, ctx.Err())
	}
}

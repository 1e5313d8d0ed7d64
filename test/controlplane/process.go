package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a running program of the control plane. Its output goes to a file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it ended
	err  error         // how it ended; to be read after done
}

// spawner starts processes from one operating system thread that lives as long as the spawner: where a child is bound to
// die with its parent, the kernel means the thread that started it.
type spawner struct {
	starts   chan func()
	detached bool // children outlive this process
}

func newSpawner(detached bool) *spawner {
	s := &spawner{starts: make(chan func()), detached: detached}
	go func() {
		runtime.LockOSThread()
		for start := range s.starts {
			start()
		}
	}()
	return s
}

// close ends the spawner; its children have to be ended before.
func (s *spawner) close() { close(s.starts) }

// gcPercent lets the programs collect less often than Go does by default: a fifth of what an API server of so few objects
// does is collecting, and several clusters share few processors.
const gcPercent = "300"

// start runs a program in dir, with its output appended to dir/name.log.
func (s *spawner) start(name, dir string, argv []string) (*process, error) {
	logPath := logFile(dir, name)
	out, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p := &process{name: name, log: logPath, done: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...) //nolint:noctx // it lives as long as the cluster, which ends it by its pid
	p.cmd.Dir = dir
	p.cmd.Env = append([]string{"GOGC=" + gcPercent}, os.Environ()...) // the later one wins
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = childAttributes(s.detached)
	started := make(chan error)
	s.starts <- func() { started <- p.cmd.Start() }
	err = errors.Join(<-started, out.Close())
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// ended reports whether the process is no longer running, and how it ended.
func (p *process) ended() (bool, error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

// kill ends the process at once and waits for its end.
func (p *process) kill(ctx context.Context) error {
	if done, _ := p.ended(); done {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s, pid %d: %w", p.name, p.cmd.Process.Pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s, pid %d, did not end: %w", p.name, p.cmd.Process.Pid, ctx.Err())
	}
}

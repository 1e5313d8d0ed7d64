package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/dataplane"
)

// Delays before an ended container is started again, as a kubelet's: none the first time, then these.
const (
	firstBackOff = 10 * time.Second
	maxBackOff   = 5 * time.Minute
	forgetAfter  = 10 * time.Minute // a container that ran so long starts at once again
	afterPreStop = 2 * time.Second  // the least time between SIGTERM and SIGKILL
)

// container is one container of a pod: a process that is started again when it ends.
type container struct {
	worker *worker
	spec   *corev1.Container
	done   chan struct{} // closed when it ended for good
	stop   chan struct{} // closed when it is not to be started again

	// What follows is guarded by the worker's mu.
	begun    bool
	cmd      *exec.Cmd // nil while it does not run
	id       string
	started  metav1.Time
	serves   bool // its server listens; true for a command as soon as it runs
	probed   bool // its readiness probe succeeds, or it has none
	restarts int32
	ended    *corev1.ContainerStateTerminated // how it ended last
	waiting  string                           // why it does not run
}

func newContainer(w *worker, spec *corev1.Container) *container {
	return &container{
		worker: w, spec: spec, done: make(chan struct{}), stop: make(chan struct{}),
		probed: spec.ReadinessProbe == nil, waiting: "ContainerCreating",
	}
}

// begin runs the container until it has ended for good.
func (c *container) begin(ctx context.Context) {
	c.worker.mu.Lock()
	c.begun = true
	c.worker.mu.Unlock()
	go func() {
		defer close(c.done)
		c.keepRunning(ctx)
	}()
	if c.spec.ReadinessProbe != nil {
		go c.probe(ctx)
	}
}

// wait waits for the end of a container that was begun.
func (c *container) wait() {
	c.worker.mu.Lock()
	begun := c.begun
	c.worker.mu.Unlock()
	if begun {
		<-c.done
	}
}

// keepRunning starts the process again and again, as the pod's restart policy says.
func (c *container) keepRunning(ctx context.Context) {
	var delay time.Duration
	for {
		started := time.Now()
		code := c.once()
		if time.Since(started) > forgetAfter {
			delay = 0
		}
		if !c.again(code, delay) {
			return
		}
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			return
		case <-c.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		delay = min(max(2*delay, firstBackOff), maxBackOff)
	}
}

// again decides whether the process is started once more, and notes it.
func (c *container) again(code int32, delay time.Duration) bool {
	w := c.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	policy := w.first.Spec.RestartPolicy
	if w.stopping || policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && code == 0 {
		return false
	}
	c.restarts++
	if delay > 0 {
		c.waiting = "CrashLoopBackOff"
	}
	signal(w.publish)
	return true
}

// once runs the process once and returns its exit code.
func (c *container) once() int32 {
	listening, err := c.startProcess()
	if err != nil {
		c.worker.agent.log.Error("container not started", "pod", c.worker.first.Name, "container", c.spec.Name, "error", err)
		c.note(128, err.Error())
		return 128
	}
	go func() {
		if listening == nil || byteFrom(listening) {
			c.worker.mu.Lock()
			c.serves = c.cmd != nil
			c.worker.mu.Unlock()
			signal(c.worker.publish)
		}
	}()
	err = c.cmd.Wait()
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) // what it left behind in its process group
	code, message := int32(0), ""
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		code = int32(exit.ExitCode())
	case err != nil:
		code, message = 137, err.Error()
	}
	c.note(code, message)
	return code
}

// byteFrom reports whether the other end of a pipe wrote something before it was closed.
func byteFrom(pipe io.ReadCloser) bool {
	defer func() { _ = pipe.Close() }()
	n, _ := pipe.Read(make([]byte, 1))
	return n == 1
}

// note writes down how the process ended.
func (c *container) note(code int32, message string) {
	w := c.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	c.ended = &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, Message: message, StartedAt: c.started, FinishedAt: metav1.Now(), ContainerID: c.id,
	}
	c.cmd, c.serves, c.probed = nil, false, c.spec.ReadinessProbe == nil
	signal(w.publish)
}

// startProcess starts the process in the pod's namespace. The pipe it returns gets a byte when the lab's server listens;
// it is nil for a command.
func (c *container) startProcess() (listening io.ReadCloser, err error) {
	w := c.worker
	argv, env, err := c.commandLine()
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(filepath.Join(w.dir, c.spec.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, w.dir, out, out
	if c.spec.WorkingDir != "" {
		cmd.Dir = c.spec.WorkingDir
	}
	if len(c.spec.Command) == 0 {
		reader, writer, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer func() { _ = writer.Close() }()
		cmd.ExtraFiles = []*os.File{writer}
		listening = reader
	}
	if err := w.agent.spawner.Start(cmd, w.netns); err != nil {
		return nil, err
	}
	id, err := dataplane.ContainerID(cmd.Process.Pid)
	if err != nil {
		id = fmt.Sprintf("%s%d", dataplane.ContainerIDPrefix, cmd.Process.Pid) // it has ended already
	}
	w.mu.Lock()
	c.cmd, c.id, c.started, c.waiting = cmd, id, metav1.Now(), ""
	w.mu.Unlock()
	signal(w.publish)
	return listening, nil
}

// end ends the container as a kubelet does: its preStop hook, SIGTERM, and SIGKILL when the grace period is over.
func (c *container) end(ctx context.Context) {
	close(c.stop)
	if c.running() != nil {
		c.preStop(ctx)
	}
	if p := c.running(); p != nil {
		_ = p.Signal(syscall.SIGTERM)
	}
	c.worker.mu.Lock()
	begun := c.begun
	c.worker.mu.Unlock()
	if !begun || c.worker.limit.wait(c.done, afterPreStop) {
		return
	}
	if p := c.running(); p != nil {
		_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	}
}

// running returns the process while there is one.
func (c *container) running() *os.Process {
	c.worker.mu.Lock()
	defer c.worker.mu.Unlock()
	if c.cmd == nil {
		return nil
	}
	return c.cmd.Process
}

// preStop runs the container's hook until it is done or the grace period is over.
func (c *container) preStop(ctx context.Context) {
	if c.spec.Lifecycle == nil || c.spec.Lifecycle.PreStop == nil {
		return
	}
	hook := c.spec.Lifecycle.PreStop
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	switch {
	case hook.Sleep != nil:
		timer := time.AfterFunc(time.Duration(hook.Sleep.Seconds)*time.Second, func() { close(done) })
		defer timer.Stop()
	case hook.Exec != nil:
		go func() { defer close(done); c.runHook(ctx, hook.Exec.Command) }()
	case hook.HTTPGet != nil:
		go func() { defer close(done); _ = c.get(ctx, hook.HTTPGet) }()
	default:
		return
	}
	ended := make(chan struct{})
	go func() { // a container that ends during its hook needs no more waiting
		defer close(ended)
		select {
		case <-done:
		case <-c.done:
		}
	}()
	c.worker.limit.wait(ended, 0)
}

// runHook runs an exec hook in the pod's namespace; what comes of it does not matter, as with a kubelet.
func (c *container) runHook(ctx context.Context, argv []string) {
	_, env, err := c.commandLine()
	if err != nil || len(argv) == 0 {
		return
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, c.worker.dir
	if err := c.worker.agent.spawner.Start(cmd, c.worker.netns); err == nil {
		err = cmd.Wait()
		c.worker.agent.log.Info("preStop hook ended", "pod", c.worker.first.Name, "error", err)
	}
}

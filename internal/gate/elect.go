package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/safedrain/safedrain/internal/gate/leftovers"
	"github.com/safedrain/safedrain/internal/gate/metrics"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// Times of the lease, those of Kubernetes' own components.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	restartPause  = 5 * time.Second // before a controller that failed runs again
	readyPoll     = 100 * time.Millisecond
)

// Controller is what one replica does for all.
type Controller interface {
	// Run works until ctx ends. It may be called again after it returned.
	Run(ctx context.Context) error
}

// election runs the controllers while this replica holds the lease. A replica that loses it stops its controllers and goes
// on answering reviews: serving needs no election, and an API server that is slow for ten seconds is no reason to end.
type election struct {
	lease       guard.Key
	identity    string
	enabled     bool
	client      kubernetes.Interface
	controllers map[string]Controller
	ready       func() bool     // whether the cluster was read: nobody stands for election before
	resign      <-chan struct{} // closed when the controllers are to end, and the process does not yet
	metrics     *metrics.Metrics
	log         *slog.Logger
}

// Start stands for election until ctx ends, in every replica.
func (e *election) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-e.resign:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := wait.PollUntilContextCancel(ctx, readyPoll, true, func(context.Context) (bool, error) { return e.ready(), nil }); err != nil {
		return nil
	}
	if !e.enabled {
		e.lead(ctx)
		return nil
	}
	for ctx.Err() == nil {
		if err := e.term(ctx); err != nil {
			return err
		}
	}
	return nil
}

// term waits for the lease, leads, and returns when the lease is lost or ctx has ended, in any case after the controllers.
// The lease is given up only then, so that two replicas never work side by side.
func (e *election) term(ctx context.Context) error {
	held, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	var leading atomic.Bool
	done := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.lease.Namespace, Name: e.lease.Name},
			Client:     e.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
			Labels:     leftovers.Labels(),
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Name:            e.lease.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lease context.Context) {
				leading.Store(true)
				work, cancel := context.WithCancel(ctx)
				defer context.AfterFunc(lease, cancel)()
				defer cancel()
				e.lead(work)
				close(done)
				release()
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(identity string) { e.log.Info("elected", "identity", identity, "self", identity == e.identity) },
		},
	})
	if err != nil {
		return fmt.Errorf("stand for election: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		if !leading.Load() {
			release()
		}
	})()
	elector.Run(held)
	if leading.Load() || held.Err() == nil {
		<-done
	}
	return nil
}

// lead runs every controller until ctx ends and returns when all have returned.
func (e *election) lead(ctx context.Context) {
	e.metrics.Elected(true)
	defer e.metrics.Elected(false)
	var running sync.WaitGroup
	for name, c := range e.controllers {
		running.Go(func() { e.keepRunning(ctx, name, c) })
	}
	<-ctx.Done()
	running.Wait()
}

// keepRunning runs a controller again when it fails: the others and the reviews go on meanwhile.
func (e *election) keepRunning(ctx context.Context, name string, c Controller) {
	for {
		err := safely.Call(func() error {
			if err := c.Run(ctx); err != nil {
				return err
			}
			return errors.New("ended without an error")
		})
		if ctx.Err() != nil {
			return
		}
		e.log.Error("a controller ended; it runs again", "controller", name, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(restartPause):
		}
	}
}

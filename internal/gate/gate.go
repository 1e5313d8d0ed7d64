// Package gate is `safedrain gate`: the admission webhooks, which every replica answers, and the controllers, which the
// elected one runs. It composes them on a manager of controller-runtime and decides nothing itself.
package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/gate/admission"
	"github.com/safedrain/safedrain/internal/gate/certs"
	"github.com/safedrain/safedrain/internal/gate/feed"
	"github.com/safedrain/safedrain/internal/gate/metrics"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// name is how the gate calls itself: in events, as a holder of claims, as a manager of fields.
const name = "safedrain-gate"

// stopTimeout is how long the controllers and the answers under way may take to end.
const stopTimeout = 20 * time.Second

// Deps are what the gate works with.
type Deps struct {
	Config  *rest.Config
	Clients *cluster.Clients
	Hooks   drain.Hooks
	// Check, if set, asks the hooks behind the Services on some nodes whether they can work.
	Check func(ctx context.Context, snap *cluster.Snapshot, nodes []string)
	Log   *slog.Logger
}

// Gate is one replica.
type Gate struct {
	options Options
	deps    Deps
	manager manager.Manager
	server  *server
	certs   certs.Source
	store   *cluster.Store
	feed    *feed.Feed
	metrics *metrics.Metrics
	leaving atomic.Bool   // it was told to end
	resign  chan struct{} // closed then
}

// New builds a replica and takes its ports.
func New(ctx context.Context, o Options, d Deps) (*Gate, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	log := logr.FromSlogHandler(d.Log.Handler())
	ctrl.SetLogger(log)
	klog.SetSlogLogger(d.Log)
	g := &Gate{options: o, deps: d, resign: make(chan struct{}), store: cluster.NewStore(d.Hooks)}
	g.feed = feed.New(d.Clients, g.store, d.Hooks.Descriptions(), d.Log)
	var err error
	if g.metrics, err = metrics.New(ctrlmetrics.Registry); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if g.certs, err = g.source(log); err != nil {
		return nil, err
	}
	if g.server, err = listen(ctx, o.WebhookPort, g.certs, o.ClientCAFile, &g.leaving, d.Log); err != nil {
		return nil, err
	}
	stop := stopTimeout
	g.manager, err = ctrl.NewManager(d.Config, ctrl.Options{
		Logger:                  log,
		Metrics:                 metricsserver.Options{BindAddress: o.MetricsAddress},
		HealthProbeBindAddress:  o.HealthAddress,
		GracefulShutdownTimeout: &stop,
		Cache:                   cache.Options{ReaderFailOnMissingInformer: true}, // nothing is cached here but by the feed
	})
	if err != nil {
		return nil, fmt.Errorf("build the manager: %w", err)
	}
	return g, g.compose()
}

// source is where the certificate comes from.
func (g *Gate) source(log logr.Logger) (certs.Source, error) {
	o := &g.options
	if o.CertDir != "" {
		return certs.NewFiles(o.CertDir, log)
	}
	times := o.Certificates
	return &certs.Managed{
		Client:        g.deps.Clients.Kubernetes,
		Secret:        guard.Key{Namespace: o.Namespace, Name: o.CertSecret},
		Configuration: o.Configuration,
		Policy: certs.Policy{
			Name: o.Service + "-ca." + o.Namespace, Hosts: hosts(o),
			CALife: times.Authority, Life: times.Serving, Settle: times.Settle, Overlap: times.Overlap,
		},
		Every: times.Every, Clock: clock.RealClock{}, Log: log.WithName("certificates"),
	}, nil
}

// hosts are the names by which API servers call the webhooks.
func hosts(o *Options) []string {
	service := o.Service + "." + o.Namespace + ".svc"
	return append([]string{service, service + ".cluster.local"}, o.CertHosts...)
}

// compose adds the parts to the manager.
func (g *Gate) compose() error {
	o, d := &g.options, &g.deps
	recorder := g.manager.GetEventRecorder(name)
	controllers := g.controllers(recorder)
	tells := newKept(d.Clients.Kubernetes, g.manager.GetRESTMapper(), recorder, d.Log)
	scaler := &admission.Scaler{
		Store: g.store, Workloads: admission.LiveWorkloads{Client: d.Clients.Kubernetes}, Mode: o.Mode, Policy: o.Scale,
		Synced: g.feed.Synced, Clock: clock.RealClock{}, Kept: tells.tell,
	}
	notes := admission.NewNodeNotes(d.Clients.Kubernetes, g.store, clock.RealClock{}, d.Log)
	evictions := &admission.Evictions{
		Store: g.store, Live: admission.LiveReads{Client: d.Clients.Kubernetes}, Mode: o.Mode, Synced: g.feed.Synced, Refusals: notes,
	}
	serving := admission.Serving{Deadline: o.Deadline, Metrics: g.metrics, Log: d.Log}
	g.server.Register("/evict", evictions.Handler(serving))
	for path, h := range scaler.Handlers(serving) {
		g.server.Register(path, h)
	}
	for check, f := range map[string]healthz.Checker{"cluster": g.read, "certificate": g.certified, "webhooks": g.server.StartedChecker(), "leaving": g.staying} {
		if err := g.manager.AddReadyzCheck(check, f); err != nil {
			return err
		}
	}
	if err := g.manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	elected := &election{
		lease: guard.Key{Namespace: o.Namespace, Name: o.Lease}, identity: o.Identity, enabled: o.LeaderElect,
		client: d.Clients.Kubernetes, controllers: controllers, metrics: g.metrics, log: d.Log, resign: g.resign, ready: g.feed.Synced,
	}
	for _, r := range []manager.Runnable{
		g.server, g.feed, g.steady("events", tells.Start), g.steady("notes", notes.Run), g.steady("certificates", g.certs.Run), g.steady("gauges", g.gauges),
		g.steady("blackholes", (&blackholes{store: g.store, synced: g.feed.Synced, metrics: g.metrics}).Start),
		g.steady("election", elected.Start),
	} {
		if err := g.manager.Add(r); err != nil {
			return err
		}
	}
	return nil
}

// steady is what every replica runs all the time, and again after a panic.
func (g *Gate) steady(name string, run func(context.Context) error) everyReplica {
	return func(ctx context.Context) error { return safely.Run(ctx, name, g.deps.Log, run) }
}

// everyReplica is a runnable that needs no election.
type everyReplica func(context.Context) error

// Start runs it until ctx ends.
func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection is false.
func (everyReplica) NeedLeaderElection() bool { return false }

// Reasons for not being ready.
var (
	errNotRead   = errors.New("the cluster has not been read yet")
	errNoCert    = errors.New("there is no webhook certificate yet")
	errNotServed = errors.New("told to end")
)

func (g *Gate) read(*http.Request) error {
	if !g.feed.Synced() {
		return errNotRead
	}
	return nil
}

func (g *Gate) certified(*http.Request) error {
	ends, ok := g.certs.Expires()
	switch {
	case !ok:
		return errNoCert
	case !time.Now().Before(ends):
		return fmt.Errorf("the webhook certificate ended at %s", ends.UTC().Format(time.RFC3339))
	}
	return nil
}

func (g *Gate) staying(*http.Request) error {
	if g.leaving.Load() {
		return errNotServed
	}
	return nil
}

// gauges shows when the certificate ends, and whether the cluster was read.
func (g *Gate) gauges(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if ends, ok := g.certs.Expires(); ok {
			g.metrics.CertificateExpires(ends)
		}
		g.metrics.Synced(g.feed.Synced())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Run serves until stop is closed and then ends without failing anybody: the controllers end and the lease is free at once,
// readiness fails, and reviews are answered for as long as API servers may still send some. When ctx ends everything does.
func (g *Gate) Run(ctx context.Context, stop <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- g.manager.Start(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-stop:
	}
	g.deps.Log.Info("told to end; answering on for a while", "delay", g.options.ShutdownDelay.String())
	g.leaving.Store(true)
	close(g.resign)
	select {
	case err := <-ended:
		return err
	case <-time.After(g.options.ShutdownDelay):
	}
	cancel()
	return <-ended
}

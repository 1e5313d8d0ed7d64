package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/gate"
	"github.com/safedrain/safedrain/internal/gate/admission"
)

const gateLong = `Run the gate in the cluster: admission webhooks that make everybody's evictions wait until the node has left its load
balancers, and that stop scale-downs which would leave a node in rotation without an endpoint; and the controllers that
withdraw the nodes and mark the pods to keep.

Every replica answers reviews; one of them is elected to run the controllers. Installed by the manifests in deploy/.`

// gateGC is the gate's GOGC where nobody sets one: nearly all of its memory is the cluster, which stays, and little is allocated
// beside it, so that collecting twice as often costs little and saves a quarter.
const gateGC = 50

// gateRun is the command gate.
type gateRun struct {
	app     *app
	options gate.Options
	mode    string
	scale   string
	hooks   HookFlags
	verbose bool
}

func (a *app) gateCommand() *cobra.Command {
	r := &gateRun{app: a, options: gate.DefaultOptions()}
	cmd := &cobra.Command{
		Use:     "gate --mode=enforce|warn|off --scale=clamp|deny|warn|off",
		Short:   "Run the in-cluster gate for evictions and scale-downs",
		Long:    gateLong,
		Example: "  " + a.name + " gate --mode=warn --scale=clamp\n  " + a.name + " gate --mode=enforce --scale=deny --cert-dir=/certs",
		Args:    atMost(0),
		RunE:    r.run,
	}
	cmd.DisableFlagsInUseLine = true
	r.bind(cmd.Flags())
	return cmd
}

func (r *gateRun) bind(fs *pflag.FlagSet) {
	o := &r.options
	fs.StringVar(&r.mode, "mode", "", "What the gate does in this cluster: enforce, warn or off. Required. safedrain.dev/gate on a namespace or a Service says otherwise for it.")
	fs.StringVar(&r.scale, "scale", "", "What enforcing means for scale-downs: clamp (stop at the floor), deny, warn or off. Required.")
	fs.IntVar(&o.WebhookPort, "webhook-port", o.WebhookPort, "Port of the webhooks.")
	fs.StringVar(&o.HealthAddress, "health-address", o.HealthAddress, "Address of /readyz and /healthz.")
	fs.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, "Address of /metrics; 0 for none.")
	fs.StringVar(&o.Service, "service", o.Service, "Name of the Service by which the API servers reach the webhooks.")
	fs.StringVar(&o.CertDir, "cert-dir", o.CertDir, "Directory of tls.crt and tls.key, kept by cert-manager or the like. Without it the gate keeps its own.")
	fs.StringVar(&o.CertSecret, "cert-secret", o.CertSecret, "Secret of the gate's own certificates.")
	fs.StringArrayVar(&o.CertHosts, "cert-host", nil, "A further name or address in the gate's own certificate, for webhooks that are reached by URL. Repeatable.")
	fs.DurationVar(&o.Certificates.Serving, "cert-life", o.Certificates.Serving, "Life of the gate's own certificate, which is replaced after two thirds of it.")
	fs.DurationVar(&o.Certificates.Authority, "ca-life", o.Certificates.Authority, "Life of the authority that signs it, likewise.")
	fs.DurationVar(&o.Certificates.Settle, "cert-settle", o.Certificates.Settle, "How long a new authority is trusted before it signs.")
	fs.DurationVar(&o.Certificates.Every, "cert-every", o.Certificates.Every, "How often the certificates are looked at.")
	for _, seldom := range []string{"cert-settle", "cert-every"} {
		fs.Lookup(seldom).Hidden = true
	}
	fs.StringVar(&o.Configuration, "webhook-configuration", o.Configuration, "Name of the webhook configurations that are to trust the gate's own certificate.")
	fs.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile, "Answer only callers with a certificate of these authorities: the API servers have to present one.")
	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "Elect the replica that runs the controllers. Only with a single replica this may be off.")
	fs.StringVar(&o.Lease, "lease", o.Lease, "Lease by which it is elected.")
	fs.DurationVar(&o.Deadline, "deadline", o.Deadline, "How long one review may take. What cannot be judged in time is answered as docs/gate.md says.")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay", o.ShutdownDelay, "How long to go on answering, no longer ready, once told to end.")
	fs.BoolVar(&r.verbose, "debug", false, "Log every review, also those that pass.")
	r.hooks.bind(fs)
}

func (r *gateRun) run(cmd *cobra.Command, _ []string) error {
	if err := r.complete(); err != nil {
		return err
	}
	chosen, err := r.hooks.choose(nil)
	if err != nil {
		return err
	}
	config, clients, err := r.connect()
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gateGC)
	}
	hooks := newHooks(clients, chosen)
	g, err := gate.New(cmd.Context(), r.options, gate.Deps{
		Config: config, Clients: clients, Hooks: hooks, Check: hooks.Check, Log: r.log(),
	})
	if err != nil {
		return err
	}
	err = g.Run(cmd.Context(), r.app.soft)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// complete fills in what the surroundings say, and reports every mistake in what was typed at once.
func (r *gateRun) complete() error {
	r.options.Mode, r.options.Scale = admission.Mode(r.mode), admission.ScalePolicy(r.scale)
	if r.options.Namespace == "" {
		namespace, _, err := r.app.kube.flags.ToRawKubeConfigLoader().Namespace()
		if err != nil {
			return usagef("--namespace: %w", err)
		}
		r.options.Namespace = namespace
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find out the name of this machine: %w", err)
	}
	r.options.Identity = cmp.Or(os.Getenv("POD_NAME"), host)
	if err := r.options.Check(); err != nil {
		return usagef("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// connect returns the clients, whose warnings nobody reads.
func (r *gateRun) connect() (*rest.Config, *cluster.Clients, error) {
	config, err := r.app.kube.config()
	if err != nil {
		return nil, nil, err
	}
	config.WarningHandler = rest.NoWarnings{}
	config.UserAgent = "safedrain-gate/" + ownVersion().Version
	clients, err := cluster.NewClients(config)
	if err != nil {
		return nil, nil, &connectError{kube: r.app.kube, err: err}
	}
	return config, clients, nil
}

// log writes JSON, a line an event.
func (r *gateRun) log() *slog.Logger {
	level := slog.LevelInfo
	if r.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewJSONHandler(r.app.streams.ErrOut, &slog.HandlerOptions{Level: level}))
}

package cli

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/probe"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// probeFlags are the flags of audit --probe.
type probeFlags struct {
	on       bool
	external bool
	options  probe.Options
}

// secondLook is the time before a port that was seen otherwise than the rules say is probed again: kube-proxy writes its
// rules at most a second after it hears of a change, by default.
const secondLook = 2 * time.Second

func (f *probeFlags) bind(fs *pflag.FlagSet) {
	fs.BoolVar(&f.on, "probe", false, "Connect from here to each node port and health check port, and show what was seen beside what the rules say. Run it outside the nodes.")
	fs.DurationVar(&f.options.Timeout, "probe-timeout", 3*time.Second, "How long a node may be silent before that is a blackhole.")
	fs.Float64Var(&f.options.Rate, "probe-rate", 50, "Connections begun a second, in all.")
	fs.IntVar(&f.options.Concurrency, "probe-concurrency", 32, "Connections at the same time.")
	fs.DurationVar(&f.options.Total, "probe-total", 5*time.Minute, "Time for all probes: none begins later.")
	fs.BoolVar(&f.external, "probe-external", false, "Connect to the nodes' external addresses.")
}

func (f *probeFlags) check(fs *pflag.FlagSet, source *SourceFlags) error {
	if !f.on {
		var stray string
		fs.Visit(func(flag *pflag.Flag) {
			if strings.HasPrefix(flag.Name, "probe-") {
				stray = flag.Name
			}
		})
		if stray != "" {
			return usagef("--%s goes with --probe", stray)
		}
		return nil
	}
	o := &f.options
	switch {
	case source.offline():
		return usagef("--probe connects to a cluster's nodes: not with --file or --example")
	case o.Timeout <= 0:
		return usagef("--probe-timeout=%s: want a time above 0", o.Timeout)
	case !(o.Rate > 0 && o.Rate <= 10_000): // not a number is no rate either
		return usagef("--probe-rate=%v: want 10000 connections a second or fewer, and more than 0", o.Rate)
	case o.Concurrency <= 0 || o.Concurrency > 10_000:
		return usagef("--probe-concurrency=%d: want 1 to 10000", o.Concurrency)
	case o.Total <= 0:
		return usagef("--probe-total=%s: want a time above 0", o.Total)
	}
	return nil
}

// probe probes the rows of a report and puts what was seen into it.
func (r *auditRun) probe(ctx context.Context, w *world, ix guard.Index, report *guard.CoverageReport) error {
	addresses := r.probes.addresses(w.snap)
	vantage, err := probe.Look(ctx, addresses.all())
	if err != nil {
		return err
	}
	place, err := probe.Locate(ctx, vantage, r.surroundings(w, ix))
	if err != nil {
		return err
	}
	survey := probe.Survey{
		Prober: probe.New(r.probes.options), Place: place, Address: addresses.of, Wait: secondLook,
		Reload: func(ctx context.Context) (guard.Index, error) {
			chosen, err := r.hooks.choose(nil)
			if err != nil {
				return nil, err
			}
			now, err := r.app.load(ctx, &r.source, chosen, cluster.Scope{})
			if err != nil {
				return nil, err
			}
			return now.snap.Index(now.hooks, nil), nil
		},
	}
	probes := survey.Plan(ix, report)
	r.app.announce(probes, &r.probes.options, place)
	if err := survey.Run(ctx, probes); err != nil {
		return err
	}
	from := make([]string, 0, len(vantage.Sources))
	for _, a := range vantage.Sources {
		from = append(from, a.String())
	}
	guard.JudgeProbes(report, probes, from, place.String())
	if r.output.document() {
		for _, why := range report.Probe.NoProof {
			r.app.warn("the probe proves nothing: " + why)
		}
	}
	return nil
}

// announce says on stderr what is about to happen: it may take minutes.
func (a *app) announce(probes []guard.Probe, o *probe.Options, place probe.Place) {
	n := 0
	nodes := map[string]bool{}
	for i := range probes {
		if probes[i].NotCounted == "" {
			n++
			nodes[probes[i].Node] = true
		}
	}
	fmt.Fprintf(a.streams.ErrOut, "probing %s of %s from here, %s: at most %v a second, at most %s\n",
		count(n, "port"), count(len(nodes), "node"), place, o.Rate, shortDuration(o.Total.String()))
}

// nodeAddresses are the addresses at which nodes are probed: one a node and family.
type nodeAddresses map[string]map[corev1.IPFamily]netip.Addr

// addresses takes the first internal address of each family, else the first external one; only external ones where that
// is asked for.
func (f *probeFlags) addresses(snap *cluster.Snapshot) nodeAddresses {
	out := nodeAddresses{}
	for n := range snap.RawNodes() {
		addrs := lbhooks.NodeAddresses(n)
		if f.external {
			addrs = externalAddresses(n)
		}
		out[n.Name] = map[corev1.IPFamily]netip.Addr{}
		for _, a := range addrs {
			family := corev1.IPv6Protocol
			if a.Is4() {
				family = corev1.IPv4Protocol
			}
			if _, taken := out[n.Name][family]; !taken {
				out[n.Name][family] = a
			}
		}
	}
	return out
}

func externalAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeExternalIP {
			out = append(out, addr.Unmap())
		}
	}
	return out
}

func (a nodeAddresses) of(node string, family corev1.IPFamily) (netip.Addr, bool) {
	addr, ok := a[node][family]
	return addr, ok
}

func (a nodeAddresses) all() []netip.Addr {
	var out []netip.Addr
	for _, of := range a {
		for _, addr := range of {
			out = append(out, addr)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// surroundings is what tells whether this program runs in the cluster that it probes.
func (r *auditRun) surroundings(w *world, ix guard.Index) probe.Surroundings {
	s := probe.Surroundings{
		ServiceHost: os.Getenv("KUBERNETES_SERVICE_HOST"),
		Nodes:       slices.Collect(w.snap.RawNodes()),
		PodNode:     r.app.podNode,
		EndpointNode: func(addr netip.Addr) string {
			for svc := range ix.Services() {
				for i := range svc.Ports {
					for k := range svc.Ports[i].Endpoints {
						if e := &svc.Ports[i].Endpoints[k]; e.Addr == addr {
							return e.Node
						}
					}
				}
			}
			return ""
		},
	}
	if api, ok := w.snap.RawService(guard.Key{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}); ok {
		s.APIHost = api.Spec.ClusterIP
	}
	return s
}

// podNode asks the API for the node of the pod that has an address.
func (a *app) podNode(ctx context.Context, addr netip.Addr) (string, error) {
	c, err := a.kube.clients()
	if err != nil {
		return "", err
	}
	pods, err := c.Kubernetes.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("status.podIP", addr.String()).String(),
	})
	if err != nil {
		return "", err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !ended && p.Status.PodIP == addr.String() {
			return p.Spec.NodeName, nil
		}
	}
	return "", nil
}

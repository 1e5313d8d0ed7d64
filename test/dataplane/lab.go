package dataplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane/spawn"
)

// Modes of kube-proxy.
const (
	NFTables = "nftables"
	IPTables = "iptables"
)

// Options say which lab is wanted. The zero value is one of three nodes in nftables mode.
type Options struct {
	// Name tells labs apart, at most 12 letters and digits; random when empty.
	Name string
	// Nodes is how many nodes there are, named node-1 and so on; 3 when zero, at most 60.
	Nodes int
	// ProxyMode is kube-proxy's: NFTables (the default) or IPTables.
	ProxyMode string
	// IPv6 gives nodes, hosts, pods and Services IPv6 addresses too.
	IPv6 bool
	// Dir is the working directory, made if need be and removed by Down; one under the system's temporary directory when empty.
	Dir string
	// Lasting lets the lab outlive this process; Sweep with its name ends it.
	Lasting bool
	// ControlPlane says what is wanted of the control plane; kwok, addresses and directories are the lab's own matter.
	ControlPlane controlplane.Options
}

// Lab is a running cluster with its data plane.
type Lab struct {
	Name       string
	Dir        string // logs, kubeconfig and the files of the programs; everybody may read it
	Kubeconfig string // a kubeconfig file that may do everything; its server is reachable from every namespace of the lab
	ProxyMode  string
	IPv6       bool
	Client     kubernetes.Interface
	Config     *rest.Config
	Nodes      []*Node // node-1, node-2 and so on, in this order
	Cluster    *controlplane.Cluster

	plan    plan
	record  *record
	program string // the multi-call program that is kube-proxy, agent and pod
	spawner *spawn.Spawner
	hosts   []*Host

	stopOnce sync.Once
}

// Up brings a lab up and returns when its nodes are Ready and their kube-proxies answer: some seconds once the programs
// are built. Down ends it. What dead processes left behind of other labs is swept away first.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := Requirements(); err != nil {
		return nil, err
	}
	_ = Sweep(ctx, "") // what cannot be swept away keeps its number and its addresses
	program, err := controlplane.LocalProgram(ctx, "dataplane")
	if err != nil {
		return nil, err
	}
	l := &Lab{Name: o.Name, ProxyMode: o.ProxyMode, IPv6: o.IPv6, program: program, spawner: spawn.New(o.Lasting)}
	if err := l.register(ctx, o); err != nil {
		l.spawner.Close()
		return nil, err
	}
	if err := l.start(ctx, o); err != nil {
		err = fmt.Errorf("start the data plane lab %q: %w\n%s", l.Name, err, l.Logs())
		return nil, errors.Join(err, l.Down(context.WithoutCancel(ctx)))
	}
	return l, nil
}

// complete fills in the defaults and refuses what cannot be.
func (o *Options) complete() error {
	if o.Name == "" {
		o.Name = fmt.Sprintf("%06x", rand.IntN(1<<24))
	}
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.ProxyMode == "" {
		o.ProxyMode = NFTables
	}
	switch {
	case !regexp.MustCompile(`^[a-z0-9]{1,12}$`).MatchString(o.Name):
		return fmt.Errorf("lab name %q: 1 to 12 lower case letters and digits are allowed", o.Name)
	case o.Nodes < 0 || o.Nodes > maxNodes:
		return fmt.Errorf("%d nodes: 1 to %d are possible", o.Nodes, maxNodes)
	case o.ProxyMode != NFTables && o.ProxyMode != IPTables:
		return fmt.Errorf("proxy mode %q: %q and %q are possible", o.ProxyMode, NFTables, IPTables)
	}
	return nil
}

// register makes the working directory and writes the lab down before anything of it exists.
func (l *Lab) register(ctx context.Context, o Options) (err error) {
	l.Dir = o.Dir
	if l.Dir == "" {
		if l.Dir, err = os.MkdirTemp("", "sdlab-"+l.Name+"-"); err != nil {
			return err
		}
	}
	if l.Dir, err = filepath.Abs(l.Dir); err != nil {
		return err
	}
	if left, err := os.ReadDir(l.Dir); err == nil && len(left) > 0 {
		return fmt.Errorf("directory %q is not empty: a lab removes its directory in the end, so name one that is not there", l.Dir)
	}
	// Daemons that give up root read their configuration there.
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(l.Dir, 0o755); err != nil {
		return err
	}
	owner, err := self()
	if err != nil {
		return err
	}
	l.record = &record{Name: l.Name, Dir: l.Dir, Owner: owner, Lasting: o.Lasting}
	if err := register(ctx, l.record); err != nil {
		return errors.Join(err, os.Remove(l.Dir))
	}
	l.plan = l.record.plan()
	return nil
}

func (l *Lab) start(ctx context.Context, o Options) error {
	if err := l.makeBridge(ctx); err != nil {
		return err
	}
	if err := l.makeNodes(ctx, o.Nodes); err != nil {
		return err
	}
	if err := l.startControlPlane(ctx, o); err != nil {
		return err
	}
	for _, node := range l.Nodes {
		if err := l.join(ctx, node); err != nil {
			return err
		}
	}
	for _, node := range l.Nodes {
		if err := l.waitNode(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) startControlPlane(ctx context.Context, o Options) (err error) {
	options := o.ControlPlane
	options.WithoutKwok = true
	options.Address = l.plan.segment(gateway).Addr().String()
	options.Dir = filepath.Join(l.Dir, "controlplane")
	options.Detached = o.Lasting
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return err
	}
	if l.Cluster, err = controlplane.Start(ctx, options); err != nil {
		return err
	}
	l.Client, l.Config = l.Cluster.Client(), l.Cluster.Config()
	l.Kubeconfig = filepath.Join(l.Dir, "kubeconfig")
	return errors.Join(l.Cluster.Kubeconfig(l.Kubeconfig), l.recordProcesses())
}

// recordProcesses writes down which processes of the lab are in no namespace of it.
func (l *Lab) recordProcesses() error {
	l.record.Processes = nil
	for _, pid := range l.Cluster.PIDs() {
		p, err := lookup(pid)
		if err != nil {
			return err
		}
		l.record.Processes = append(l.record.Processes, p)
	}
	return l.record.write()
}

// Down ends every process of the lab and removes its namespaces, interfaces, settings and files. It may be called again
// when it failed.
func (l *Lab) Down(ctx context.Context) error {
	errs := []error{endProcesses(ctx, l.plan.netnsPrefix(), nil)}
	l.stopOnce.Do(func() {
		if l.Cluster != nil {
			errs = append(errs, l.Cluster.Stop(ctx))
		}
		l.spawner.Close()
	})
	return errors.Join(append(errs, sweep(ctx, l.record))...)
}

// StopAPIServer ends the API server as a crash does: open requests and watches break. The data plane keeps going.
func (l *Lab) StopAPIServer(ctx context.Context) error { return l.Cluster.StopAPIServer(ctx) }

// StartAPIServer starts the API server again and waits until it is ready.
func (l *Lab) StartAPIServer(ctx context.Context) error {
	return errors.Join(l.Cluster.StartAPIServer(ctx), l.recordProcesses())
}

// ClusterCIDR is the range of all pods, the IPv6 one behind a comma if there is one.
func (l *Lab) ClusterCIDR() string {
	if l.IPv6 {
		return l.plan.pods().String() + "," + l.plan.pods6().String()
	}
	return l.plan.pods().String()
}

// Balancers returns the range of addresses on the segment that no machine has: for the addresses of Services.
func (l *Lab) Balancers() (first, last netip.Addr) {
	return l.plan.segment(200).Addr(), l.plan.segment(250).Addr()
}

// Gateway is the address of this machine on the lab's segment; the API server listens on it.
func (l *Lab) Gateway() netip.Addr { return l.plan.segment(gateway).Addr() }

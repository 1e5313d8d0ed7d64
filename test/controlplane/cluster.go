package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	etcdPeer     = "etcd-peer" // a port of etcd's that nobody uses
	startTimeout = 3 * time.Minute
	pollInterval = 100 * time.Millisecond
	loopback     = "127.0.0.1"
)

// Options say which cluster is wanted. The zero value is a whole one.
type Options struct {
	// APIServerFlags are added to those of kube-apiserver; a repeated flag wins over ours.
	APIServerFlags []string
	// Controllers are added to "*" in kube-controller-manager's --controllers, such as "-disruption".
	Controllers []string
	// HPASyncPeriod is how often horizontal pod autoscalers are looked at; 3 seconds when zero.
	HPASyncPeriod time.Duration
	// WithoutKwok leaves nodes and pods to the test: nothing becomes Ready and nothing ends by itself.
	WithoutKwok bool
	// WithoutScheduler leaves pods unbound that name no node.
	WithoutScheduler bool
	// WithoutControllerManager leaves out every controller.
	WithoutControllerManager bool
	// Stages replaces the stages that kwok plays, YAML; see [Stages].
	Stages string
	// Dir is the working directory; one under the system's temporary directory when empty.
	Dir string
	// Address is the IPv4 address of this machine that the API server listens on and advertises; loopback when empty.
	Address string
	// Detached lets the programs outlive this process; whoever wants that ends them by their pids.
	Detached bool
}

// Cluster is a running control plane.
type Cluster struct {
	options   Options
	programs  *Programs
	dir       string
	ports     map[string]*port
	spawner   *spawner
	processes map[string]*process
	authority *authority
	admin     *rest.Config
	client    kubernetes.Interface
	probe     *http.Client
}

// Start brings a cluster up and returns when its API server and its controllers answer, which takes some seconds once
// the programs are built. Stop ends it.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	programs, err := Binaries(ctx)
	if err != nil {
		return nil, err
	}
	if options.HPASyncPeriod == 0 {
		options.HPASyncPeriod = 3 * time.Second
	}
	if options.Stages == "" {
		options.Stages = Stages()
	}
	if options.Address == "" {
		options.Address = loopback
	}
	c := &Cluster{options: options, programs: programs, ports: map[string]*port{}, processes: map[string]*process{}}
	if err := c.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a control plane: %w", err), c.Stop(ctx))
	}
	c.spawner = newSpawner(options.Detached)
	if err := c.startAll(ctx); err != nil {
		err = fmt.Errorf("start the control plane: %w\n%s", err, c.Logs())
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// prepare reserves the ports and writes every file that a program reads.
func (c *Cluster) prepare(ctx context.Context) (err error) {
	c.dir = c.options.Dir
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "safedrain-cluster-"); err != nil {
			return err
		}
	}
	for _, name := range []string{Etcd, etcdPeer, APIServer, ControllerManager, Scheduler} {
		if c.ports[name], err = reservePort(ctx); err != nil {
			return err
		}
	}
	if c.authority, err = newAuthority(); err != nil {
		return err
	}
	if c.admin, err = c.UserConfig(adminUser, masters); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.admin); err != nil {
		return err
	}
	return c.writeFiles()
}

func (c *Cluster) writeFiles() error {
	server, err := c.authority.server(c.options.Address)
	if err != nil {
		return err
	}
	signing, err := newSigningKey()
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt": c.authority.pem, "server.crt": server.cert, "server.key": server.key, "sa.key": signing,
		"scheduler.yaml": []byte(c.schedulerConfig()), "stages.yaml": []byte(c.options.Stages),
	}
	for name, content := range files {
		if err := os.WriteFile(c.file(name), content, 0o600); err != nil {
			return err
		}
	}
	for _, name := range []string{ControllerManager, Scheduler, Kwok} {
		config, err := c.UserConfig("system:"+name, masters)
		if err != nil {
			return err
		}
		if err := WriteKubeconfig(config, c.file(name+".kubeconfig")); err != nil {
			return err
		}
	}
	return c.prepareProbe()
}

// prepareProbe makes the client that asks the programs for their health. Its certificate is a master's, since only the
// API server answers everybody.
func (c *Cluster) prepareProbe() error {
	pair, err := tls.X509KeyPair(c.admin.CertData, c.admin.KeyData)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.authority.cert)
	c.probe = &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12},
			DisableKeepAlives: true,
		},
	}
	return nil
}

// startAll starts the store and the API server together, since the latter waits for the former, then what needs both.
func (c *Cluster) startAll(ctx context.Context) error {
	if err := c.startProgram(Etcd); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	if err := c.waitNamespaces(ctx); err != nil {
		return err
	}
	skip := map[string]bool{
		ControllerManager: c.options.WithoutControllerManager, Scheduler: c.options.WithoutScheduler, Kwok: c.options.WithoutKwok,
	}
	names := slices.DeleteFunc([]string{ControllerManager, Scheduler, Kwok}, func(name string) bool { return skip[name] })
	for _, name := range names {
		if err := c.startProgram(name); err != nil {
			return err
		}
	}
	for _, name := range names {
		if name == Kwok { // it serves nothing; pods that become Ready show that it runs
			continue
		}
		if err := c.waitHealthy(ctx, name, "/healthz"); err != nil {
			return err
		}
	}
	return nil
}

// waitNamespaces waits for the namespaces that an API server makes by itself, a moment after it is ready.
func (c *Cluster) waitNamespaces(ctx context.Context) error {
	return Poll(ctx, startTimeout, "the API server's own namespaces", func(ctx context.Context) (bool, string, error) {
		for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
			if _, err := c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
				return false, "", err
			}
		}
		return true, "", nil
	})
}

func (c *Cluster) startProgram(name string) error {
	argv, err := c.argv(name)
	if err != nil {
		return err
	}
	p, err := c.spawner.start(name, c.dir, argv)
	if err != nil {
		return err
	}
	c.processes[name] = p
	return nil
}

// StartAPIServer starts the API server on its port and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if err := c.startProgram(APIServer); err != nil {
		return err
	}
	return c.waitHealthy(ctx, APIServer, "/readyz")
}

// StopAPIServer ends the API server as a crash does: open requests and watches break. The rest keeps running.
func (c *Cluster) StopAPIServer(ctx context.Context) error {
	return c.processes[APIServer].kill(ctx)
}

// waitHealthy waits until a program answers its health check with 200.
func (c *Cluster) waitHealthy(ctx context.Context, name, path string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("%s was not ready within %s", name, startTimeout))
	defer cancel()
	url := "https://" + c.address(name) + path
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if done, err := c.processes[name].ended(); done {
			return fmt.Errorf("%s ended: %w", name, errors.Join(err, errors.New("see its log")))
		}
		if c.healthy(ctx, url) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (c *Cluster) healthy(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := c.probe.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// Stop ends every program, by its pid and the API server's clients first, and removes the working directory.
func (c *Cluster) Stop(ctx context.Context) error {
	var errs []error
	for _, name := range []string{Kwok, Scheduler, ControllerManager, APIServer, Etcd} {
		if p := c.processes[name]; p != nil {
			errs = append(errs, p.kill(ctx))
		}
	}
	if c.spawner != nil {
		c.spawner.close()
	}
	for _, p := range c.ports {
		p.release()
	}
	if os.Getenv(EnvKeep) == "" && c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// Client returns a client that may do everything.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Programs returns the executables that the cluster runs.
func (c *Cluster) Programs() *Programs { return c.programs }

// Dir is the working directory with the logs and the files of the programs.
func (c *Cluster) Dir() string { return c.dir }

// PIDs returns the process ids of the running programs by their names.
func (c *Cluster) PIDs() map[string]int {
	pids := map[string]int{}
	for name, p := range c.processes {
		if done, _ := p.ended(); !done {
			pids[name] = p.cmd.Process.Pid
		}
	}
	return pids
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// address is where a program listens.
func (c *Cluster) address(name string) string {
	if name == APIServer {
		return net.JoinHostPort(c.options.Address, c.ports[name].String())
	}
	return c.ports[name].address()
}

package experiments

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/spawn"
)

const (
	gateName      = "safedrain-gate"
	gateNamespace = "safedrain-system"
	gateWithin    = 60 * time.Second // to be ready, to be asked, to end
)

// gate is `safedrain gate` in front of a lab's API server, with the webhooks that are shipped: for every namespace.
type gate struct {
	lab     *dataplane.Lab
	spawner *spawn.Spawner
	cmd     *exec.Cmd
	ended   chan struct{}
	log     string
	webhook int // ports
	health  int
}

// startGate installs a gate that enforces and clamps, and returns when it is ready; flags say how its hooks work. Whether
// the API server asks it already is another matter: see [gate.asked].
func startGate(ctx context.Context, lab *dataplane.Lab, tools *Tools, flags []string) (*gate, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gateNamespace}}
	if _, err := lab.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	g := &gate{
		lab: lab, spawner: spawn.New(false), ended: make(chan struct{}), log: filepath.Join(lab.Dir, "gate.log"),
		webhook: freePort(ctx), health: freePort(ctx),
	}
	err := g.register(ctx, filepath.Join(tools.Root, "deploy", "kustomize", "base"))
	if err == nil {
		err = g.start(tools.Safedrain, flags)
	}
	if err == nil {
		err = g.ready(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, g.stop(context.WithoutCancel(ctx)))
	}
	return g, nil
}

// freePort is a port of this machine that nobody listens on, from below the range of outgoing connections.
func freePort(ctx context.Context) int {
	var config net.ListenConfig
	for {
		port := 20000 + rand.IntN(12000)
		if l, err := config.Listen(ctx, "tcp", ":"+strconv.Itoa(port)); err == nil && l.Close() == nil || ctx.Err() != nil {
			return port
		}
	}
}

// register makes the API server ask the gate as the shipped configurations say, by its address.
func (g *gate) register(ctx context.Context, shipped string) error {
	var v admissionregistrationv1.ValidatingWebhookConfiguration
	var m admissionregistrationv1.MutatingWebhookConfiguration
	if err := errors.Join(readYAML(filepath.Join(shipped, "validating.yaml"), &v), readYAML(filepath.Join(shipped, "mutating.yaml"), &m)); err != nil {
		return err
	}
	v.ObjectMeta, m.ObjectMeta = metav1.ObjectMeta{Name: gateName}, metav1.ObjectMeta{Name: gateName}
	for i := range v.Webhooks {
		g.point(&v.Webhooks[i].ClientConfig)
	}
	for i := range m.Webhooks {
		g.point(&m.Webhooks[i].ClientConfig)
	}
	api := g.lab.Client.AdmissionregistrationV1()
	_, vErr := api.ValidatingWebhookConfigurations().Create(ctx, &v, metav1.CreateOptions{})
	_, mErr := api.MutatingWebhookConfigurations().Create(ctx, &m, metav1.CreateOptions{})
	return errors.Join(vErr, mErr)
}

func (g *gate) point(config *admissionregistrationv1.WebhookClientConfig) {
	url := fmt.Sprintf("https://127.0.0.1:%d%s", g.webhook, *config.Service.Path)
	*config = admissionregistrationv1.WebhookClientConfig{URL: &url}
}

func readYAML(file string, into any) error {
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

func (g *gate) start(program string, flags []string) error {
	out, err := os.OpenFile(g.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // the process has its own
	g.cmd = exec.Command(program, append([]string{
		"gate", "--mode=enforce", "--scale=clamp", "--kubeconfig=" + g.lab.Kubeconfig, "--namespace=" + gateNamespace,
		"--webhook-port=" + strconv.Itoa(g.webhook), fmt.Sprintf("--health-address=127.0.0.1:%d", g.health), "--metrics-address=0",
		"--cert-host=127.0.0.1", "--leader-elect=false", "--shutdown-delay=0s",
	}, flags...)...)
	g.cmd.Dir = g.lab.Dir
	g.cmd.Stdout, g.cmd.Stderr = out, out
	if err := g.spawner.Start(g.cmd, ""); err != nil {
		return err
	}
	go func() {
		_ = g.cmd.Wait()
		close(g.ended)
	}()
	return nil
}

// ready waits until the gate has read the cluster, has its certificate and serves.
func (g *gate) ready(ctx context.Context) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	url := fmt.Sprintf("http://127.0.0.1:%d/readyz", g.health)
	return controlplane.Poll(ctx, gateWithin, "the gate is ready", func(ctx context.Context) (bool, string, error) {
		select {
		case <-g.ended:
			return false, "", errors.New("it ended:\n" + controlplane.Tail(g.log))
		default:
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return false, "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return false, "", err
		}
		return resp.StatusCode == http.StatusOK, resp.Status, resp.Body.Close()
	})
}

// asked waits until the API server asks the gate: the eviction of a pod that is the last of a node is refused by it. The
// eviction is a dry run.
func (g *gate) asked(ctx context.Context, pod *corev1.Pod) error {
	body := fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q},"deleteOptions":{"dryRun":["All"]}}`,
		pod.Name, pod.Namespace)
	return controlplane.Poll(ctx, gateWithin, "the gate is asked about evictions", func(ctx context.Context) (bool, string, error) {
		err := g.lab.Client.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
			SetHeader("Content-Type", "application/json").MaxRetries(0).Body([]byte(body)).Do(ctx).Error()
		return apierrors.IsTooManyRequests(err), fmt.Sprintf("the answer is %v", err), nil
	})
}

// stop takes the webhooks away, so that nobody asks any more, and ends the gate. What it left on nodes is released by the
// next reset, as that of any run.
func (g *gate) stop(ctx context.Context) error {
	api := g.lab.Client.AdmissionregistrationV1()
	errs := []error{
		ignoreGone(api.ValidatingWebhookConfigurations().Delete(ctx, gateName, metav1.DeleteOptions{})),
		ignoreGone(api.MutatingWebhookConfigurations().Delete(ctx, gateName, metav1.DeleteOptions{})),
	}
	if g.cmd != nil && g.cmd.Process != nil {
		_ = g.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-g.ended:
		case <-time.After(gateWithin):
			errs = append(errs, fmt.Errorf("the gate goes on %s after SIGTERM", gateWithin), g.cmd.Process.Kill())
			<-g.ended
		}
	}
	g.spawner.Close()
	return errors.Join(errs...)
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

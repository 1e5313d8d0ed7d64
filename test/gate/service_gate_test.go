package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
)

const (
	gateNamespace = "safedrain-system"
	// gatedLabel on a namespace names the gate that judges there.
	gatedLabel = "test.safedrain.dev/gate"
	// shipped are the manifests that the webhook configurations are read from.
	shipped = "../../deploy/kustomize/base"
	// readyWithin is how long a replica may take to be ready.
	readyWithin = 3 * time.Minute
)

// gated is a gate as it is installed: replicas behind one address, and the webhook configurations that are shipped.
type gated struct {
	testing.TB
	cluster *controlplane.Cluster
	client  kubernetes.Interface
	name    string // of its configurations, its Secret and its Service
	args    []string
	front   *front

	mu       sync.Mutex
	replicas []*replica
}

// install starts a gate and registers its webhooks; args are further flags. Several gates of one cluster share a lease, so the
// controllers of one of them run.
func install(t testing.TB, c *controlplane.Cluster, name string, replicas int, args ...string) *gated {
	t.Helper()
	g := &gated{TB: t, cluster: c, client: c.Client(), name: name, args: args, front: newFront(t)}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gateNamespace}}
	if _, err := g.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	g.register()
	for range replicas {
		g.add()
	}
	for _, r := range g.all() {
		r.awaitReady(t)
	}
	return g
}

// uninstall removes the configurations and ends the replicas, so that the lease is free at once for another gate.
func (g *gated) uninstall() {
	ctx := context.Background()
	_ = g.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, g.name, metav1.DeleteOptions{})
	_ = g.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx, g.name, metav1.DeleteOptions{})
	for _, r := range g.all() {
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, r := range g.all() {
		select {
		case <-r.ended:
		case <-time.After(readyWithin):
			_ = r.cmd.Process.Kill()
			<-r.ended
		}
	}
	g.front.close()
}

func (g *gated) all() []*replica {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.replicas)
}

// register creates the shipped configurations for this gate: by its address, and for the namespaces that name it.
func (g *gated) register() {
	g.Helper()
	var v admissionregistrationv1.ValidatingWebhookConfiguration
	var m admissionregistrationv1.MutatingWebhookConfiguration
	read(g, "validating.yaml", &v)
	read(g, "mutating.yaml", &m)
	v.ObjectMeta, m.ObjectMeta = metav1.ObjectMeta{Name: g.name}, metav1.ObjectMeta{Name: g.name}
	patience := int32(30) // on a busy machine
	for i := range v.Webhooks {
		g.point(&v.Webhooks[i].ClientConfig, &v.Webhooks[i].NamespaceSelector)
		v.Webhooks[i].TimeoutSeconds = &patience
	}
	for i := range m.Webhooks {
		g.point(&m.Webhooks[i].ClientConfig, &m.Webhooks[i].NamespaceSelector)
		m.Webhooks[i].TimeoutSeconds = &patience
	}
	api := g.client.AdmissionregistrationV1()
	if _, err := api.ValidatingWebhookConfigurations().Create(g.Context(), &v, metav1.CreateOptions{}); err != nil {
		g.Fatal(err)
	}
	if _, err := api.MutatingWebhookConfigurations().Create(g.Context(), &m, metav1.CreateOptions{}); err != nil {
		g.Fatal(err)
	}
}

func read(t testing.TB, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shipped, file))
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (g *gated) point(config *admissionregistrationv1.WebhookClientConfig, namespaces **metav1.LabelSelector) {
	url := fmt.Sprintf("https://%s%s", loopback(g.front.port()), *config.Service.Path)
	*config = admissionregistrationv1.WebhookClientConfig{URL: &url}
	(*namespaces).MatchExpressions = append((*namespaces).MatchExpressions, metav1.LabelSelectorRequirement{
		Key: gatedLabel, Operator: metav1.LabelSelectorOpIn, Values: []string{g.name},
	})
}

// failClosed makes an API server that reaches no replica refuse what it cannot ask about.
func (g *gated) failClosed() {
	g.Helper()
	patch := []byte(`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Fail"}]`)
	api := g.client.AdmissionregistrationV1()
	if _, err := api.ValidatingWebhookConfigurations().Patch(g.Context(), g.name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		g.Fatal(err)
	}
	if _, err := api.MutatingWebhookConfigurations().Patch(g.Context(), g.name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		g.Fatal(err)
	}
}

// judges makes the namespace of a test one of this gate, and waits until the API server asks about it and the gate knows a
// Service that was made after everything that is there.
func (g *gated) judges(e *controlplane.Env) {
	e.Helper()
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{gatedLabel: g.name}}})
	if _, err := e.Client.CoreV1().Namespaces().Patch(e.Context(), e.Namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
	set := podless("gate-probe", 5)
	if _, err := e.Client.AppsV1().Deployments(e.Namespace).Create(e.Context(), set, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	e.Service(set.Name, func(svc *corev1.Service) { svc.Annotations = map[string]string{guard.AnnotationFloor: "5"} })
	g.holds(e, set.Name, 5)
	if err := e.Client.CoreV1().Services(e.Namespace).Delete(e.Context(), set.Name, metav1.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
}

// holds waits until a Deployment of a gated namespace is held at its floor: the gate clamps a dry run that asks for less, or
// refuses it, as it will from then on.
func (g *gated) holds(e *controlplane.Env, deployment string, floor int32) {
	e.Helper()
	held := false
	defer func() { // Wait ends the test
		if !held {
			g.explain(e)
		}
	}()
	e.Wait(fmt.Sprintf("the gate to hold %s at %d", deployment, floor), func(ctx context.Context) (bool, string, error) {
		api := e.Client.AppsV1().Deployments(e.Namespace)
		scale, err := api.GetScale(ctx, deployment, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		scale.Spec.Replicas = 1
		got, err := api.UpdateScale(ctx, deployment, scale, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			refused := apierrors.IsForbidden(err) && strings.Contains(err.Error(), fmt.Sprintf("%s/%s needs %d: ", e.Namespace, deployment, floor))
			return refused, err.Error(), nil
		}
		return got.Spec.Replicas == floor, fmt.Sprintf("%d replicas", got.Spec.Replicas), nil
	})
	held = true
}

// explain logs what the replicas have seen and said.
func (g *gated) explain(e *controlplane.Env) {
	e.Helper()
	for _, r := range g.all() {
		metrics, _ := fetch(context.Background(), "http://"+loopback(r.meter)+"/metrics")
		decisions := slices.DeleteFunc(strings.Split(metrics, "\n"), func(line string) bool {
			return !strings.HasPrefix(line, "safedrain_gate_decisions_total")
		})
		e.Logf("%s\n%s\n%s", r.readiness(context.Background()), strings.Join(decisions, "\n"), r.log)
	}
}

// replica is one process of the gate.
type replica struct {
	cmd                    *exec.Cmd
	webhook, health, meter int // ports
	log                    *lines
	ended                  chan struct{}
}

// add starts another replica.
func (g *gated) add() *replica {
	g.Helper()
	r := &replica{webhook: controlplane.FreePort(g), health: controlplane.FreePort(g), meter: controlplane.FreePort(g), log: &lines{}, ended: make(chan struct{})}
	config := filepath.Join(scratch, g.name+".kubeconfig")
	if err := g.cluster.Kubeconfig(config); err != nil {
		g.Fatal(err)
	}
	args := append([]string{
		"gate", "--kubeconfig=" + config, "--namespace=" + gateNamespace, "--service=" + g.name,
		"--cert-secret=" + g.name + "-tls", "--webhook-configuration=" + g.name,
		"--webhook-port=" + strconv.Itoa(r.webhook), "--health-address=" + loopback(r.health), "--metrics-address=" + loopback(r.meter),
		"--shutdown-delay=2s",
	}, g.args...)
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--cert-dir=") }) {
		args = append(args, "--cert-host=127.0.0.1")
	}
	r.cmd = exec.Command(binary, args...)
	r.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + scratch, fmt.Sprintf("POD_NAME=%s-%d", g.name, r.webhook)}
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		g.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	g.mu.Lock()
	g.replicas = append(g.replicas, r)
	g.mu.Unlock()
	g.front.add(loopback(r.webhook), "http://"+loopback(r.health)+"/readyz")
	return r
}

// end sends a signal to a replica, waits until it is gone, and returns its exit code.
func (g *gated) end(r *replica, s os.Signal) int {
	g.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		g.Fatal(err)
	}
	select {
	case <-r.ended:
	case <-time.After(readyWithin):
		g.Fatalf("a replica goes on after %s\n%s", s, r.log)
	}
	g.forget(r)
	return r.cmd.ProcessState.ExitCode()
}

// forget leaves a replica out that is gone.
func (g *gated) forget(r *replica) {
	g.mu.Lock()
	g.replicas = slices.DeleteFunc(g.replicas, func(o *replica) bool { return o == r })
	g.mu.Unlock()
	g.front.remove(loopback(r.webhook))
}

func (r *replica) awaitReady(t testing.TB) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second}
	err := controlplane.Poll(t.Context(), readyWithin, "a replica is ready", func(ctx context.Context) (bool, string, error) {
		select {
		case <-r.ended:
			t.Fatalf("a replica ended:\n%s", r.log)
		default:
		}
		return answers(ctx, client, "http://"+loopback(r.health)+"/readyz"), r.readiness(ctx), nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, r.log)
	}
}

// readiness is what a replica says of itself.
func (r *replica) readiness(ctx context.Context) string {
	text, _ := fetch(ctx, "http://"+loopback(r.health)+"/readyz?verbose=1")
	return text
}

func (r *replica) metrics(t testing.TB) string {
	t.Helper()
	text, err := fetch(t.Context(), "http://"+loopback(r.meter)+"/metrics")
	if err != nil {
		t.Fatalf("metrics: %v\n%s", err, r.log)
	}
	return text
}

func fetch(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// lines collects what a process writes.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

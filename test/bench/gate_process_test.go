package bench

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/safedrain/safedrain/test/controlplane"
)

// gate is a process of the gate that reviews the evictions of one namespace.
type gate struct {
	cmd     *exec.Cmd
	url     string
	metrics string
	ready   time.Duration // after its start
	http    *http.Client
}

func (l *large) startGate(b *testing.B) *gate {
	b.Helper()
	const namespace = "safedrain-system"
	if _, err := l.client.CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	webhook, health, meter := controlplane.FreePort(b), controlplane.FreePort(b), controlplane.FreePort(b)
	g := &gate{
		url: fmt.Sprintf("https://127.0.0.1:%d/evict", webhook), metrics: fmt.Sprintf("http://127.0.0.1:%d/metrics", meter),
		http: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 10 * time.Second},
	}
	l.webhook(b, gated, admissionregistrationv1.WebhookClientConfig{URL: &g.url})
	kubeconfig := filepath.Join(b.TempDir(), "kubeconfig")
	if err := controlplane.WriteKubeconfig(l.Config(), kubeconfig); err != nil {
		b.Fatal(err)
	}
	var log bytes.Buffer
	g.cmd = exec.Command(safedrain, "gate", "--mode=enforce", "--scale=clamp", "--kubeconfig="+kubeconfig, "--namespace="+namespace,
		"--webhook-configuration="+gated, "--cert-host=127.0.0.1", "--webhook-port="+strconv.Itoa(webhook),
		fmt.Sprintf("--health-address=127.0.0.1:%d", health), fmt.Sprintf("--metrics-address=127.0.0.1:%d", meter))
	g.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.TempDir()}
	g.cmd.Stdout, g.cmd.Stderr = &log, &log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := g.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
		if b.Failed() {
			b.Log(log.String())
		}
	})
	err := controlplane.Poll(b.Context(), 5*gateReady, "the gate is ready", func(ctx context.Context) (bool, string, error) {
		code, text, err := g.get(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz?verbose=1", health))
		return code == http.StatusOK, text, err
	})
	g.ready = time.Since(began)
	if err != nil {
		b.Fatalf("%v\n%s", err, log.String())
	}
	return g
}

func (g *gate) get(ctx context.Context, url string) (code int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := g.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// memory is the most that the process had in memory, in bytes.
func (g *gate) memory(b *testing.B) int64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		b.Fatalf("no VmHWM in\n%s", text)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib << 10
}

// review is what the API server asks about the eviction of a pod, as a dry run.
func (g *gate) review(b *testing.B, pod string) []byte {
	b.Helper()
	dry := true
	text, err := json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "1", Name: pod, Namespace: gated, Operation: admissionv1.Create, SubResource: "eviction", DryRun: &dry,
			Kind:     metav1.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Object:   runtime.RawExtension{Raw: fmt.Appendf(nil, `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, gated)},
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// answer asks a webhook itself, over a connection that stands, as the API server does.
func (g *gate) answer(b *testing.B, url string, review []byte) time.Duration {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url, bytes.NewReader(review))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", runtime.ContentTypeJSON)
	began := time.Now()
	resp, err := g.http.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	took := time.Since(began)
	_ = resp.Body.Close()
	if err != nil || !bytes.Contains(body, []byte(`"allowed":true`)) {
		b.Fatalf("status %d, %v\n%s", resp.StatusCode, err, body)
	}
	return took
}

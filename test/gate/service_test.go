package gate

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/test/controlplane"
)

// load asks a gate whether a Deployment may be scaled down, again and again and as a dry run, until stop is called; it then
// returns how many times, and what went wrong.
func (g *gated) load(e *controlplane.Env, workers int) (stop func() (calls int, failed []error)) {
	e.Helper()
	ctx, cancel := context.WithCancel(e.Context())
	var calls atomic.Int64
	var mu sync.Mutex
	var failed []error
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			deployments := e.Client.AppsV1().Deployments(e.Namespace)
			for ctx.Err() == nil {
				scale, err := deployments.GetScale(ctx, "gate-probe", metav1.GetOptions{})
				if err == nil {
					scale.Spec.Replicas = 0
					_, err = deployments.UpdateScale(ctx, "gate-probe", scale, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
				}
				if ctx.Err() != nil {
					return
				}
				if apierrors.IsConflict(err) { // its controller wrote meanwhile
					continue
				}
				calls.Add(1)
				if err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	return func() (int, []error) {
		cancel()
		running.Wait()
		return int(calls.Load()), failed
	}
}

// gatedEnv gives a test a namespace that its own gate judges, and fails closed there.
func gatedEnv(t *testing.T, name string, replicas int) (*gated, *controlplane.Env) {
	t.Helper()
	t.Parallel()
	g := install(t, own.get(t), name, replicas, "--mode=enforce", "--scale=clamp")
	t.Cleanup(g.uninstall)
	e := g.cluster.Env(t)
	g.judges(e)
	g.failClosed()
	return g, e
}

// TestRollingRestart: replicas are replaced one after the other, and no review fails meanwhile although nothing passes
// without one.
func TestRollingRestart(t *testing.T) {
	g, e := gatedEnv(t, "gate-rolling", 3)
	stop := g.load(e, 4)
	for _, old := range g.all() {
		g.add().awaitReady(t)
		if code := g.end(old, syscall.SIGTERM); code != 0 {
			t.Errorf("a replica that was told to end did so with exit code %d:\n%s", code, old.log)
		}
	}
	calls, failed := stop()
	if len(failed) > 0 {
		t.Errorf("%d of %d calls failed, the first: %v", len(failed), calls, failed[0])
	}
	if calls < 50 {
		t.Errorf("only %d calls", calls)
	}
	t.Logf("%d calls, none failed", calls)
}

// TestElection: one replica is elected; when it is told to end it gives up the lease, so that another one is elected at once.
func TestElection(t *testing.T) {
	t.Parallel()
	g := install(t, bare.get(t), "gate-election", 2, "--mode=enforce", "--scale=clamp")
	t.Cleanup(g.uninstall)
	elected := func() *replica {
		t.Helper()
		var out *replica
		err := controlplane.Poll(t.Context(), readyWithin, "one replica is elected", func(context.Context) (bool, string, error) {
			n := 0
			for _, r := range g.all() {
				if strings.Contains(r.metrics(t), "\nsafedrain_gate_elected 1\n") {
					n, out = n+1, r
				}
			}
			if n > 1 {
				return false, "", fmt.Errorf("%d replicas are elected", n)
			}
			return n == 1, "none", nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := elected()
	lease := func() *coordinationv1.Lease {
		t.Helper()
		l, err := g.client.CoordinationV1().Leases(gateNamespace).Get(t.Context(), "safedrain-gate", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	was := lease().Spec
	g.end(first, syscall.SIGTERM)
	if now := lease().Spec; *now.HolderIdentity == *was.HolderIdentity {
		t.Errorf("%s has ended and holds the lease still", *was.HolderIdentity)
	}
	if second := elected(); second == first {
		t.Error("it is elected still")
	}
}

// TestDown: while no replica answers, scaling up works at once, in any case; a scale-down passes, or not, as the policy for
// failures says.
func TestDown(t *testing.T) {
	g, e := gatedEnv(t, "gate-down", 1)
	g.end(g.all()[0], syscall.SIGKILL)
	began, replicas := time.Now(), func(n int) []byte { return fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n) }
	for n, of := range [][]string{{"scale"}, nil} { // by its scale, and by itself
		_, err := e.Client.AppsV1().Deployments(e.Namespace).Patch(t.Context(), "gate-probe", types.MergePatchType, replicas(9+n), metav1.PatchOptions{}, of...)
		if err != nil {
			t.Errorf("scaling up %v: %v", of, err)
		}
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("scaling up took %s: somebody waited for the gate", took)
	}
	e.Wait("the API server fails closed", func(ctx context.Context) (bool, string, error) {
		_, err := e.Client.AppsV1().Deployments(e.Namespace).Patch(ctx, "gate-probe", types.MergePatchType, replicas(1),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "scale")
		return err != nil, "it does not yet", nil
	})
	kubectl := program(g.cluster, t)
	if _, stderr, code := kubectl("-n", e.Namespace, "scale", "deployment/gate-probe", "--replicas=1"); code == 0 || !strings.Contains(stderr, "failed calling webhook") {
		t.Errorf("scaled down past a gate that is down and fails closed: exit code %d, %s", code, stderr)
	}
}

// TestStrangers: what is no review is refused by a status and harms nobody.
func TestStrangers(t *testing.T) {
	t.Parallel()
	g := oneGate(t, "gate-clamp", 1, "--mode=enforce", "--scale=clamp")
	r := g.all()[0]
	client := &http.Client{
		Timeout:   20 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, // a stranger knows no authority
	}
	url := "https://" + loopback(r.webhook)
	for name, test := range map[string]struct {
		method, path, kind string
		body               []byte
		want               int
	}{
		"no path of ours":        {http.MethodPost, "/other", "application/json", []byte("{}"), http.StatusNotFound},
		"not posted":             {http.MethodGet, "/scale", "", nil, http.StatusMethodNotAllowed},
		"another content type":   {http.MethodPost, "/scale", "application/yaml", []byte("{}"), http.StatusUnsupportedMediaType},
		"garbage":                {http.MethodPost, "/scale", "application/json", []byte(`{"kind":`), http.StatusBadRequest},
		"nothing":                {http.MethodPost, "/evict", "application/json", nil, http.StatusBadRequest},
		"another kind":           {http.MethodPost, "/scale", "application/json", []byte(`{"kind":"Pod","apiVersion":"v1"}`), http.StatusBadRequest},
		"no request":             {http.MethodPost, "/replicas", "application/json", []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`), http.StatusBadRequest},
		"a body of 8 MiB":        {http.MethodPost, "/scale", "application/json", bytes.Repeat([]byte(" "), 8<<20), http.StatusRequestEntityTooLarge},
		"objects of other kinds": {http.MethodPost, "/scale", "application/json", []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","name":"x","namespace":"y","object":{"spec":[]},"oldObject":{"spec":{"replicas":"three"}}}}`), http.StatusBadRequest},
		"no names":               {http.MethodPost, "/scale", "application/json", []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","object":{"spec":{}},"oldObject":{"spec":{"replicas":3}}}}`), http.StatusBadRequest},
		"fields of tomorrow":     {http.MethodPost, "/scale", "application/json", []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","tomorrow":1,"request":{"uid":"1","name":"x","namespace":"y","tomorrow":{},"object":{"spec":{"replicas":3,"tomorrow":2}},"oldObject":{"spec":{"replicas":3}}}}`), http.StatusOK},
	} {
		req, err := http.NewRequestWithContext(t.Context(), test.method, url+test.path, bytes.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		if test.kind != "" {
			req.Header.Set("Content-Type", test.kind)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode != test.want {
			t.Errorf("%s: status %d, want %d", name, resp.StatusCode, test.want)
		}
	}
	for name, config := range map[string]*tls.Config{
		"an authority of its own": {ServerName: "127.0.0.1"},
		"TLS 1.1":                 {InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10},
	} {
		if conn, err := tls.Dial("tcp", loopback(r.webhook), config); err == nil {
			_ = conn.Close()
			t.Errorf("%s: the handshake succeeded", name)
		}
	}
	if resp, err := http.Get("http://" + loopback(r.webhook) + "/scale"); err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("answered without TLS")
		}
	}
	r.awaitReady(t)
	if strings.Contains(r.log.String(), "panic") {
		t.Errorf("something panicked:\n%s", r.log)
	}
}

// TestDryRun: a dry run gets the same answer and leaves no trace.
func TestDryRun(t *testing.T) {
	s := newShop(t, "clamp", 3, 6)
	scale, err := s.Client.AppsV1().Deployments(s.Namespace).GetScale(t.Context(), "checkout", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale.Spec.Replicas = 2
	got, err := s.Client.AppsV1().Deployments(s.Namespace).UpdateScale(t.Context(), "checkout", scale, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || got.Spec.Replicas != 3 {
		t.Errorf("a dry run: %v, %v", got, err)
	}
	if n := s.replicas(); n != 6 {
		t.Errorf("%d replicas after a dry run", n)
	}
	if _, _, code := program(s.gate.cluster, t)("-n", s.Namespace, "scale", "deployment/checkout", "--replicas=1"); code != 0 {
		t.Error("not scaled")
	}
	s.wantEvent("Deployment", "ReplicasClamped", "asked for 1") // and so none of the dry runs, which asked for 2
}

// TestRotation: certificates and authorities that live for seconds are replaced under load, and no review fails although
// nothing passes without one.
func TestRotation(t *testing.T) {
	t.Parallel()
	// A certificate is back-dated by five minutes and replaced after two thirds of its life: these after some seconds.
	g := install(t, own.get(t), "gate-rotation", 2, "--mode=enforce", "--scale=clamp",
		"--cert-life=155s", "--ca-life=160s", "--cert-settle=2s", "--cert-every=500ms")
	t.Cleanup(g.uninstall)
	e := g.cluster.Env(t)
	g.judges(e)
	g.failClosed()
	stop := g.load(e, 4)
	authorities, certificates := map[string]bool{}, map[string]bool{}
	e.Wait("three authorities", func(ctx context.Context) (bool, string, error) {
		secret, err := e.Client.CoreV1().Secrets(gateNamespace).Get(ctx, g.name+"-tls", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		authorities[string(secret.Data["signer.crt"])], certificates[string(secret.Data["tls.crt"])] = true, true
		return len(authorities) > 2, fmt.Sprintf("%d authorities, %d certificates", len(authorities), len(certificates)), nil
	})
	calls, failed := stop()
	if len(failed) > 0 {
		t.Errorf("%d of %d calls failed, the first: %v", len(failed), calls, failed[0])
	}
	if calls < 50 {
		t.Errorf("only %d calls", calls)
	}
	t.Logf("%d calls through %d authorities and %d certificates, none failed", calls, len(authorities), len(certificates))
}

// TestExpiredFiles: a replica whose certificate has ended is not ready and says so; it is as soon as the files are renewed.
func TestExpiredFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeCertificate(t, dir, time.Now().Add(-time.Hour))
	g := &gated{TB: t, cluster: bare.get(t), client: bare.get(t).Client(), name: "gate-files", front: newFront(t)}
	g.args = []string{"--mode=warn", "--scale=warn", "--cert-dir=" + dir, "--leader-elect=true"}
	t.Cleanup(g.uninstall)
	r := g.add()
	err := controlplane.Poll(t.Context(), readyWithin, "only the certificate keeps it from being ready", func(ctx context.Context) (bool, string, error) {
		text := r.readiness(ctx)
		return strings.Contains(text, "[-]certificate failed") && strings.Contains(text, "[+]cluster ok") && strings.Contains(text, "[+]webhooks ok"), text, nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, r.log)
	}
	writeCertificate(t, dir, time.Now().Add(time.Hour))
	r.awaitReady(t)
}

// writeCertificate writes a certificate for loopback that ends at a time, and its key.
func writeCertificate(t *testing.T, dir string, ends time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(ends.Unix()), NotBefore: ends.Add(-24 * time.Hour), NotAfter: ends, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

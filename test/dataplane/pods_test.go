package dataplane_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

// TestPods shows what the agent makes of the spec of a pod.
func TestPods(t *testing.T) {
	p := up(t, dataplane.Options{Nodes: 2})
	for name, test := range map[string]func(*testing.T){
		"ends": p.testEnds, "in flight": p.testInFlight, "close listener": p.testCloseListener, "readiness": p.testReadiness, "command": p.testCommand,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// testEnds: how long a deleted pod lives.
func (p *place) testEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		options []dataplane.PodOption
		grace   int64 // of the deletion, where it is not the pod's own
		want    time.Duration
		before  time.Duration // what it would take if it were not so
		why     string
	}{
		"at once":           {want: 0, before: 25 * time.Second, why: "nothing is in flight: no grace is waited for"},
		"preStop sleep":     {[]dataplane.PodOption{dataplane.WithPreStop(3 * time.Second)}, 0, 3 * time.Second, 25 * time.Second, "SIGTERM comes after the hook"},
		"keeps accepting":   {[]dataplane.PodOption{dataplane.WithSIGTERM(dataplane.KeepAccepting(3 * time.Second))}, 0, 3 * time.Second, 25 * time.Second, "it was asked to"},
		"ignores SIGTERM":   {[]dataplane.PodOption{dataplane.WithSIGTERM(dataplane.KeepAccepting(time.Minute)), dataplane.WithGrace(3 * time.Second)}, 0, 3 * time.Second, 55 * time.Second, "SIGKILL when the grace is over"},
		"sleeps past grace": {[]dataplane.PodOption{dataplane.WithPreStop(60 * time.Second), dataplane.WithGrace(70 * time.Second)}, 2, 2 * time.Second, 55 * time.Second, "the hook is cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := p.lab.Env(t)
			pod := e.Pod("web", "node-1", func(pod *corev1.Pod) {
				template := dataplane.Template("web", tt.options...)
				pod.Spec = template.Spec
				pod.Spec.NodeName = "node-1"
			})
			started := time.Now()
			var options metav1.DeleteOptions
			if tt.grace > 0 {
				options.GracePeriodSeconds = &tt.grace
			}
			if err := p.lab.Client.CoreV1().Pods(e.Namespace).Delete(t.Context(), pod.Name, options); err != nil {
				t.Fatal(err)
			}
			e.Gone(pod.Name, pod.UID)
			if d := time.Since(started); d < tt.want || d > tt.before {
				t.Errorf("gone after %s, want %s to %s: %s", d, tt.want, tt.before, tt.why)
			}
		})
	}
}

// testInFlight: an answer that began before SIGTERM is finished.
func (p *place) testInFlight(t *testing.T) {
	e := p.lab.Env(t)
	pod := e.Pod("web", "node-1")
	node, _ := p.node(t, "node-1")
	to := netip.AddrPortFrom(netip.MustParseAddr(pod.Status.PodIP), dataplane.DefaultPort)
	if _, err := get(t.Context(), &node.Host, to, ""); err != nil {
		t.Fatal(err)
	}
	patient := &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: node.DialContext}}
	answered := make(chan error, 1)
	go func() {
		_, err := ask(t.Context(), patient, to, "?sleep=5s")
		answered <- err
	}()
	<-time.After(2 * time.Second) // by then it is in flight
	if err := p.lab.Client.CoreV1().Pods(e.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("an answer in flight broke: %v", err)
	}
	e.Gone(pod.Name, pod.UID)
}

// testCloseListener: new connections are refused at once, an open one is served on.
func (p *place) testCloseListener(t *testing.T) {
	e := p.lab.Env(t)
	pod := e.Pod("web", "node-2", func(pod *corev1.Pod) {
		template := dataplane.Template("web", dataplane.WithSIGTERM(dataplane.CloseListener(time.Hour)), dataplane.WithGrace(time.Hour))
		pod.Spec.Containers, pod.Spec.TerminationGracePeriodSeconds = template.Spec.Containers, template.Spec.TerminationGracePeriodSeconds
	})
	node, _ := p.node(t, "node-2")
	to := netip.AddrPortFrom(netip.MustParseAddr(pod.Status.PodIP), dataplane.DefaultPort)
	var dials int
	kept := &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dials++
		return node.DialContext(ctx, network, address)
	}}}
	if _, err := ask(t.Context(), kept, to, ""); err != nil {
		t.Fatal(err)
	}
	if err := p.lab.Client.CoreV1().Pods(e.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.Wait("new connections refused", func(ctx context.Context) (bool, string, error) {
		_, err := get(ctx, &node.Host, to, "")
		return err != nil && strings.Contains(err.Error(), "refused"), fmt.Sprint(err), nil
	})
	if _, err := ask(t.Context(), kept, to, ""); err != nil || dials != 1 {
		t.Errorf("on the open connection: %v, %d connections; want an answer on one", err, dials)
	}
	if err := p.lab.Signal(t.Context(), e.Namespace, pod.Name, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e.Gone(pod.Name, pod.UID)
}

// testReadiness: a pod becomes Ready late, and not Ready and Ready again when it is told.
func (p *place) testReadiness(t *testing.T) {
	e := p.lab.Env(t)
	if _, err := p.lab.Service(t.Context(), e.Namespace, "web"); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	pod := e.Pod("web", "node-2", controlplane.With(map[string]string{dataplane.ReadyAfter: "2"}))
	if d := time.Since(started); d < 2*time.Second {
		t.Errorf("Ready after %s, want 2s at least", d)
	}
	e.EndpointsReady("web", 1)
	for _, ready := range []bool{false, true} {
		if err := p.lab.SetReady(t.Context(), e.Namespace, pod.Name, ready); err != nil {
			t.Fatal(err)
		}
		e.EndpointsReady("web", map[bool]int{true: 1}[ready])
	}
}

// testCommand: a container with a command runs that program, on the node's network where the pod says so, with the
// environment of the spec.
func (p *place) testCommand(t *testing.T) {
	e := p.lab.Env(t)
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	pods, err := p.lab.DaemonSet(t.Context(), e.Namespace, "speaker", dataplane.WithHostNetwork(), dataplane.WithSpec(func(t *corev1.PodTemplateSpec) {
		c := &t.Spec.Containers[0]
		c.Command = []string{"sh", "-c", `echo "$NAME $NODE $IP $(HOST) $(hostname -I 2>/dev/null || true)$KUBECONFIG"; trap 'echo ended; exit 0' TERM; while :; do sleep 0.1; done`}
		c.Env = []corev1.EnvVar{field("NAME", "metadata.name"), field("NODE", "spec.nodeName"), field("IP", "status.podIP"), field("HOST", "status.hostIP")}
	}))
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		pod := &pods[i]
		node, _ := p.node(t, pod.Spec.NodeName)
		log := filepath.Join(p.lab.Dir, node.Name, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID), "main.log")
		want := fmt.Sprintf("%s %s %s %s", pod.Name, node.Name, node.Addr, node.Addr)
		e.Wait("the output of "+pod.Name, func(context.Context) (bool, string, error) {
			data, err := os.ReadFile(log)
			return strings.Contains(string(data), want), cmp.Diff(want, string(data)), err
		})
	}
}

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/controlplane"
)

// Node is a host that belongs to the cluster: it runs kube-proxy, an agent and pods.
type Node struct {
	Host
	PodRange  netip.Prefix
	PodRange6 netip.Prefix // not valid unless the lab has IPv6

	proxy, agent *program
}

const (
	startTimeout  = 60 * time.Second
	proxyHealth   = 10256 // where kube-proxy answers for the node
	namedProxy    = "kube-proxy"
	namedAgent    = "agent"
	leaseInterval = "10s"
)

// program is a process that the lab runs on a node.
type program struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it ended
	err  error         // how it ended; to be read after done
}

// join makes the Node object and starts what the node runs.
func (l *Lab) join(ctx context.Context, n *Node) error {
	object := controlplane.Node(n.Name)
	object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.Addr.String()})
	object.Spec.PodCIDR = n.PodRange.String()
	object.Spec.PodCIDRs = []string{n.PodRange.String()}
	if l.IPv6 {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.Addr6.String()})
		object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, n.PodRange6.String())
	}
	// It becomes Ready when its agent runs.
	object.Status.Conditions = nil
	if _, err := l.Client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create node %q: %w", n.Name, err)
	}
	return errors.Join(n.StartAgent(), n.StartProxy())
}

// waitNode waits until the node is Ready and its kube-proxy has written its rules once.
func (l *Lab) waitNode(ctx context.Context, n *Node) error {
	err := controlplane.Poll(ctx, startTimeout, "node "+n.Name+" Ready", func(ctx context.Context) (bool, string, error) {
		node, err := l.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		for i := range node.Status.Conditions {
			if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return true, "", nil
			}
		}
		return false, "not Ready", nil
	})
	if err != nil {
		return err
	}
	return n.WaitProxy(ctx)
}

// WaitProxy waits until the node's kube-proxy has written its rules.
func (n *Node) WaitProxy(ctx context.Context) error {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	url := fmt.Sprintf("http://%s:%d/healthz", n.Addr, proxyHealth)
	return controlplane.Poll(ctx, startTimeout, "kube-proxy on "+n.Name, func(ctx context.Context) (bool, string, error) {
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

// StartProxy starts the node's kube-proxy.
func (n *Node) StartProxy() (err error) {
	n.proxy, err = n.start(namedProxy, []string{
		"--kubeconfig=" + n.lab.Kubeconfig, "--hostname-override=" + n.Name, "--proxy-mode=" + n.lab.ProxyMode,
		"--cluster-cidr=" + n.lab.ClusterCIDR(), fmt.Sprintf("--healthz-bind-address=%s:%d", n.Addr, proxyHealth),
		"--metrics-bind-address=127.0.0.1:10249", "--conntrack-max-per-core=0", "--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
	})
	return err
}

// StopProxy kills the node's kube-proxy. Its rules stay, as they are, and nobody answers health checks any more.
func (n *Node) StopProxy(ctx context.Context) error { return n.proxy.kill(ctx) }

// StartAgent starts the node's agent, and with it the pods that are bound to the node.
func (n *Node) StartAgent() (err error) {
	n.agent, err = n.start(namedAgent, []string{
		"-kubeconfig=" + n.lab.Kubeconfig, "-node=" + n.Name, "-netns=" + n.Netns, "-dir=" + filepath.Join(n.lab.Dir, n.Name),
		"-lease=" + leaseInterval,
	})
	return err
}

// StopAgent kills the node's agent, and with it its pods: what the cluster knows of them stays as it was.
func (n *Node) StopAgent(ctx context.Context) error { return n.agent.kill(ctx) }

// start runs a part of the lab's program on the node, with its output in a file of the lab's directory.
func (n *Node) start(name string, args []string) (*program, error) {
	p := &program{log: filepath.Join(n.lab.Dir, n.Name+"-"+name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(n.lab.program, append([]string{name}, args...)...)
	p.cmd.Dir = n.lab.Dir
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := errors.Join(n.lab.spawner.Start(p.cmd, n.Netns), out.Close()); err != nil {
		return nil, fmt.Errorf("%s on %s: %w", name, n.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// kill ends the program at once and waits for its end.
func (p *program) kill(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Logs returns the last lines of what the programs of the lab wrote.
func (l *Lab) Logs() string {
	var b strings.Builder
	if l.Cluster != nil {
		b.WriteString(l.Cluster.Logs())
	}
	for _, n := range l.Nodes {
		for _, p := range []*program{n.agent, n.proxy} {
			if p != nil {
				fmt.Fprintf(&b, "--- last lines of %s\n%s\n", p.log, controlplane.Tail(p.log))
			}
		}
	}
	return b.String()
}

package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/dataplane"
)

// TestModes shows on both modes of kube-proxy that the lab behaves as a cluster does.
func TestModes(t *testing.T) {
	for name, o := range map[string]dataplane.Options{
		"nftables": {ProxyMode: dataplane.NFTables, Nodes: 2, IPv6: true},
		"iptables": {ProxyMode: dataplane.IPTables, Nodes: 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := up(t, o)
			t.Run("local", func(t *testing.T) { p.testLocal(t) })
			t.Run("terminating", func(t *testing.T) { p.testTerminating(t) })
			t.Run("api server away", func(t *testing.T) { p.testAPIServerAway(t) })
			t.Run("node programs", func(t *testing.T) { p.testNodePrograms(t) })
		})
	}
}

// testLocal: policy Local keeps the client's address, drops on a node without a pod, and the health check says which is which.
func (p *place) testLocal(t *testing.T) {
	e := p.lab.Env(t)
	svc, err := p.lab.Service(t.Context(), e.Namespace, "web", dataplane.LoadBalancer)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := p.lab.Deployment(t.Context(), e.Namespace, "web", 1)
	if err != nil {
		t.Fatal(err)
	}
	with, without := p.node(t, pods[0].Spec.NodeName)
	check := func(node, client netip.Addr) {
		t.Helper()
		answer := p.served(t, nodePort(node, svc))
		want := dataplane.Answer{Pod: pods[0].Name, Namespace: e.Namespace, Node: with.Name, Client: netip.AddrPortFrom(client, answer.Client.Port())}
		if *answer != want {
			t.Errorf("answer %+v, want %+v", *answer, want)
		}
	}
	check(with.Addr, p.client.Addr)
	p.dropped(t, nodePort(without.Addr, svc))
	p.health(t, with, svc, "200")
	p.health(t, without, svc, "status 503")
	if p.lab.IPv6 {
		check(with.Addr6, p.client.Addr6)
		p.dropped(t, nodePort(without.Addr6, svc))
	}
	if err := p.lab.FlushConntrack(t.Context()); err != nil {
		t.Error(err)
	}
}

// testTerminating: while a pod terminates and serves, the slice says so, the health check fails, and kube-proxy goes on
// serving through it until it ends.
func (p *place) testTerminating(t *testing.T) {
	e := p.lab.Env(t)
	svc, err := p.lab.Service(t.Context(), e.Namespace, "web", dataplane.LoadBalancer)
	if err != nil {
		t.Fatal(err)
	}
	pod := e.Pod("web", "node-1", func(pod *corev1.Pod) {
		template := dataplane.Template("web", dataplane.WithSIGTERM(dataplane.KeepAccepting(time.Hour)), dataplane.WithGrace(time.Hour))
		pod.Spec.Containers, pod.Spec.TerminationGracePeriodSeconds = template.Spec.Containers, template.Spec.TerminationGracePeriodSeconds
	})
	e.Pod("other", "node-2", func(pod *corev1.Pod) { pod.Labels[dataplane.AppLabel] = "web" })
	node, other := p.node(t, "node-1")
	p.served(t, nodePort(node.Addr, svc))
	p.served(t, nodePort(other.Addr, svc))
	if err := p.lab.Client.CoreV1().Pods(e.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.health(t, node, svc, "status 503")
	e.Wait("a terminating endpoint that serves", func(ctx context.Context) (bool, string, error) {
		endpoints, err := p.lab.Endpoints(ctx, e.Namespace, "web")
		for i := range endpoints {
			c := endpoints[i].Conditions
			if *endpoints[i].NodeName == node.Name {
				return !*c.Ready && *c.Serving && *c.Terminating, fmt.Sprintf("ready=%v serving=%v terminating=%v", *c.Ready, *c.Serving, *c.Terminating), err
			}
		}
		return false, "no endpoint", err
	})
	if answer := p.served(t, nodePort(node.Addr, svc)); answer.Pod != pod.Name {
		t.Errorf("pod %q answers, want the terminating %q", answer.Pod, pod.Name)
	}
	if err := p.lab.Signal(t.Context(), e.Namespace, pod.Name, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e.Gone(pod.Name, pod.UID)
	p.dropped(t, nodePort(node.Addr, svc))
	p.served(t, nodePort(other.Addr, svc))
}

// testAPIServerAway: packets flow without the API server, and what happened meanwhile is written when it is back.
func (p *place) testAPIServerAway(t *testing.T) {
	e := p.lab.Env(t)
	svc, err := p.lab.Service(t.Context(), e.Namespace, "web")
	if err != nil {
		t.Fatal(err)
	}
	pod := e.Pod("web", "node-1")
	node, _ := p.node(t, "node-1")
	p.served(t, nodePort(node.Addr, svc))
	if err := p.lab.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.served(t, nodePort(node.Addr, svc)) // without the API server
	if err := p.lab.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.lab.Signal(t.Context(), e.Namespace, pod.Name, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e.Wait("the pod started again", func(ctx context.Context) (bool, string, error) {
		pod, err := p.lab.Client.CoreV1().Pods(e.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		s := pod.Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.Ready, fmt.Sprintf("%d restarts, ready %v", s.RestartCount, s.Ready), nil
	})
	p.served(t, nodePort(node.Addr, svc))
}

// testNodePrograms: rules stay without kube-proxy; pods die with their agent and come back with it, at the same address.
func (p *place) testNodePrograms(t *testing.T) {
	e := p.lab.Env(t)
	svc, err := p.lab.Service(t.Context(), e.Namespace, "web", dataplane.LoadBalancer)
	if err != nil {
		t.Fatal(err)
	}
	pod := e.Pod("web", "node-1")
	node, _ := p.node(t, "node-1")
	to := nodePort(node.Addr, svc)
	p.served(t, to)
	if err := node.StopProxy(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.served(t, to) // without kube-proxy
	if _, err := get(t.Context(), p.client, netip.AddrPortFrom(node.Addr, uint16(svc.Spec.HealthCheckNodePort)), ""); err == nil {
		t.Error("somebody answers the health check without kube-proxy")
	}
	for range 3 { // what one leaves behind must not stand in the way of the next
		if err := node.StopAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.silent(t, to) // its pods die with it, a moment later
		if err := node.StartAgent(); err != nil {
			t.Fatal(err)
		}
		e.PodsReady("web", 1)
	}
	if err := errors.Join(node.StartProxy(), node.WaitProxy(t.Context())); err != nil {
		t.Fatal(err)
	}
	if answer := p.served(t, to); answer.Pod != pod.Name {
		t.Errorf("pod %q answers, want %q", answer.Pod, pod.Name)
	}
	p.health(t, node, svc, "200")
	again, err := p.lab.Client.CoreV1().Pods(e.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again.Status.PodIP != pod.Status.PodIP || len(again.Status.PodIPs) != len(pod.Status.PodIPs) {
		t.Errorf("addresses %v, before %v", again.Status.PodIPs, pod.Status.PodIPs)
	}
}

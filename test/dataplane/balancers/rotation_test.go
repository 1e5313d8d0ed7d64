package balancers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/controlplane"
)

// app runs a pod on every node and makes a Service of them for a balancer, which then carries it.
func app(t *testing.T, b Balancer) *corev1.Service {
	t.Helper()
	env := lab.Env(t)
	ctx := t.Context()
	if _, err := lab.DaemonSet(ctx, env.Namespace, "web"); err != nil {
		t.Fatal(err)
	}
	svc, err := lab.Service(ctx, env.Namespace, "web", b.Traits().Service)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Carry(ctx, svc); err != nil {
		t.Fatal(err)
	}
	return svc
}

// answers makes requests and counts the answers by node; a failed one fails the test.
func answers(t *testing.T, b Balancer, svc *corev1.Service, requests int) map[string]int {
	t.Helper()
	nodes := map[string]int{}
	for range requests {
		answer, err := Request(t.Context(), client, b.Target(svc))
		if err != nil {
			t.Errorf("%s: %v", b.Traits().Name, err)
			continue
		}
		nodes[answer.Node]++
		if preserved := answer.Client.Addr() == client.Addr; preserved != b.Traits().Source {
			t.Errorf("the pod saw %s, want the client's address: %t", answer.Client, b.Traits().Source)
		}
	}
	return nodes
}

// TestRotation shows for each balancer that it carries requests to every node that it says it does, takes a node out by its
// own means while requests arrive elsewhere, and puts it back.
func TestRotation(t *testing.T) {
	needLab(t)
	for _, b := range set.Balancers {
		t.Run(b.Traits().Name, func(t *testing.T) {
			svc := app(t, b)
			in, err := b.Shown(t.Context(), svc)
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{true: 1, false: len(lab.Nodes)}[b.Traits().OneNode]; len(in) != want {
				t.Fatalf("in rotation: %v, want %d", in, want)
			}
			got := answers(t, b, svc, 60)
			if nodes := slices.Sorted(maps.Keys(got)); !slices.Equal(nodes, in) {
				t.Errorf("answers by node: %v, want all of %v", got, in)
			}
			node := in[0]
			if err := b.Remove(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			waitForwards(t, b, svc, node, false)
			if got := answers(t, b, svc, 60); got[node] > 0 || len(got) == 0 {
				t.Errorf("answers by node after %s left: %v", node, got)
			}
			if err := b.Return(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			waitForwards(t, b, svc, node, true)
			if got := answers(t, b, svc, 60); got[node] == 0 {
				t.Errorf("answers by node after %s came back: %v", node, got)
			}
		})
	}
}

// waitForwards waits until a node is in the rotation, or out of it, both as the balancer shows it and as its data plane is.
func waitForwards(t *testing.T, b Balancer, svc *corev1.Service, node string, in bool) {
	t.Helper()
	what := fmt.Sprintf("%s in the rotation of %s: %t", node, b.Traits().Name, in)
	err := controlplane.Poll(t.Context(), startTimeout, what, func(ctx context.Context) (bool, string, error) {
		shown, err := b.Shown(ctx, svc)
		if err != nil {
			return false, "", err
		}
		forwards := shown
		if f, ok := b.(Forwarding); ok {
			if forwards, err = f.Forwards(ctx, svc); err != nil {
				return false, "", err
			}
		}
		done := slices.Contains(shown, node) == in && slices.Contains(forwards, node) == in
		known := ""
		if l, ok := b.(*L2); ok { // what the client itself has heard of comes a moment later
			known, err = l.Neighbour(ctx, svc)
			done = done && (known == node) == in
		}
		return done, fmt.Sprintf("shown: %v, forwarded to: %v, known to the client: %q", shown, forwards, known), err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMeasure times a removal by each balancer's own means.
func TestMeasure(t *testing.T) {
	needLab(t)
	for _, b := range set.Balancers {
		t.Run(b.Traits().Name, func(t *testing.T) {
			svc := app(t, b)
			in, err := b.Shown(t.Context(), svc)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Measure(t.Context(), b, svc, client, in[0])
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", got)
			if lost := got.Failed - got.Reset; got.Requests < 100 || lost > 0 || b.Traits().Drains && got.Failed > 0 {
				t.Errorf("%d of %d requests failed, %d of them reset", got.Failed, got.Requests, got.Reset)
			}
		})
	}
}

package admission

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/safely"
	"github.com/safedrain/safedrain/pkg/guard"
)

// ahead is Live with some reads that are under way before anybody asks for them. All of them begin after the review came, so
// that they are as fresh as any.
type ahead struct {
	Live
	nodes map[string]reading[*corev1.Node]
	pods  map[guard.Key]reading[*corev1.Pod]
}

// ahead begins to read what the verdict on a pod will rest on if slices show the pod as it is: its node, and the pods beside
// it. So a review takes one way to the API server and back, not three; what slices do not show is read as it turns up.
func (e *Evictions) ahead(ctx context.Context, pod guard.Key) Live {
	var node string
	var company []guard.Key
	e.Store.Read(func(v *cluster.StoreView) {
		uid, name, ok := v.Hint(pod)
		facts, there := v.Node(name)
		if ok && there {
			node = name
			company = guard.Company(guard.Eviction{Pod: guard.PodFacts{Key: pod, UID: uid, Node: name, Ready: true}, Node: facts}, v)
		}
	})
	if node == "" {
		return e.Live
	}
	a := &ahead{Live: e.Live, pods: make(map[guard.Key]reading[*corev1.Pod], len(company))}
	a.nodes = map[string]reading[*corev1.Node]{node: begin(func() (*corev1.Node, error) { return e.Live.Node(ctx, node) })}
	for _, key := range company[:min(len(company), firstReads)] {
		a.pods[key] = begin(func() (*corev1.Pod, error) { return e.Live.Pod(ctx, key.Namespace, key.Name) })
	}
	return a
}

// Pod reads a pod.
func (a *ahead) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if begun, ok := a.pods[guard.Key{Namespace: namespace, Name: name}]; ok {
		return begun()
	}
	return a.Live.Pod(ctx, namespace, name)
}

// Node reads a node.
func (a *ahead) Node(ctx context.Context, name string) (*corev1.Node, error) {
	if begun, ok := a.nodes[name]; ok {
		return begun()
	}
	return a.Live.Node(ctx, name)
}

// reading waits for something that is being read. Its panic is that of whoever waits.
type reading[T any] func() (T, error)

func begin[T any](read func() (T, error)) reading[T] {
	var value T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = safely.Call(func() (err error) {
			value, err = read()
			return err
		})
	}()
	return func() (T, error) {
		<-done
		var fault *safely.Panic
		if errors.As(err, &fault) {
			panic(fault)
		}
		return value, err
	}
}

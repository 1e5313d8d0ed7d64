package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var nodeResource = schema.GroupResource{Resource: "nodes"}

// modelAPI keeps nodes as an API server does: one commit order, conflicts on a stale resourceVersion, and lists at an
// exact resourceVersion out of its history.
type modelAPI struct {
	mu      sync.Mutex
	rv      int
	nodes   map[string]*corev1.Node
	history map[int]map[string]*corev1.Node
	compact int // lists below this resourceVersion are expired
}

func newModelAPI(nodes ...*corev1.Node) *modelAPI {
	m := &modelAPI{rv: 100, nodes: map[string]*corev1.Node{}, history: map[int]map[string]*corev1.Node{}}
	for _, n := range nodes {
		m.commit(n.DeepCopy())
	}
	return m
}

func plainNodes(n int) []*corev1.Node {
	var all []*corev1.Node
	for i := range n {
		all = append(all, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1)}})
	}
	return all
}

func (m *modelAPI) commit(n *corev1.Node) *corev1.Node {
	m.rv++
	n.ResourceVersion = strconv.Itoa(m.rv)
	m.nodes[n.Name] = n
	m.history[m.rv] = maps.Clone(m.nodes)
	return n.DeepCopy()
}

// set changes a node as somebody else would.
func (m *modelAPI) set(name string, change func(*corev1.Node)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[name].DeepCopy()
	change(n)
	m.commit(n)
}

func (m *modelAPI) node(name string) *corev1.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes[name].DeepCopy()
}

func (m *modelAPI) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.nodes[name]
	if !ok {
		return nil, apierrors.NewNotFound(nodeResource, name)
	}
	return n.DeepCopy(), nil
}

func (m *modelAPI) List(_ context.Context, opts metav1.ListOptions) (*corev1.NodeList, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := m.nodes
	if opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		rv, err := strconv.Atoi(opts.ResourceVersion)
		if err != nil || rv < m.compact {
			return nil, apierrors.NewResourceExpired("too old resource version")
		}
		state = m.history[rv]
	}
	list := &corev1.NodeList{}
	for _, name := range slices.Sorted(maps.Keys(state)) {
		list.Items = append(list.Items, *state[name].DeepCopy())
	}
	return list, nil
}

func (m *modelAPI) Patch(_ context.Context, name string, pt types.PatchType, data []byte, _ metav1.PatchOptions,
	_ ...string,
) (*corev1.Node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.nodes[name]
	if !ok {
		return nil, apierrors.NewNotFound(nodeResource, name)
	}
	if pt != types.MergePatchType {
		return nil, apierrors.NewBadRequest("only merge patches")
	}
	var want struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(data, &want); err != nil {
		return nil, err
	}
	if rv := want.Metadata.ResourceVersion; rv != "" && rv != n.ResourceVersion {
		return nil, apierrors.NewConflict(nodeResource, name, fmt.Errorf("has %s, patch wants %s", n.ResourceVersion, rv))
	}
	old, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	var doc, change map[string]any
	if err := errors.Join(json.Unmarshal(old, &doc), json.Unmarshal(data, &change)); err != nil {
		return nil, err
	}
	merged, err := json.Marshal(merge(doc, change))
	if err != nil {
		return nil, err
	}
	next := &corev1.Node{}
	if err := json.Unmarshal(merged, next); err != nil {
		return nil, err
	}
	return m.commit(next), nil
}

// merge is RFC 7396.
func merge(doc, patch map[string]any) map[string]any {
	if doc == nil {
		doc = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(doc, k)
		case map[string]any:
			child, _ := doc[k].(map[string]any)
			doc[k] = merge(child, v)
		default:
			doc[k] = v
		}
	}
	return doc
}

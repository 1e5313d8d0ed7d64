package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/guard/placement"
)

const (
	// nodesRead is how many nodes' pods are read at first, and nodesMost how many one by one before the pods of the whole
	// cluster are listed at once.
	nodesRead = 32
	nodesMost = 256
)

// placing reads where pods can be placed: every node at once, the pods that a constraint is about by its selector, and
// what runs on candidate nodes node by node, until each pod in question has a node that has room for it. A large cluster
// is never read as a whole for a pod that fits on one of the first nodes.
type placing struct {
	*loader
	snap     *Snapshot
	cluster  *placement.Cluster
	at       map[string]int // nodes of cluster by name
	have     map[types.UID]bool
	question []*corev1.Pod // replacements of the endpoints of Local Services
	note     string

	mu     sync.Mutex
	in     interner
	labels *labelSets
}

func newPlacing(l *loader, s *Snapshot) *placing {
	in := interner{}
	return &placing{
		loader: l, snap: s, cluster: &placement.Cluster{}, at: map[string]int{}, have: map[types.UID]bool{}, in: in, labels: newLabelSets(in),
	}
}

// placement reads where the pods of the scope's nodes can be placed: nothing where none of a Local Service goes.
func (l *loader) placement(ctx context.Context, s *Snapshot) error {
	if !l.scope.Placement {
		return nil
	}
	nodes := uniqueSorted(l.scope.Nodes)
	if l.scope.AllPods {
		nodes = slices.Sorted(maps.Keys(s.nodeAt))
	}
	going := s.endpointsGoing(nodes)
	if len(going) == 0 {
		return nil
	}
	p := newPlacing(l, s)
	for _, pod := range going {
		p.question = append(p.question, placement.Replacement(pod))
	}
	for i, n := range s.nodes {
		p.at[n.Name] = i
		p.cluster.Nodes = append(p.cluster.Nodes, placement.Node{Object: n})
	}
	for _, n := range nodes {
		p.cluster.Nodes[p.at[n]].Whole = true
		for _, pod := range s.podsOn[n] {
			p.take(pod)
		}
	}
	if err := p.around(ctx); err != nil {
		return err
	}
	if !l.scope.AllPods {
		if err := p.room(ctx); err != nil {
			return err
		}
	}
	s.placing, s.placedBy = p.cluster, p.note
	s.missing = distinct(append(s.missing, l.into.missing...))
	return nil
}

// endpointsGoing lists the pods on some nodes that a controller replaces and that are endpoints of a Local Service.
func (s *Snapshot) endpointsGoing(nodes []string) []*corev1.Pod {
	serving := map[types.UID]bool{}
	for _, node := range nodes {
		for _, i := range s.onNode[node] {
			svc := &s.services[i]
			if !externalLocal(svc.object) && !internalLocal(svc.object) {
				continue
			}
			for _, sl := range svc.slices {
				for k := range sl.endpoints {
					if e := &sl.endpoints[k]; e.node == node && e.pod != "" {
						serving[e.pod] = true
					}
				}
			}
		}
	}
	var out []*corev1.Pod
	for _, node := range uniqueSorted(nodes) {
		for _, pod := range s.podsOn[node] {
			owner := metav1.GetControllerOf(pod)
			if serving[pod.UID] && owner != nil && owner.Kind != "DaemonSet" && !guard.Finished(pod) {
				out = append(out, pod)
			}
		}
	}
	return out
}

// take adds a pod that is on a node, once.
func (p *placing) take(pod *corev1.Pod) {
	if !placement.Counts(pod) || p.have[pod.UID] {
		return
	}
	p.have[pod.UID] = true
	o := placement.OccupantOf(pod)
	o.Labels = p.labels.of(o.Labels)
	o.Namespace, o.Node, o.Owner = p.in.of(o.Namespace), p.in.of(o.Node), types.UID(p.in.of(string(o.Owner)))
	p.cluster.Pods = append(p.cluster.Pods, o)
}

// list adds the pods of one LIST.
func (p *placing) list(ctx context.Context, namespace string, opts metav1.ListOptions) error {
	return p.pages(ctx, listPods, opts, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := p.clients.Kubernetes.CoreV1().Pods(namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range page.Items {
			p.take(&page.Items[i])
		}
		return page.Continue, nil
	}, func() {})
}

// room reads what runs on candidate nodes until every pod in question has one that it fits on, or none is left unread.
func (p *placing) room(ctx context.Context) error {
	want := nodesRead + len(p.snap.podsOn[p.scope.Nodes[0]])/4
	read := 0
	for {
		next := p.unread(want)
		if len(next) == 0 {
			return nil
		}
		if read+len(next) > nodesMost {
			p.note = fmt.Sprintf("every pod of the cluster was listed: on the first %d nodes a pod has no place", read)
			return p.everything(ctx)
		}
		group, gctx := errgroup.WithContext(ctx)
		group.SetLimit(maxParallel)
		for _, n := range next {
			group.Go(func() error {
				return p.list(gctx, "", metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n).String()})
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		for _, n := range next {
			p.cluster.Nodes[p.at[n]].Whole = true
		}
		read += len(next)
		want *= 2
	}
}

// everything lists every pod.
func (p *placing) everything(ctx context.Context) error {
	if err := p.list(ctx, "", metav1.ListOptions{}); err != nil {
		return err
	}
	for i := range p.cluster.Nodes {
		p.cluster.Nodes[i].Whole = true
	}
	return nil
}

// unread picks nodes to read next: candidates of the pods that fit on no node that was read, in even steps over all of
// them, so that every pool and zone is tried.
func (p *placing) unread(want int) []string {
	state := placement.New(p.cluster)
	for i := range p.snap.facts {
		if n := &p.snap.facts[i]; n.Leaving != guard.Stays {
			state.Leave(n.Name, string(n.Leaving))
		}
	}
	for _, n := range p.scope.Nodes {
		state.Leave(n, "drained")
		for _, pod := range p.snap.podsOn[n] {
			state.Evict(pod.UID)
		}
	}
	picked := map[string]bool{}
	var lacking [][]string
	for _, at := range state.PlaceAll(p.question) {
		open := slices.DeleteFunc(at.Answer.Unread, func(n string) bool { return p.cluster.Nodes[p.at[n]].Whole })
		if at.Node == "" && len(open) > 0 {
			lacking = append(lacking, open)
		}
	}
	for _, from := range lacking {
		share := min(len(from), cmp.Or(want/len(lacking), 1))
		for k := range share {
			picked[from[k*len(from)/share]] = true
		}
	}
	return sortedSet(picked)
}

func sortedSet(of map[string]bool) []string {
	out := make([]string, 0, len(of))
	for name := range of {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

package keeper

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// learn finds the marks that those who ran before have left: one paged LIST of the metadata of all pods, of which nothing is
// kept but the marks. On which node a marked pod runs, slices say; those that are in none are read.
func (c *Controller) learn(ctx context.Context) error {
	pods, err := Marked(ctx, c.Metadata)
	if err != nil {
		return err
	}
	nodes := c.nodesOf(pods)
	for _, p := range pods {
		node, ok := nodes[p.UID]
		if !ok {
			pod, err := c.Client.CoreV1().Pods(p.Key.Namespace).Get(ctx, p.Key.Name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("read pod %s: %w", p.Key, err)
			}
			if err != nil || pod.UID != p.UID || pod.Spec.NodeName == "" {
				continue
			}
			node = pod.Spec.NodeName
		}
		c.mu.Lock()
		at := place{p.Key.Namespace, node}
		if c.places[at] == nil {
			c.places[at] = &placeState{}
		}
		c.places[at].marked = append(c.places[at].marked, markedPod{p.UID, p.Key.Name, strings.Join(p.Marks, ",")})
		c.mu.Unlock()
	}
	return nil
}

// nodesOf finds the nodes of pods in the slices of the Services that they are keepers of.
func (c *Controller) nodesOf(pods []MarkedPod) map[types.UID]string {
	services := map[guard.Key]bool{}
	for _, p := range pods {
		for _, name := range p.Marks {
			services[guard.Key{Namespace: p.Key.Namespace, Name: name}] = true
		}
	}
	nodes := map[types.UID]string{}
	for key := range services {
		c.Store.Read(func(v *cluster.StoreView) {
			svc, ok := v.Service(key)
			if !ok {
				return
			}
			for i := range svc.Ports {
				for _, e := range svc.Ports[i].Endpoints {
					nodes[e.Pod] = e.Node
				}
			}
		})
	}
	return nodes
}

// MarkedPod is a pod with a mark.
type MarkedPod struct {
	Key   guard.Key
	UID   types.UID
	Marks []string
}

// Marked lists the pods with a mark.
func Marked(ctx context.Context, client metadata.Interface) ([]MarkedPod, error) {
	var out []MarkedPod
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).List(ctx, opts)
		if apierrors.IsResourceExpired(err) && opts.Continue != "" {
			opts.Continue, out = "", nil
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the metadata of all pods: %w", err)
		}
		for i := range page.Items {
			p := &page.Items[i]
			if value, ok := p.Annotations[guard.AnnotationKeeper]; ok {
				marks, _ := guard.KeeperOf(value)
				out = append(out, MarkedPod{guard.Key{Namespace: p.Namespace, Name: p.Name}, p.UID, marks})
			}
		}
		if page.Continue == "" {
			return out, nil
		}
		opts.Continue = page.Continue
	}
}

// Clear takes every mark and its cost off the pods, as when the gate is uninstalled, and returns how many there were; a dry
// run only counts them. The controller must not run.
func Clear(ctx context.Context, client kubernetes.Interface, all metadata.Interface, dryRun bool) (int, error) {
	pods, err := Marked(ctx, all)
	if err != nil || dryRun {
		return len(pods), err
	}
	for i, p := range pods {
		if err := clearPod(ctx, client, p.Key); err != nil {
			return i, err
		}
	}
	return len(pods), nil
}

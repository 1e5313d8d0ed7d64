package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/test/customkinds"
)

// pageSize is the size of safedrain's pages.
const pageSize = 500

// page lists one page and returns the token of the next one.
type page func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error)

// bareLists are the lists that a plan for one node needs, by client-go, protobuf where the server has it, and nothing done
// with what they return.
func bareLists(config *rest.Config, node string, metalLB bool) ([]page, error) {
	client, err := kubernetes.NewForConfig(cluster.ConfigFor(config))
	if err != nil {
		return nil, err
	}
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	onNode := "spec.nodeName=" + node
	lists := []page{
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.DiscoveryV1().EndpointSlices("").List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Services("").List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Nodes().List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.PolicyV1().PodDisruptionBudgets("").List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.AppsV1().DaemonSets("").List(ctx, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = onNode
			return client.CoreV1().Pods("").List(ctx, o)
		},
	}
	if metalLB {
		for _, k := range customkinds.MetalLB() {
			lists = append(lists, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return custom.Resource(k.GroupVersionResource).List(ctx, o)
			})
		}
	}
	return lists, nil
}

// listBare carries the lists out, `atOnce` at a time, over fresh connections, and returns how long that took.
func listBare(ctx context.Context, config *rest.Config, node string, metalLB bool, atOnce int) (time.Duration, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = fmt.Sprint(time.Now().UnixNano()) // no connection is shared with an earlier run
	lists, err := bareLists(config, node, metalLB)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for _, list := range lists {
		group.Go(func() error { return all(gctx, list) })
	}
	err = group.Wait()
	return time.Since(began), err
}

// all lists every page.
func all(ctx context.Context, list page) error {
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		got, err := list(ctx, opts)
		if err != nil {
			return err
		}
		meta, ok := got.(metav1.ListInterface)
		if !ok {
			return fmt.Errorf("%T is no list", got)
		}
		if opts.Continue = meta.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}

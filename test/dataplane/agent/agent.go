// Package agent stands in the place of a kubelet: it runs the pods that are bound to one node of a lab as processes of this
// machine, each in a network namespace with an address of its own, or in the node's for pods of the host's network.
//
// A container without a command runs the lab's own server, whatever its image; one with a command runs that executable of
// the machine, with the environment of the pod's spec and KUBECONFIG. Readiness (probes, gates and the annotations of
// package dataplane), restarts, preStop hooks, SIGTERM, the grace period and SIGKILL are as a kubelet does them. Volumes,
// resources, liveness and startup probes, postStart hooks and host ports are ignored. A pod that cannot be run, such as one
// with init containers, stays Pending with the reason in its status.
package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/safedrain/safedrain/test/dataplane/spawn"
)

// options are the agent's flags.
type options struct {
	kubeconfig string
	node       string
	netns      string
	dir        string
	lease      time.Duration
}

// agent runs the pods of one node.
type agent struct {
	options
	client  kubernetes.Interface
	spawner *spawn.Spawner
	network *network
	log     *slog.Logger
	hostIPs []netip.Addr
	workers map[types.UID]*worker // used by the informer's goroutine alone
}

// Run runs an agent with command line arguments until ctx ends. It has to be started in the node's namespace.
func Run(ctx context.Context, args []string) error {
	a := &agent{workers: map[types.UID]*worker{}, log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	flags.StringVar(&a.kubeconfig, "kubeconfig", "", "the kubeconfig file of the cluster")
	flags.StringVar(&a.node, "node", "", "the name of the node")
	flags.StringVar(&a.netns, "netns", "", "the name of the node's network namespace")
	flags.StringVar(&a.dir, "dir", "", "where pods have their working directories and logs")
	flags.DurationVar(&a.lease, "lease", 10*time.Second, "how often the node's lease is renewed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", a.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	if a.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	a.spawner = spawn.New(false)
	defer a.spawner.Close()
	return a.run(ctx)
}

func (a *agent) run(ctx context.Context) error {
	node, err := a.client.CoreV1().Nodes().Get(ctx, a.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		ip, err := netip.ParseAddr(address.Address)
		if err != nil {
			return fmt.Errorf("node %q: %w", a.node, err)
		}
		a.hostIPs = append(a.hostIPs, ip)
	}
	if len(a.hostIPs) == 0 {
		return fmt.Errorf("node %q has no InternalIP", a.node)
	}
	if a.network, err = newNetwork(ctx, a.netns, node.Spec.PodCIDRs, a.hostIPs[0]); err != nil {
		return err
	}
	if err := a.register(ctx); err != nil {
		return err
	}
	go a.renew(ctx)
	return a.watch(ctx)
}

// watch hands every pod of the node to a worker, and tells it of every change.
func (a *agent) watch(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", a.node).String()
	}))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { a.update(ctx, o) },
		UpdateFunc: func(before, now any) {
			// A pod that was replaced by one of the same name between two lists shows as an update.
			if old, ok := before.(*corev1.Pod); ok && old.UID != uid(now) {
				a.remove(old)
			}
			a.update(ctx, now)
		},
		DeleteFunc: a.remove,
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

func uid(o any) types.UID {
	if pod, ok := o.(*corev1.Pod); ok {
		return pod.UID
	}
	return ""
}

func (a *agent) update(ctx context.Context, o any) {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Spec.NodeName != a.node {
		return
	}
	if w := a.workers[pod.UID]; w != nil {
		w.update(pod)
		return
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		if pod.DeletionTimestamp != nil { // it ended before this agent started, or before it was deleted
			go a.finish(ctx, pod)
		}
		return
	}
	w := newWorker(a, pod)
	a.workers[pod.UID] = w
	go w.run(ctx)
}

// remove ends what still runs of a pod that is no longer there.
func (a *agent) remove(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if w := a.workers[uid(o)]; w != nil {
		w.remove()
		delete(a.workers, uid(o))
	}
}

// errInit says why a pod is not run.
var errInit = errors.New("init containers are not run here")

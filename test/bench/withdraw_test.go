package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/customkinds"
)

// A withdrawal may add this to the time of a drain, beside the time that the balancer itself needs and the settle time.
const addedTime = time.Second

// fronted is a node with one of two pods of an app, which MetalLB fronts or nobody.
type fronted struct {
	*controlplane.Env

	dynamic dynamic.Interface
	node    string
	other   string
	service *corev1.Service
}

func newFronted(b *testing.B, withService bool) *fronted {
	b.Helper()
	f := &fronted{Env: whole(b).Env(b)}
	f.Nodes(3)
	pods := f.Deployment("gw", 2, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: d.Spec.Selector,
			}},
		}}
	})
	f.node, f.other = pods[0].Spec.NodeName, pods[1].Spec.NodeName
	var err error
	if f.dynamic, err = dynamic.NewForConfig(whole(b).Config()); err == nil {
		err = customkinds.Define(b.Context(), f.dynamic, customkinds.MetalLB()...)
	}
	if err != nil {
		b.Fatal(err)
	}
	if withService {
		f.front()
	}
	return f
}

// lastAddress makes every Service's address its own.
var lastAddress int

// front makes the Service, and MetalLB's objects for it.
func (f *fronted) front() {
	f.Helper()
	lastAddress++
	ip := fmt.Sprintf("198.19.0.%d", lastAddress)
	f.create(customkinds.MetalLB()[0], f.Namespace, map[string]any{"addresses": []any{ip + "/32"}})
	f.create(customkinds.MetalLB()[1], f.Namespace, map[string]any{"ipAddressPools": []any{f.Namespace}})
	f.ServiceStatus(f.Service("gw", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer }), ip)
	f.EndpointsReady("gw", 2)
	svc, err := f.Client.CoreV1().Services(f.Namespace).Get(f.Context(), "gw", metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	f.service = svc
}

func (f *fronted) create(kind customkinds.Kind, name string, spec map[string]any) {
	f.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kind.GroupVersion().String(), "kind": kind.Name, "spec": spec}}
	u.SetName(name)
	if _, err := f.dynamic.Resource(kind.GroupVersionResource).Namespace(f.Namespace).Create(f.Context(), u, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
}

// speaker plays MetalLB: some time after the node got the label, the status names the other node. It returns a function
// that waits for that and returns how long it really was from the label to the status.
func (f *fronted) speaker(delay time.Duration) (moved func() time.Duration) {
	f.Helper()
	node, err := f.Client.CoreV1().Nodes().Get(f.Context(), f.node, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	b := metallbtest.New(metallbtest.Config{
		Kind: metallbtest.L2, Dynamic: f.dynamic, Kubernetes: f.Client, Namespace: f.Namespace, Other: f.other,
		Target: lbhooks.Target{Service: f.service, Node: node},
	})
	if err := b.Show(f.Context(), hooktest.In); err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.Context(), runTimeout)
	w, err := f.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", f.node).String(), ResourceVersion: node.ResourceVersion,
	})
	if err != nil {
		cancel()
		f.Fatal(err)
	}
	took := make(chan time.Duration, 1)
	go func() {
		defer cancel()
		defer w.Stop()
		for e := range w.ResultChan() {
			if n, ok := e.Object.(*corev1.Node); ok && n.Labels[lbhooks.ExcludeLabel] != "" {
				began := time.Now()
				<-time.After(delay)
				if err := b.Show(ctx, hooktest.Out); err != nil {
					f.Errorf("move the status: %v", err)
				}
				took <- time.Since(began)
				return
			}
		}
		close(took) // the label never came
	}()
	return func() time.Duration { return <-took }
}

// drain drains the node and returns how long that took.
func (f *fronted) drain(b *testing.B) time.Duration {
	b.Helper()
	c, output := run(b, whole(b).Config(), safedrain, f.node)
	if c.Code != 0 {
		b.Fatalf("exit code %d\n%s", c.Code, output)
	}
	if testing.Verbose() {
		b.Logf("%.2f s\n%s", seconds(c.Took), output)
	}
	return c.Took
}

// BenchmarkWithdrawal drains a node with a pod behind MetalLB, whose status moves some time after the label, and a node
// with the same pod behind nothing.
func BenchmarkWithdrawal(b *testing.B) {
	settle := metallb.NewL2(nil, nil).Describe().Settle
	for _, delay := range []time.Duration{200 * time.Millisecond, 2 * time.Second} {
		b.Run(delay.String(), func(b *testing.B) {
			var added, without, with, moving []time.Duration
			for b.Loop() {
				for range 3 {
					plain := newFronted(b, false).drain(b)
					f := newFronted(b, true)
					moved := f.speaker(delay)
					took := f.drain(b)
					left := moved()
					if left == 0 {
						b.Fatal("the node was drained without the label")
					}
					without, with, moving = append(without, plain), append(with, took), append(moving, left)
					added = append(added, took-plain-left-settle)
				}
			}
			over := time.Duration(median(added, seconds) * float64(time.Second))
			if over > addedTime {
				b.Errorf("the withdrawal added %s beside the %.2f s of the balancer and %s to settle, want %s at most",
					over, median(moving, seconds), settle, addedTime)
			}
			if took := median(with, seconds); took < (delay + settle).Seconds() {
				b.Errorf("a drain of %.2f s did not wait for the status and to settle", took)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(without, seconds), "without-s")
			b.ReportMetric(median(with, seconds), "with-s")
			b.ReportMetric(median(moving, seconds), "balancer-s")
			b.ReportMetric(over.Seconds(), "over-s")
		})
	}
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/cluster/clustertest"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/apiproxy"
)

// What is promised of placement on the large cluster, for a node that is full.
const (
	placementTime   = time.Second // that it adds to a plan, unless it needs every pod
	placementLists  = 1.3         // of a bare LIST of all pods, that it adds to one that does
	placementMemory = 400 << 20   // of a plan that needs every pod
	placementRuns   = 5
	podsInAll       = 150_000
	podsElsewhere   = 30 // on every other node
)

// need is what the replacements of a node's endpoints ask for.
type need struct {
	node   string
	allOf  bool // the plan lists every pod of the cluster, and says so
	adorns func(*corev1.Pod)
}

// needs are the situations by name: no constraint, one whose selector says which pods it is about, and one about all of them.
func needs() map[string]need {
	return map[string]need{
		"free": {node: "n0", adorns: func(*corev1.Pod) {}},
		"spread": {node: "n1", adorns: func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
			}}
		}},
		"apart from everything": {node: "n2", allOf: true, adorns: func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}, NamespaceSelector: &metav1.LabelSelector{},
				}},
			}}
		}},
	}
}

// BenchmarkPlacement plans the drain of a full node of the large cluster with and without placement, beside the program itself.
func BenchmarkPlacement(b *testing.B) {
	objects := clustertest.Large(largeNodes, largeServices, len(needs()))
	objects.AddBudgets(largeBudgets)
	for _, n := range needs() {
		for _, p := range objects.Pods {
			if p.Spec.NodeName == n.node {
				n.adorns(p)
			}
		}
	}
	fill(objects)
	l := newLargeWith(b, objects)
	objects.Nodes, objects.Slices, objects.Pods, objects.Budgets = nil, nil, nil, nil // they are on the server now
	runtime.GC()
	for _, name := range slices.Sorted(maps.Keys(needs())) {
		b.Run(name, func(b *testing.B) { l.placement(b, needs()[name]) })
	}
}

// fill adds pods behind no Service until the first nodes are full and every other one has its share. All ask for some room.
func fill(o *clustertest.Cluster) {
	on := map[string]int{}
	for _, p := range o.Pods {
		on[p.Spec.NodeName]++
		p.Spec.Containers[0].Resources.Requests = someRoom()
	}
	like := o.Pods[0].DeepCopy()
	like.Spec.Affinity, like.Spec.TopologySpreadConstraints = nil, nil
	for i := range 20 { // as large as pods are
		like.Spec.Containers[0].Env = append(like.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: strings.Repeat("x", 60)})
	}
	for i, n := range o.Nodes {
		want := podsElsewhere
		if on[n.Name] > 0 {
			want = podsOnNode
		}
		for j := on[n.Name]; j < want && len(o.Pods) < podsInAll; j++ {
			p := like.DeepCopy()
			p.Name, p.Namespace = fmt.Sprintf("%s%d-%d", filler, i, j), fmt.Sprintf("ns%d", (i+j)%100)
			p.Labels = map[string]string{"app": fmt.Sprintf("%s%d", filler, i%500), "pod-template-hash": "5d4f8c7b6d"}
			p.Spec.NodeName = n.Name
			o.Pods = append(o.Pods, p)
		}
	}
}

// filler begins the names of pods behind no Service, which have no status: nothing here asks for it.
const filler = "filler"

func isFiller(p *corev1.Pod) bool { return strings.HasPrefix(p.Name, filler) }

func someRoom() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
}

// placement measures the three in turn; the middle of several runs counts.
func (l *large) placement(b *testing.B, n need) {
	b.Helper()
	p := through(b, l.Cluster)
	_, said := run(b, p.Config(), safedrain, "plan", n.node)
	podLists := p.Count(func(r *apiproxy.Request) bool { return r.Path == "/api/v1/pods" && !r.Continue })
	all := p.Count(func(r *apiproxy.Request) bool {
		return r.Path == "/api/v1/pods" && !strings.Contains(r.Query, "Selector=") && !r.Continue
	})
	saysSo := strings.Contains(said, "every pod of the cluster was listed")
	b.Logf("%d LISTs of pods, %d of them of all pods, said: %t", podLists, all, saysSo)
	if (all > 0) != n.allOf || saysSo != n.allOf {
		b.Errorf("every pod was listed %d times, and that it was is said: %t; want %t of both", all, saysSo, n.allOf)
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	var with, without, program, list []cost
	for b.Loop() {
		for range placementRuns {
			for _, m := range []struct {
				into *[]cost
				line []string
			}{
				{&without, []string{self, planHere, n.node, "false"}}, {&with, []string{self, planHere, n.node, "true"}},
				{&program, []string{safedrain, "plan", n.node}}, {&list, []string{self, listHere}},
			} {
				if m.into == &list && !n.allOf {
					continue
				}
				c, output := run(b, l.Config(), m.line[0], m.line[1:]...)
				if c.Code != 0 && c.Code != 3 {
					b.Fatalf("%v: exit code %d\n%s", m.line, c.Code, output)
				}
				*m.into = append(*m.into, c)
			}
		}
	}
	b.Logf("without %s\nwith %s\nprogram %s\nbare LIST %s", costs(without), costs(with), costs(program), costs(list))
	took := func(c cost) float64 { return seconds(c.Took) }
	added := median(with, took) - median(without, took)
	memory := median(program, func(c cost) float64 { return float64(c.MaxRSS) })
	most := seconds(placementTime)
	if n.allOf {
		most += placementLists * median(list, took)
		b.ReportMetric(median(list, took), "list-s")
	}
	if added > most {
		b.Errorf("placement added %.2f s to the plan, want %.2f s at most", added, most)
	}
	if memory > placementMemory {
		b.Errorf("the plan took %.0f MiB, want %d at most", memory/(1<<20), placementMemory>>20)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(without, took), "without-s")
	b.ReportMetric(added, "added-s")
	b.ReportMetric(memory/(1<<20), "MiB")
	b.ReportMetric(float64(podLists), "pod-lists")
}

// listHere makes this test program list every pod of the cluster page by page and keep none: what no plan that needs all of them
// can do without.
const listHere = "list-here"

func listAlone() error {
	ctx := context.Background()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	config.QPS = -1
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	pods := 0
	for o := (metav1.ListOptions{Limit: 500}); ; {
		page, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return err
		}
		pods += len(page.Items)
		if o.Continue = page.Continue; o.Continue == "" {
			break
		}
	}
	if pods == 0 {
		return errors.New("no pod is there")
	}
	return nil
}

// planHere makes this test program plan the drain of a node, as the program under test does, with placement or without.
const planHere = "plan-here"

func planAlone(node, places string) error {
	ctx := context.Background()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	placement, err := strconv.ParseBool(places)
	if err != nil {
		return err
	}
	c, err := cluster.NewClients(config)
	if err != nil {
		return err
	}
	hooks := hookset.New(hookset.Deps{Kubernetes: c.Kubernetes, Dynamic: c.Dynamic})
	snap, err := cluster.Load(ctx, c, hooks.Descriptions(), cluster.Scope{Nodes: []string{node}, Placement: placement})
	if err != nil {
		return err
	}
	hooks.Check(ctx, snap, []string{node})
	plan := guard.Plan(snap.Index(hooks, []string{node}), guard.Request{Nodes: []string{node}, Cluster: snap.Placement()})
	if len(plan.Services) == 0 || len(plan.Pods) != podsOnNode {
		return fmt.Errorf("a plan of %d Services and %d pods", len(plan.Services), len(plan.Pods))
	}
	return nil
}

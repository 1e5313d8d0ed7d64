package gate

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/internal/gate/admission"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/sweep"
)

// TestEvictTwoAtOnce: of the two endpoints of a node never both go, whichever is asked for first and whoever answers.
func TestEvictTwoAtOnce(t *testing.T) {
	s := newEvictScene(t, 3, admission.Enforce)
	nodes := s.Nodes(2)
	s.Service("edge")
	s.Pod("c", nodes[1], labelled("edge"))
	client := s.unthrottled()
	for round := range 5 {
		pods := []string{fmt.Sprintf("a%d", round), fmt.Sprintf("b%d", round)}
		for _, p := range pods {
			s.Pod(p, nodes[0], labelled("edge"))
		}
		s.seen("edge", 3)
		s.mark(pods[round%2], "edge")
		allowed := s.evictAll(client, append(slices.Clone(pods), pods...))
		if allowed != 1 {
			t.Errorf("round %d: %d pods of 2 went, want 1: the one that is not kept", round, allowed)
		}
		if code, _ := s.evict("v1", pods[round%2], "dryRun=All"); code != 429 {
			t.Errorf("round %d: the last one may go: %d", round, code)
		}
		for _, p := range pods {
			_ = client.CoreV1().Pods(s.Namespace).Delete(s.Context(), p, *metav1.NewDeleteOptions(0))
			s.Gone(p, "")
		}
	}
}

// evictAll evicts pods, all at once and each once, and returns how many different ones went.
func (s *evictScene) evictAll(client kubernetes.Interface, pods []string) int {
	s.Helper()
	went, _ := s.burst(client, pods)
	return went
}

// burst evicts pods, all at once and each once, and returns how many different ones went, and how often each code was the answer.
func (s *evictScene) burst(client kubernetes.Interface, pods []string) (went int, codes map[int]int) {
	s.Helper()
	var mu sync.Mutex
	gone := map[string]bool{}
	codes = map[int]int{}
	var running sync.WaitGroup
	start := make(chan struct{})
	for _, pod := range pods {
		running.Go(func() {
			<-start
			code := 0
			err := client.CoreV1().RESTClient().Post().Namespace(s.Namespace).Resource("pods").Name(pod).SubResource("eviction").
				MaxRetries(0).Body(eviction(pod)).Do(s.Context()).StatusCode(&code).Error()
			mu.Lock()
			defer mu.Unlock()
			gone[pod] = gone[pod] || err == nil
			codes[code]++
		})
	}
	close(start)
	running.Wait()
	for _, yes := range gone {
		if yes {
			went++
		}
	}
	return went, codes
}

// crowd is 50 Services of policy Local with two or three endpoints on each of two nodes.
type crowd struct {
	*evictScene
	client   kubernetes.Interface
	nodes    []string
	services []string
	pods     map[string]*corev1.Pod // that are to be there, as they were made
}

const (
	crowdServices = 50
	crowdAtOnce   = 200
)

func newCrowd(s *evictScene) *crowd {
	s.Helper()
	c := &crowd{evictScene: s, pods: map[string]*corev1.Pod{}}
	c.client, c.nodes = c.unthrottled(), c.Nodes(2)
	for i := range crowdServices {
		name := fmt.Sprintf("s%d", i)
		c.Service(name)
		c.services = append(c.services, name)
		for k, node := range c.nodes {
			for j := range 2 + (i+k)%2 {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d-%d", name, k, j), Labels: map[string]string{controlplane.AppLabel: name}},
					Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.invalid/app"}}},
				}
				if j == i%2 {
					pod.Annotations = map[string]string{guard.AnnotationKeeper: name}
				}
				c.pods[pod.Name] = pod
			}
		}
	}
	return c
}

// fill makes the pods that are missing, and waits until every replica knows them all.
func (c *crowd) fill() {
	c.Helper()
	var making sync.WaitGroup
	for pod := range maps.Values(c.pods) {
		making.Go(func() {
			_, _ = c.client.CoreV1().Pods(c.Namespace).Create(c.Context(), pod.DeepCopy(), metav1.CreateOptions{})
		})
	}
	making.Wait()
	c.Wait("every pod Ready", func(context.Context) (bool, string, error) {
		n := 0
		for _, per := range c.serving() {
			n += per
		}
		if n < len(c.pods) {
			for pod := range maps.Values(c.pods) { // one that was terminating a moment ago
				_, _ = c.client.CoreV1().Pods(c.Namespace).Create(c.Context(), pod.DeepCopy(), metav1.CreateOptions{})
			}
		}
		return n == len(c.pods), fmt.Sprintf("%d of %d", n, len(c.pods)), nil
	})
	c.Wait("every replica knows every endpoint", func(context.Context) (bool, string, error) {
		for _, h := range c.handlers {
			if n := h.endpoints(c.Namespace); n != len(c.pods) {
				return false, fmt.Sprintf("one has %d of %d", n, len(c.pods)), nil
			}
		}
		return true, "", nil
	})
}

// serving counts the Ready pods that stay by Service and node.
func (c *crowd) serving() map[[2]string]int {
	c.Helper()
	list, err := c.client.CoreV1().Pods(c.Namespace).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	out := map[[2]string]int{}
	for i := range list.Items {
		if f := guard.PodFactsOf(&list.Items[i]); f.Ready && !f.Terminating && !f.Finished {
			out[[2]string{f.Labels[controlplane.AppLabel], f.Node}]++
		}
	}
	return out
}

// some draws the pods of a round; many are drawn more than once.
func (c *crowd) some(r *rand.Rand) []string {
	names := slices.Sorted(maps.Keys(c.pods))
	pods := make([]string, crowdAtOnce)
	for i := range pods {
		pods[i] = names[r.IntN(len(names))]
	}
	return pods
}

// covered fails where a node has no endpoint of a Service left.
func (c *crowd) covered(round int) {
	c.Helper()
	serving := c.serving()
	for _, service := range c.services {
		for _, node := range c.nodes {
			if serving[[2]string{service, node}] == 0 {
				c.Errorf("round %d: %s has no endpoint left on %s", round, service, node)
			}
		}
	}
}

// TestEvictCrowd: rounds of 200 evictions at once through three replicas, over 50 Services with two or three endpoints on a
// node: a node never loses its last one.
func TestEvictCrowd(t *testing.T) {
	c := newCrowd(newEvictScene(t, 3, admission.Enforce))
	rounds, total := sweep.Size(t, 2, 20), 0
	for round := range rounds {
		c.fill()
		total += c.evictAll(c.client, c.some(rand.New(rand.NewPCG(uint64(round), 1))))
		c.covered(round)
	}
	if total < rounds*crowdServices/2 {
		t.Errorf("%d evictions were allowed in all: the test shows little", total)
	}
	t.Logf("%d of %d evictions were allowed in %d rounds", total, rounds*crowdAtOnce, rounds)
}

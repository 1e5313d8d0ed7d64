package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

// ttlAnnotation is what the node controllers put on every node, besides labels, a moment after its creation.
const ttlAnnotation = "node.alpha.kubernetes.io/ttl"

// scene is the place of one test of the flow: nodes, a journal of what happens to them and to the pods, and the nodes as
// they stood before.
type scene struct {
	*controlplane.Env
	nodes   []string
	dynamic dynamic.Interface
	journal *journal
	former  map[string]*corev1.Node
	via     string // the kubeconfig that safedrain is run with
}

// newScene makes a test parallel and gives it nodes.
func newScene(t *testing.T, nodes int, mutate ...func(*corev1.Node)) *scene {
	t.Helper()
	t.Parallel()
	s := &scene{Env: cluster.Env(t), via: kubeconfig, former: map[string]*corev1.Node{}}
	s.nodes = s.Nodes(nodes, mutate...)
	var err error
	if s.dynamic, err = dynamic.NewForConfig(cluster.Config()); err != nil {
		t.Fatal(err)
	}
	s.journal = newJournal(s)
	return s
}

// pod makes a pod of an app on a node. No controller owns it, so nothing comes in its place.
func (s *scene) pod(app, name, node string, mutate ...func(*corev1.Pod)) *corev1.Pod {
	s.Helper()
	relabel := func(p *corev1.Pod) { p.Labels[controlplane.AppLabel] = app }
	return s.Pod(name, node, append([]func(*corev1.Pod){relabel}, mutate...)...)
}

// end lets a pod end at once, whatever it waits for.
func (s *scene) end(name string) {
	s.Helper()
	must(s.Env, s.Client.CoreV1().Pods(s.Namespace).Delete(s.Context(), name, *metav1.NewDeleteOptions(0)))
}

// graceOf gives a pod its grace period, of which it serves as many seconds after its deletion.
func graceOf(seconds int64, serves string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = &seconds
		if serves != "" {
			p.Annotations[controlplane.TerminatesAfter] = serves
		}
	}
}

// remember notes how the nodes stand, once the controllers have said all they have to say about a new node.
func (s *scene) remember() {
	s.Helper()
	for _, name := range s.nodes {
		s.former[name] = nodeAtRest(s.Env, name)
	}
}

// nodeAtRest reads a node once the controllers have said all they have to say about a new one.
func nodeAtRest(e *controlplane.Env, name string) (node *corev1.Node) {
	e.Helper()
	e.Wait("node "+name+" at rest", func(ctx context.Context) (_ bool, _ string, err error) {
		if node, err = e.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, "", err
		}
		_, labelled := node.Labels["beta.kubernetes.io/os"]
		return node.Annotations[ttlAnnotation] != "" && labelled, fmt.Sprint(node.Labels, node.Annotations, node.Spec.Taints), nil
	})
	return node
}

// standsAsBefore waits until nodes are, but for their status, exactly what they were.
func (s *scene) standsAsBefore(names ...string) {
	s.Helper()
	for _, name := range names {
		want := s.former[name]
		if want == nil {
			s.Fatalf("node %q was not remembered", name)
		}
		diff := ""
		err := controlplane.Poll(s.Context(), time.Minute, "node "+name+" as before", func(ctx context.Context) (bool, string, error) {
			got, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			diff = cmp.Diff(want.Labels, got.Labels) + cmp.Diff(want.Annotations, got.Annotations) +
				cmp.Diff(want.Spec, got.Spec, cmp.Transformer("taint", withoutTime))
			return diff == "", "", nil
		})
		if err != nil {
			s.Errorf("%v\n%s", err, diff)
		}
	}
}

func withoutTime(t corev1.Taint) string { return t.Key + "=" + t.Value + ":" + string(t.Effect) }

// back runs uncordon on nodes, which has to give back exactly what stood there.
func (s *scene) back(names ...string) flowEnd {
	s.Helper()
	e := s.run(append([]string{"uncordon", "--wait-timeout=60s"}, names...)...)
	e.want(s, 0)
	s.standsAsBefore(names...)
	return e
}

// node reads a node.
func (s *scene) node(name string) *corev1.Node {
	s.Helper()
	node, err := s.Client.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return node
}

// patchNode changes a node as somebody else.
func (s *scene) patchNode(name, patch, who string) {
	s.Helper()
	_, err := s.Client.CoreV1().Nodes().Patch(s.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: who})
	if err != nil {
		s.Fatal(err)
	}
}

// holds checks whether a node is cordoned, labelled and claimed.
func (s *scene) holds(name string, cordoned, labelled, claimed bool) {
	s.Helper()
	n := s.node(name)
	_, has := n.Annotations[claim.Annotation]
	got := fmt.Sprint(n.Spec.Unschedulable, n.Labels[lbhooks.ExcludeLabel] == "true", has)
	if want := fmt.Sprint(cordoned, labelled, claimed); got != want {
		s.Errorf("node %s cordoned, labelled, claimed: %s, want %s", name, got, want)
	}
}

// labelledNow waits until a node bears the exclude label.
func (s *scene) labelledNow(name string) {
	s.Helper()
	s.Wait("label on "+name, func(ctx context.Context) (bool, string, error) {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err == nil && n.Labels[lbhooks.ExcludeLabel] == "true", "none", err
	})
}

// alive checks that a pod is there, of the same UID, and not terminating.
func (s *scene) alive(pods ...*corev1.Pod) {
	s.Helper()
	for _, p := range pods {
		got, err := s.Client.CoreV1().Pods(p.Namespace).Get(s.Context(), p.Name, metav1.GetOptions{})
		if err != nil || got.UID != p.UID || got.DeletionTimestamp != nil {
			s.Errorf("pod %s was to stay: %v, UID %s for %s, deletion %v", p.Name, err, got.UID, p.UID, got.DeletionTimestamp)
		}
	}
}

// gone checks that pods of these UIDs are no longer there.
func (s *scene) gone(pods ...*corev1.Pod) {
	s.Helper()
	for _, p := range pods {
		if got, err := s.Client.CoreV1().Pods(p.Namespace).Get(s.Context(), p.Name, metav1.GetOptions{}); err == nil && got.UID == p.UID {
			s.Errorf("pod %s is still there", p.Name)
		}
	}
}

// flowEnd is a command that has ended.
type flowEnd struct {
	stdout, stderr string
	code           int
	took           time.Duration
}

// run runs safedrain to its end.
func (s *scene) run(args ...string) flowEnd {
	s.Helper()
	return s.start(args...).end(s)
}

// flowRun is a command that runs.
type flowRun struct {
	*running
	at time.Time
}

func (s *scene) start(args ...string) flowRun {
	s.Helper()
	return flowRun{program{path: binary, kubeconfig: s.via}.start(s, args...), time.Now()}
}

func (b flowRun) end(s *scene) flowEnd {
	s.Helper()
	stdout, stderr, code := b.wait(s)
	return flowEnd{stdout, stderr, code, time.Since(b.at)}
}

// want ends the test if the exit code or the texts on stderr are not as they should be.
func (e flowEnd) want(s *scene, code int, texts ...string) {
	s.Helper()
	if e.code != code {
		s.Fatalf("exit code %d after %s, want %d\nstdout:\n%s\nstderr:\n%s", e.code, e.took, code, e.stdout, e.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(e.stderr, text) {
			s.Errorf("stderr lacks %q:\n%s", text, e.stderr)
		}
	}
}

// report reads the document that -o json leaves.
func (e flowEnd) report(s *scene) *guard.DrainReport {
	s.Helper()
	var r guard.DrainReport
	if err := json.Unmarshal([]byte(e.stdout), &r); err != nil {
		s.Fatalf("stdout is no report: %v\n%s\n%s", err, e.stdout, e.stderr)
	}
	return &r
}

// findingCodes lists the findings of a report: of the drain, of its Services and of its entries.
func findingCodes(r *guard.DrainReport) map[guard.Code]guard.Finding {
	out := map[guard.Code]guard.Finding{}
	add := func(all []guard.Finding) {
		for _, f := range all {
			out[f.Code] = f
		}
	}
	add(r.Findings)
	for i := range r.Services {
		add(r.Services[i].Findings)
	}
	for i := range r.Withdraw {
		add(r.Withdraw[i].Findings)
	}
	return out
}

// tainted waits until the controllers have given a node that many taints.
func (s *scene) tainted(name string, count int) {
	s.Helper()
	s.Wait("taints of "+name, func(ctx context.Context) (bool, string, error) {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err == nil && len(n.Spec.Taints) == count, "", err
	})
}

package e2e

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
)

var (
	podResource  = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodeResource = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
)

// entry is something that happened, at the resourceVersion that the store gave it: an order in which nothing is late.
type entry struct {
	rv   uint64
	at   time.Time // when it was seen here, and so never before it happened
	text string
}

// journal notes, from watches of the API server, what happens to the pods and nodes of a scene, each thing once:
// "evicted P" when pod P gets its deletionTimestamp, "gone P", "ready P"; "cordoned N", "labelled N", "proven N service".
type journal struct {
	s       *scene
	mu      sync.Mutex
	entries []entry
}

func newJournal(s *scene) *journal {
	s.Helper()
	j := &journal{s: s}
	j.follow(s.dynamic.Resource(podResource).Namespace(s.Namespace), "", podNews)
	j.follow(s.dynamic.Resource(nodeResource), controlplane.PoolLabel+"="+s.Namespace, nodeNews)
	return j
}

// news says what an event shows, as far as it is worth an entry.
type news func(watch.EventType, *unstructured.Unstructured) []string

func podNews(event watch.EventType, u *unstructured.Unstructured) []string {
	var out []string
	if u.GetDeletionTimestamp() != nil || event == watch.Deleted {
		out = append(out, "evicted "+u.GetName())
	}
	if event == watch.Deleted {
		return append(out, "gone "+u.GetName())
	}
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == string(corev1.PodReady) && m["status"] == "True" {
			out = append(out, "ready "+u.GetName())
		}
	}
	return out
}

func nodeNews(_ watch.EventType, u *unstructured.Unstructured) []string {
	var out []string
	if cordoned, _, _ := unstructured.NestedBool(u.Object, "spec", "unschedulable"); cordoned {
		out = append(out, "cordoned "+u.GetName())
	}
	if u.GetLabels()[lbhooks.ExcludeLabel] == "true" {
		out = append(out, "labelled "+u.GetName())
	}
	c, err := claim.Parse(u.GetAnnotations()[claim.Annotation])
	if err != nil {
		return out
	}
	for _, service := range slices.Sorted(maps.Keys(c.Services)) {
		if c.Services[service].ProofAt != nil {
			out = append(out, "proven "+u.GetName()+" "+service)
		}
	}
	return out
}

// follow watches objects until the test ends.
func (j *journal) follow(client dynamic.ResourceInterface, selector string, say news) {
	j.s.Helper()
	ctx := j.s.Context()
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: 1})
	if err != nil {
		j.s.Fatal(err)
	}
	w, err := client.Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		j.s.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			if u, ok := e.Object.(*unstructured.Unstructured); ok && e.Type != watch.Error {
				j.note(u, say(e.Type, u))
			}
		}
	}()
	j.s.Cleanup(func() { w.Stop(); <-done })
}

func (j *journal) note(u *unstructured.Unstructured, texts []string) {
	rv, err := strconv.ParseUint(u.GetResourceVersion(), 10, 64)
	if err != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, text := range texts {
		if j.find(text) == nil {
			j.entries = append(j.entries, entry{rv, time.Now(), text})
		}
	}
}

// begins notes what the test itself is about to do. The store has no place for it in its order.
func (j *journal) begins(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry{at: time.Now(), text: text})
}

func (j *journal) find(text string) *entry {
	for i := range j.entries {
		if j.entries[i].text == text {
			return &j.entries[i]
		}
	}
	return nil
}

// has reports whether something has happened.
func (j *journal) has(text string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.find(text) != nil
}

// get waits for something that must have happened, as far as the watch is behind.
func (j *journal) get(text string) entry {
	j.s.Helper()
	var found entry
	err := controlplane.Poll(j.s.Context(), time.Minute, "journal: "+text, func(context.Context) (bool, string, error) {
		j.mu.Lock()
		defer j.mu.Unlock()
		e := j.find(text)
		if e == nil {
			return false, "not seen; seen: " + j.texts(), nil
		}
		found = *e
		return true, "", nil
	})
	if err != nil {
		j.s.Fatal(err)
	}
	return found
}

func (j *journal) texts() string {
	out := make([]string, len(j.entries))
	for i, e := range j.entries {
		out[i] = e.text
	}
	return strings.Join(out, ", ")
}

// inOrder checks that things happened one after another.
func (j *journal) inOrder(texts ...string) {
	j.s.Helper()
	for i := 1; i < len(texts); i++ {
		a, b := j.get(texts[i-1]), j.get(texts[i])
		if a.rv >= b.rv {
			j.s.Errorf("%q (at %d) did not come before %q (at %d)", a.text, a.rv, b.text, b.rv)
		}
	}
}

// never checks that something did not happen. It is called when what would have come next has been seen.
func (j *journal) never(texts ...string) {
	j.s.Helper()
	for _, text := range texts {
		if j.has(text) {
			j.s.Errorf("%q happened", text)
		}
	}
}

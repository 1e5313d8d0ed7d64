package drain

import (
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// apiServer answers client-go's requests in memory, so that the whole client is in the test: one commit order, conflicts
// on a stale resourceVersion, lists at an exact resourceVersion, watches, graceful termination, slices that follow pods.
type apiServer struct {
	mu       sync.Mutex
	rv       int
	nodes    map[string]*corev1.Node
	history  map[int]map[string]*corev1.Node
	pods     map[string]*corev1.Pod
	services []*corev1.Service
	budgets  []*policyv1.PodDisruptionBudget
	daemons  []appsv1.DaemonSet
	watches  map[*podWatch]bool
	events   []podEvent
	log      []call
	accepted []call // evictions that were carried out

	// ends is how long a pod takes to end once it is deleted; negative: for ever.
	ends func(*corev1.Pod) time.Duration
	// answer, if it returns an error, is the answer to an eviction or deletion.
	answer func(p *corev1.Pod, try int) error
	// removed is called, locked, when a pod has gone; the pod it returns, if any, is there at the same instant.
	removed func(*corev1.Pod) *corev1.Pod
	// before is called, unlocked, before each request is carried out; an error fails it as a broken connection.
	before func(call) error
	// hang leaves requests without an answer until their context ends.
	hang func(call) bool
	// deny fails requests with 403.
	deny  func(call) bool
	tries map[types.UID]int

	held holdObjects
}

// call is one request.
type call struct {
	at     time.Time
	verb   string // get, list, watch, patch, evict, delete
	what   string // nodes/n1, pods, pods/ns/name, ...
	uid    types.UID
	grace  *int64
	dryRun bool

	namespace string // of a list, or of what is created
}

func (c call) String() string { return c.verb + " " + c.what }

func newAPIServer() *apiServer {
	return &apiServer{
		rv: 100, nodes: map[string]*corev1.Node{}, history: map[int]map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{},
		watches: map[*podWatch]bool{}, tries: map[types.UID]int{},
		ends: func(*corev1.Pod) time.Duration { return time.Second },
	}
}

func (s *apiServer) next() string {
	s.rv++
	return strconv.Itoa(s.rv)
}

func (s *apiServer) commitNode(n *corev1.Node) {
	n.ResourceVersion = s.next()
	s.nodes[n.Name] = n
	s.history[s.rv] = maps.Clone(s.nodes)
	s.notifyNode("MODIFIED", n)
}

func (s *apiServer) addNode(n *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commitNode(n)
}

// setNode changes a node as somebody else would.
func (s *apiServer) setNode(name string, change func(*corev1.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name].DeepCopy()
	change(n)
	s.commitNode(n)
}

// deleteNode deletes a node and, as the garbage collector of pods does, what ran on it.
func (s *apiServer) deleteNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		s.notifyNode("DELETED", n)
	}
	delete(s.nodes, name)
	s.next()
	s.history[s.rv] = maps.Clone(s.nodes)
	for key, p := range s.pods {
		if p.Spec.NodeName == name {
			delete(s.pods, key)
			s.notify("DELETED", p)
		}
	}
}

func (s *apiServer) node(name string) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name].DeepCopy()
}

func podName(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

func (s *apiServer) addPod(p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addPodLocked(p)
}

func (s *apiServer) addPodLocked(p *corev1.Pod) {
	p.ResourceVersion = s.next()
	s.pods[podName(p)] = p
	s.notify("ADDED", p)
}

func (s *apiServer) pod(name string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name]
}

func (s *apiServer) calls(verb string) []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []call
	for _, c := range s.log {
		if c.verb == verb {
			out = append(out, c)
		}
	}
	return out
}

// removePod evicts or deletes.
func (s *apiServer) removePod(name string, c call) (any, error) {
	p := s.pods[name]
	if p == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	if s.answer != nil {
		s.tries[p.UID]++
		if err := s.answer(p, s.tries[p.UID]); err != nil {
			return nil, err
		}
	}
	if c.uid != "" && c.uid != p.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, errors.New("the UID does not match"))
	}
	ok := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess, Code: 201}
	if c.dryRun || p.DeletionTimestamp != nil {
		return ok, nil
	}
	s.accepted = append(s.accepted, c)
	s.terminate(p)
	return ok, nil
}

// terminate deletes a pod gracefully. The lock is held.
func (s *apiServer) terminate(p *corev1.Pod) {
	grace := 30 * time.Second
	if p.Spec.TerminationGracePeriodSeconds != nil {
		grace = time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	p = p.DeepCopy()
	at := metav1.NewTime(time.Now().Add(grace))
	p.DeletionTimestamp, p.ResourceVersion = &at, s.next()
	s.pods[podName(p)] = p
	s.notify("MODIFIED", p)
	if after := s.ends(p); after >= 0 {
		time.AfterFunc(after, func() { s.finish(p) })
	}
}

func (s *apiServer) finish(p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.pods[podName(p)]; now == nil || now.UID != p.UID {
		return
	}
	delete(s.pods, podName(p))
	s.collect(p)
	p = p.DeepCopy()
	p.ResourceVersion = s.next()
	s.notify("DELETED", p)
	if s.removed == nil {
		return
	}
	if next := s.removed(p); next != nil {
		s.addPodLocked(next)
	}
}

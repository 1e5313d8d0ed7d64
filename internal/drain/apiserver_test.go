package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	watches  map[*podWatch]bool
	events   []podEvent
	log      []call
	accepted []call // evictions that were carried out

	// ends is how long a pod takes to end once it is deleted; negative: for ever.
	ends func(*corev1.Pod) time.Duration
	// answer, if it returns an error, is the answer to an eviction or deletion.
	answer func(p *corev1.Pod, try int) error
	// removed is called, unlocked, when a pod has gone.
	removed func(*corev1.Pod)
	// before is called, unlocked, before each request is carried out; an error fails it as a broken connection.
	before func(call) error
	// deny fails requests with 403.
	deny  func(call) bool
	tries map[types.UID]int
}

// call is one request.
type call struct {
	at     time.Time
	verb   string // get, list, watch, patch, evict, delete
	what   string // nodes/n1, pods, pods/ns/name, ...
	uid    types.UID
	grace  *int64
	dryRun bool
}

func (c call) String() string { return c.verb + " " + c.what }

// podEvent is one line of a watch.
type podEvent struct {
	rv   int
	node string
	data []byte
}

type podWatch struct {
	node string
	w    *io.PipeWriter
	ch   chan []byte
}

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

func (s *apiServer) node(name string) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name].DeepCopy()
}

func podName(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

func (s *apiServer) addPod(p *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// notify tells the watches of a pod's node. The lock is held.
func (s *apiServer) notify(kind string, p *corev1.Pod) {
	data, err := json.Marshal(map[string]any{"type": kind, "object": typed(p)})
	if err != nil {
		panic(err)
	}
	data = append(data, '\n')
	s.events = append(s.events, podEvent{s.rv, p.Spec.NodeName, data})
	for w := range s.watches {
		if w.node == "" || w.node == p.Spec.NodeName {
			w.ch <- data
		}
	}
}

// replay hands a new watch what it missed, or what is there when it begins at no resourceVersion. The lock is held.
func (s *apiServer) replay(w *podWatch, from string) {
	if from == "" {
		for _, name := range slices.Sorted(maps.Keys(s.pods)) {
			if p := s.pods[name]; p.Spec.NodeName == w.node {
				data, _ := json.Marshal(map[string]any{"type": "ADDED", "object": typed(p)})
				w.ch <- append(data, '\n')
			}
		}
		return
	}
	rv, _ := strconv.Atoi(from)
	for _, e := range s.events {
		if e.rv > rv && e.node == w.node {
			w.ch <- e.data
		}
	}
}

func typed(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return p
}

// RoundTrip is the server.
func (s *apiServer) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
		_ = req.Body.Close()
	}
	c := readCall(req, body)
	c.at = time.Now()
	s.mu.Lock()
	s.log = append(s.log, c)
	before, deny := s.before, s.deny
	s.mu.Unlock()
	if before != nil {
		if err := before(c); err != nil {
			return nil, err
		}
	}
	if deny != nil && deny(c) {
		return respond(req, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods/eviction"}, "",
			errors.New(`User "eve" cannot create resource "pods/eviction" in API group ""`)))
	}
	if c.verb == "watch" {
		return s.watch(req, c)
	}
	obj, err := s.carryOut(req.URL.Query(), c, body)
	return respond(req, obj, err)
}

func readCall(req *http.Request, body []byte) call {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	rest := parts[2:]
	if parts[0] == "apis" {
		rest = parts[3:]
	}
	c := call{dryRun: req.URL.Query().Get("dryRun") != ""}
	if rest[0] == "namespaces" && len(rest) >= 4 {
		c.what = rest[2] + "/" + rest[1] + "/" + rest[3]
	} else {
		c.what = strings.Join(rest, "/")
	}
	single := strings.Contains(c.what, "/")
	switch {
	case req.URL.Query().Get("watch") != "":
		c.verb = "watch"
	case req.Method == http.MethodGet && single:
		c.verb = "get"
	case req.Method == http.MethodGet:
		c.verb = "list"
	case req.Method == http.MethodPatch:
		c.verb = "patch"
	case req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/eviction"):
		c.verb = "evict"
		var e policyv1.Eviction
		_ = json.Unmarshal(body, &e)
		readOptions(&c, e.DeleteOptions)
	case req.Method == http.MethodDelete:
		c.verb = "delete"
		var o metav1.DeleteOptions
		_ = json.Unmarshal(body, &o)
		readOptions(&c, &o)
	}
	return c
}

func readOptions(c *call, o *metav1.DeleteOptions) {
	if o == nil {
		return
	}
	c.grace = o.GracePeriodSeconds
	if o.Preconditions != nil && o.Preconditions.UID != nil {
		c.uid = *o.Preconditions.UID
	}
	c.dryRun = c.dryRun || len(o.DryRun) > 0
}

func respond(req *http.Request, obj any, err error) (*http.Response, error) {
	code := http.StatusOK
	header := http.Header{"Content-Type": {"application/json"}}
	if err != nil {
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			return nil, err
		}
		st := status.Status()
		st.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		code, obj = int(st.Code), st
		if st.Details != nil && st.Details.RetryAfterSeconds > 0 {
			header.Set("Retry-After", strconv.Itoa(int(st.Details.RetryAfterSeconds)))
		}
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Header: header, Request: req,
		Body: io.NopCloser(bytes.NewReader(data)), ContentLength: int64(len(data)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

func (s *apiServer) carryOut(q url.Values, c call, body []byte) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, name, _ := strings.Cut(c.what, "/")
	switch {
	case kind == "nodes" && c.verb == "get":
		return s.getNode(name)
	case kind == "nodes" && c.verb == "list":
		return s.listNodes(q)
	case kind == "nodes" && c.verb == "patch":
		return s.patchNode(name, body, c.dryRun)
	case kind == "pods" && c.verb == "list":
		return s.listPods(q), nil
	case kind == "pods" && c.verb == "get":
		if p := s.pods[name]; p != nil {
			return typed(p), nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	case kind == "pods":
		return s.removePod(name, c)
	}
	return s.listOther(kind)
}

func (s *apiServer) getNode(name string) (any, error) {
	n, ok := s.nodes[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	n = n.DeepCopy()
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	return n, nil
}

func (s *apiServer) listNodes(q url.Values) (any, error) {
	state := s.nodes
	if q.Get("resourceVersionMatch") == "Exact" {
		rv, _ := strconv.Atoi(q.Get("resourceVersion"))
		for state = nil; state == nil && rv > 0; rv-- {
			state = s.history[rv]
		}
	}
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	list.ResourceVersion = strconv.Itoa(s.rv)
	for _, name := range slices.Sorted(maps.Keys(state)) {
		list.Items = append(list.Items, *state[name])
	}
	return list, nil
}

func (s *apiServer) patchNode(name string, body []byte, dryRun bool) (any, error) {
	n, ok := s.nodes[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	var change map[string]any
	if err := json.Unmarshal(body, &change); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if meta, ok := change["metadata"].(map[string]any); ok && meta["resourceVersion"] != nil && meta["resourceVersion"] != n.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, errors.New("stale"))
	}
	old, _ := json.Marshal(n)
	var doc map[string]any
	_ = json.Unmarshal(old, &doc)
	merged, _ := json.Marshal(mergeJSON(doc, change))
	next := &corev1.Node{}
	if err := json.Unmarshal(merged, next); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if !dryRun {
		s.commitNode(next)
	}
	next = next.DeepCopy()
	next.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	return next, nil
}

// mergeJSON is RFC 7396.
func mergeJSON(doc, patch map[string]any) map[string]any {
	if doc == nil {
		doc = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(doc, k)
		case map[string]any:
			child, _ := doc[k].(map[string]any)
			doc[k] = mergeJSON(child, v)
		default:
			doc[k] = v
		}
	}
	return doc
}

func (s *apiServer) listPods(q url.Values) corev1.PodList {
	node := strings.TrimPrefix(q.Get("fieldSelector"), "spec.nodeName=")
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	list.ResourceVersion = strconv.Itoa(s.rv)
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		if p := s.pods[name]; q.Get("fieldSelector") == "" || p.Spec.NodeName == node {
			list.Items = append(list.Items, *p.DeepCopy())
		}
	}
	return list
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
	if now := s.pods[podName(p)]; now == nil || now.UID != p.UID {
		s.mu.Unlock()
		return
	}
	delete(s.pods, podName(p))
	p = p.DeepCopy()
	p.ResourceVersion = s.next()
	s.notify("DELETED", p)
	removed := s.removed
	s.mu.Unlock()
	if removed != nil {
		removed(p)
	}
}

func (s *apiServer) watch(req *http.Request, _ call) (*http.Response, error) {
	r, w := io.Pipe()
	pw := &podWatch{node: strings.TrimPrefix(req.URL.Query().Get("fieldSelector"), "spec.nodeName="), w: w, ch: make(chan []byte, 4096)}
	s.mu.Lock()
	s.watches[pw] = true
	s.replay(pw, req.URL.Query().Get("resourceVersion"))
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(req.Context())
	go func() {
		defer cancel()
		for {
			select {
			case data, ok := <-pw.ch:
				if !ok {
					_ = w.Close()
					return
				}
				if _, err := w.Write(data); err != nil {
					return
				}
			case <-ctx.Done():
				_ = w.CloseWithError(ctx.Err())
				return
			}
		}
	}()
	body := &watchBody{PipeReader: r, close: func() {
		s.mu.Lock()
		delete(s.watches, pw)
		s.mu.Unlock()
		cancel()
	}}
	return &http.Response{
		StatusCode: 200, Status: "OK", Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: body, ContentLength: -1, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// breakWatches ends every watch as a server that restarts does.
func (s *apiServer) breakWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		close(w.ch)
		delete(s.watches, w)
	}
}

type watchBody struct {
	*io.PipeReader
	close func()
}

func (b *watchBody) Close() error {
	b.close()
	return b.PipeReader.Close()
}

func (s *apiServer) listOther(kind string) (any, error) {
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(s.rv)}
	switch kind {
	case "services":
		l := corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: meta}
		for _, svc := range s.services {
			l.Items = append(l.Items, *svc)
		}
		return l, nil
	case "endpointslices":
		l := discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}, ListMeta: meta}
		for _, svc := range s.services {
			l.Items = append(l.Items, s.sliceOf(svc))
		}
		return l, nil
	case "poddisruptionbudgets":
		l := policyv1.PodDisruptionBudgetList{TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudgetList"}, ListMeta: meta}
		for _, b := range s.budgets {
			l.Items = append(l.Items, *b)
		}
		return l, nil
	case "daemonsets":
		return appsv1.DaemonSetList{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSetList"}, ListMeta: meta}, nil
	}
	return nil, fmt.Errorf("the test has no %s", kind)
}

// sliceOf is what the EndpointSlice controller makes of the pods. The lock is held.
func (s *apiServer) sliceOf(svc *corev1.Service) discoveryv1.EndpointSlice {
	port, name, protocol := int32(8080), "", corev1.ProtocolTCP
	slice := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: &port, Name: &name, Protocol: &protocol}},
	}
	for i, key := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[key]
		if p.Namespace != svc.Namespace || !labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels)) {
			continue
		}
		ready := p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		yes, gone, node := true, p.DeletionTimestamp != nil, p.Spec.NodeName
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &yes, Terminating: &gone},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		})
	}
	return slice
}

package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// podEvent is one line of a watch.
type podEvent struct {
	rv   int
	node string
	data []byte
}

// podWatch is a watch of the pods of a node or, where it is ofNode, of the node itself.
type podWatch struct {
	node   string
	ofNode bool
	w      *io.PipeWriter
	ch     chan []byte
}

// notifyNode tells the watches of a node. The lock is held.
func (s *apiServer) notifyNode(kind string, n *corev1.Node) {
	for w := range s.watches {
		if w.ofNode && w.node == n.Name {
			w.ch <- eventOf(kind, typedNode(n))
		}
	}
}

func eventOf(kind string, object any) []byte {
	data, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		panic(err)
	}
	return append(data, '\n')
}

// notify tells the watches of a pod's node. The lock is held.
func (s *apiServer) notify(kind string, p *corev1.Pod) {
	data := eventOf(kind, typed(p))
	s.events = append(s.events, podEvent{s.rv, p.Spec.NodeName, data})
	for w := range s.watches {
		if !w.ofNode && (w.node == "" || w.node == p.Spec.NodeName) {
			w.ch <- data
		}
	}
}

// replay hands a new watch what it missed, or what is there when it begins at no resourceVersion. The lock is held.
func (s *apiServer) replay(w *podWatch, from string) {
	if w.ofNode {
		if n := s.nodes[w.node]; n != nil {
			w.ch <- eventOf("ADDED", typedNode(n))
		}
		return
	}
	if from == "" {
		for _, name := range slices.Sorted(maps.Keys(s.pods)) {
			if p := s.pods[name]; p.Spec.NodeName == w.node {
				w.ch <- eventOf("ADDED", typed(p))
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
	before, deny, hang := s.before, s.deny, s.hang
	s.mu.Unlock()
	if hang != nil && hang(c) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
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
	} else if rest[0] == "namespaces" && len(rest) == 3 {
		c.what, c.namespace = rest[2], rest[1]
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
	case req.Method == http.MethodPost:
		c.verb = "create"
	case req.Method == http.MethodPut:
		c.verb = "update"
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
	case kind == "pods" && c.verb == "patch":
		return s.patchPod(name, body)
	case kind == "pods":
		return s.removePod(name, c)
	case c.verb != "list" || c.namespace != "" || q.Get("labelSelector") != "":
		return s.holdRequest(kind, name, c, q, body)
	}
	return s.listOther(kind)
}

func (s *apiServer) watch(req *http.Request, c call) (*http.Response, error) {
	r, w := io.Pipe()
	_, node, _ := strings.Cut(req.URL.Query().Get("fieldSelector"), "=")
	pw := &podWatch{node: node, ofNode: c.what == "nodes", w: w, ch: make(chan []byte, 4096)}
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

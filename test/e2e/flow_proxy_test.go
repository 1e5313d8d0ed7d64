package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/test/controlplane"
)

// evictionCall is one eviction that safedrain sent.
type evictionCall struct {
	pod      string
	eviction policyv1.Eviction
	began    time.Time
	ended    time.Time
	status   int
}

// relay stands between safedrain and the API server. It notes every eviction and hands it on, unless the test has an
// answer of its own.
type relay struct {
	s      *scene
	server *httptest.Server
	// answer may answer the nth eviction of a pod, counted from one, in place of the API server; nil hands it on.
	answer func(pod string, n int) http.HandlerFunc
	// hold, if set, may make any other call wait before it is handed on.
	hold func(*http.Request)

	mu    sync.Mutex
	calls []*evictionCall
	nth   map[string]int
}

// relay makes safedrain run through a relay from now on.
func (s *scene) relay(answer func(pod string, n int) http.HandlerFunc) *relay {
	s.Helper()
	config := cluster.Config()
	transport, err := rest.TransportFor(config)
	if err != nil {
		s.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		s.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
	}
	r := &relay{s: s, answer: answer, nth: map[string]int{}}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/eviction") {
			if r.hold != nil {
				r.hold(req)
			}
			proxy.ServeHTTP(w, req)
			return
		}
		r.evict(w, req, proxy)
	}))
	s.Cleanup(r.server.CloseClientConnections)
	s.Cleanup(r.server.Close)
	s.via = filepath.Join(s.TempDir(), "relay.kubeconfig")
	config.Host = r.server.URL
	if err := controlplane.WriteKubeconfig(config, s.via); err != nil {
		s.Fatal(err)
	}
	return r
}

func (r *relay) evict(w http.ResponseWriter, req *http.Request, proxy http.Handler) {
	call := &evictionCall{began: time.Now()}
	parts := strings.Split(req.URL.Path, "/")
	call.pod = parts[len(parts)-2]
	body, err := io.ReadAll(req.Body)
	if err == nil {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &call.eviction)
	}
	if err != nil {
		r.s.Errorf("read the eviction of %s: %v", call.pod, err)
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	r.mu.Lock()
	r.calls = append(r.calls, call)
	r.nth[call.pod]++
	n := r.nth[call.pod]
	r.mu.Unlock()
	rec := &statusWriter{ResponseWriter: w}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		call.ended, call.status = time.Now(), rec.status
	}()
	if r.answer != nil {
		if own := r.answer(call.pod, n); own != nil {
			own(rec, req)
			return
		}
	}
	proxy.ServeHTTP(rec, req)
}

type statusWriter struct {
	http.ResponseWriter

	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// together makes the next two patches of nodes wait for each other, so that both runs are past their plans.
func (r *relay) together() {
	var patches atomic.Int32
	both := make(chan struct{})
	r.hold = func(req *http.Request) {
		if req.Method != http.MethodPatch || !strings.HasPrefix(req.URL.Path, "/api/v1/nodes/") {
			return
		}
		if patches.Add(1) == 2 {
			close(both)
		}
		select {
		case <-both:
		case <-req.Context().Done():
		}
	}
}

// of returns the evictions of a pod, or of all pods when it is "".
func (r *relay) of(pod string) []*evictionCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*evictionCall
	for _, c := range r.calls {
		if pod == "" || c.pod == pod {
			out = append(out, c)
		}
	}
	return out
}

// answers lists the status codes that a pod's evictions came back with.
func (r *relay) answers(pod string) []int {
	var out []int
	for _, c := range r.of(pod) {
		out = append(out, c.status)
	}
	return out
}

// oneAtATime checks that no pod had two evictions under way at once.
func (r *relay) oneAtATime() {
	r.s.Helper()
	last := map[string]time.Time{}
	for _, c := range r.of("") {
		if c.began.Before(last[c.pod]) {
			r.s.Errorf("pod %s: an eviction began before the one before it had ended", c.pod)
		}
		last[c.pod] = c.ended
	}
}

// replies answers with a Status of the API, and Retry-After when it is not zero.
func replies(code int32, reason metav1.StatusReason, message string, retryAfter int32, causes ...metav1.StatusCause) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		status := metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: code, Reason: reason, Message: message,
			Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter, Causes: causes},
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter)))
		}
		w.WriteHeader(int(code))
		_ = json.NewEncoder(w).Encode(status)
	}
}

// hangsUp breaks the connection without an answer.
func hangsUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// Package admission answers the reviews of the API server: whether a pod may be evicted, and to how many replicas a workload
// may be scaled. It translates a review into facts and a verdict into a response; pkg/guard decides.
package admission

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/safedrain/safedrain/internal/gate/metrics"
)

// DefaultDeadline is the time that an answer takes at most. It is far below the webhook's timeout, so that the API server
// gets an answer that is meant and not its failurePolicy.
const DefaultDeadline = 5 * time.Second

// travel is what is left of the API server's own timeout for the way of an answer.
const travel = 500 * time.Millisecond

// Serving is what every review has in common. Its zero value does.
type Serving struct {
	Deadline time.Duration // of an answer; 0: DefaultDeadline
	Metrics  *metrics.Metrics
	Log      *slog.Logger
}

// judge answers one kind of review. An error is of a request that it does not answer.
type judge func(ctx context.Context, req *admissionv1.AdmissionRequest) (*answer, error)

// handler serves one kind of review.
type handler struct {
	Serving
	resource string // as metrics name it
	judge    judge
}

// ServeHTTP answers a review. It is stateless, and answers any number of them at once.
func (s *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	began := time.Now()
	defer func() {
		if r := recover(); r != nil {
			s.log().Error("a review ended in a panic", "resource", s.resource, "panic", r, "stack", string(debug.Stack()))
			s.Metrics.Decision(s.resource, "error", "Panic", time.Since(began))
			http.Error(w, "the gate failed; see its log", http.StatusInternalServerError)
		}
	}()
	ctx, cancel := context.WithTimeout(req.Context(), s.deadline(req))
	defer cancel()
	request, err := decode(w, req)
	var a *answer
	if err == nil {
		a, err = s.judge(ctx, request)
	}
	if err != nil {
		s.reject(w, req, err, began)
		return
	}
	s.Metrics.Decision(s.resource, a.decision, a.reason, time.Since(began))
	s.tell(ctx, request, a)
	if err := encode(w, a.response(request.UID)); err != nil {
		s.log().Debug("an answer did not arrive", "resource", s.resource, "error", err)
	}
}

// tell logs an answer; those that let something pass only where everything is logged.
func (s *handler) tell(ctx context.Context, req *admissionv1.AdmissionRequest, a *answer) {
	level, message := slog.LevelInfo, ""
	switch {
	case a.status != nil:
		message = a.status.Message
	case len(a.warnings) > 0:
		message = a.warnings[0]
	default:
		level = slog.LevelDebug
	}
	s.log().Log(ctx, level, "reviewed", "resource", s.resource, "namespace", req.Namespace, "name", req.Name,
		"user", req.UserInfo.Username, "decision", a.decision, "reason", a.reason, "message", message)
}

// reject answers what is no review with a status of HTTP.
func (s *handler) reject(w http.ResponseWriter, req *http.Request, err error, began time.Time) {
	code := http.StatusBadRequest
	var b *badReview
	if errors.As(err, &b) {
		code = b.code
	}
	s.Metrics.Decision(s.resource, "error", "BadReview", time.Since(began))
	s.log().Warn("a request was no review", "resource", s.resource, "from", req.RemoteAddr, "error", err)
	http.Error(w, err.Error(), code)
}

// deadline is the time for the answer: the server's own, or less where the API server says that it waits less.
func (s *handler) deadline(req *http.Request) time.Duration {
	d := s.Deadline
	if d <= 0 {
		d = DefaultDeadline
	}
	if asked, err := time.ParseDuration(req.URL.Query().Get("timeout")); err == nil && asked > 0 {
		d = min(d, max(asked-travel, asked/2))
	}
	return d
}

func (s *handler) log() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

package manners

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
)

// TestMachinesForbidden: the right to list Machines is opt-in, so its lack is said once and ends nothing.
func TestMachinesForbidden(t *testing.T) {
	answers := map[string]struct {
		code int
		body string
	}{
		"/apis/cluster.x-k8s.io":                  {200, `{"kind":"APIGroup","apiVersion":"v1","name":"cluster.x-k8s.io","preferredVersion":{"groupVersion":"cluster.x-k8s.io/v1beta1","version":"v1beta1"}}`},
		"/apis/cluster.x-k8s.io/v1beta1/machines": {403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"machines is forbidden"}`},
	}
	asked := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := answers[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(a.code)
		_, _ = w.Write([]byte(a.body))
		asked <- r.URL.Path
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	var log bytes.Buffer
	clock := testingclock.NewFakeClock(time.Unix(0, 0))
	m := &Machines{
		Client: kubernetes.NewForConfigOrDie(config), Dynamic: dynamic.NewForConfigOrDie(config),
		Log: slog.New(slog.NewTextHandler(&log, nil)), Clock: clock,
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	for range 3 { // three looks, of two requests each
		<-asked
		<-asked
		for !clock.HasWaiters() {
			select {
			case err := <-ended:
				t.Fatalf("it ended: %v", err)
			case <-time.After(time.Millisecond):
			}
		}
		clock.Step(rediscovery)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "may not be listed"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, log.String())
	}
}

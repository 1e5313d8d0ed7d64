// Package server is what runs in the pods of a lab: an HTTP server that says who answered and who asked.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/safedrain/safedrain/test/dataplane"
)

// readyFD is the file that the agent waits on until the server listens.
const readyFD = 3

// Run serves until SIGTERM, and then ends as the environment says.
func Run(ctx context.Context) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	mode, after, err := parseSIGTERM(os.Getenv(dataplane.EnvSIGTERM))
	if err != nil {
		return err
	}
	port := os.Getenv(dataplane.EnvPort)
	if port == "" {
		port = strconv.Itoa(dataplane.DefaultPort)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if ready := os.NewFile(readyFD, "ready"); ready != nil {
		_, _ = ready.WriteString("!") // nobody waits when the server was started by hand
		_ = ready.Close()
	}
	select {
	case err := <-served:
		return err
	case <-term:
	}
	return end(ctx, server, listener, mode, after)
}

// parseSIGTERM reads what to do at SIGTERM.
func parseSIGTERM(text string) (mode string, after time.Duration, err error) {
	mode, duration, timed := strings.Cut(text, ":")
	if timed {
		if after, err = time.ParseDuration(duration); err != nil {
			return "", 0, fmt.Errorf("%s %q: %w", dataplane.EnvSIGTERM, text, err)
		}
	}
	switch {
	case text == "", text == string(dataplane.AtOnce):
		return string(dataplane.AtOnce), 0, nil
	case timed && (mode == "close" || mode == "keep"):
		return mode, after, nil
	}
	return "", 0, fmt.Errorf("%s %q: \"exit\", \"close:5s\" or \"keep:5s\" is expected", dataplane.EnvSIGTERM, text)
}

func end(ctx context.Context, server *http.Server, listener net.Listener, mode string, after time.Duration) error {
	if mode == "close" {
		if err := listener.Close(); err != nil {
			return err
		}
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	if err := server.Shutdown(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func answer(w http.ResponseWriter, r *http.Request) {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if text := r.URL.Query().Get("sleep"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-r.Context().Done():
			return
		case <-timer.C:
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(dataplane.Answer{ // an error is the client's, which has gone
		Pod: os.Getenv("POD_NAME"), Namespace: os.Getenv("POD_NAMESPACE"), Node: os.Getenv("NODE_NAME"),
		Client: netip.AddrPortFrom(client.Addr().Unmap(), client.Port()),
	})
}

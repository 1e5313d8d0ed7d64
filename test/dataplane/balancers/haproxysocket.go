package balancers

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// askTimeout is how long HAProxy's socket may take for one command.
const askTimeout = 5 * time.Second

// server is one server of a backend, as HAProxy shows it.
type server struct {
	proxy, name string
	status      string // "UP", "UP 2/3" (failing), "DOWN", "DRAIN", "MAINT", "no check" and others
}

// in reports whether new connections are sent to the server. A check that is failing has not failed yet.
func (s server) in() bool { return strings.HasPrefix(s.status, "UP") || s.status == "no check" }

// ask gives HAProxy one command and returns its answer.
func ask(ctx context.Context, socket, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return "", fmt.Errorf("ask HAProxy: %w", err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", fmt.Errorf("ask HAProxy to %s: %w", command, err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", fmt.Errorf("ask HAProxy to %s: %w", command, errors.Join(err, ctx.Err()))
	}
	return string(answer), nil
}

// servers lists the servers of every backend, from HAProxy's own socket, in front of which no fault stands.
func (h *HAProxy) servers(ctx context.Context) ([]server, error) {
	answer, err := ask(ctx, h.file("real.sock"), "show stat -1 4 -1")
	if err != nil {
		return nil, err
	}
	return parseStat(answer)
}

// parseStat reads HAProxy's statistics, CSV whose first line names the columns.
func parseStat(text string) ([]server, error) {
	r := csv.NewReader(strings.NewReader(strings.TrimPrefix(strings.TrimSpace(text), "# ")))
	r.FieldsPerRecord = -1
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("HAProxy's statistics: %w", err)
	}
	if len(rows) == 0 {
		return nil, errors.New("HAProxy's statistics are empty")
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	var servers []server
	for _, row := range rows[1:] {
		if len(row) < len(rows[0]) {
			return nil, fmt.Errorf("HAProxy's statistics: %d columns where %d are named", len(row), len(rows[0]))
		}
		servers = append(servers, server{row[column["pxname"]], row[column["svname"]], row[column["status"]]})
	}
	return servers, nil
}

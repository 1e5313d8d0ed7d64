package balancers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
)

// Mood is how a [Relay] treats those who work HAProxy.
type Mood string

// The moods.
const (
	// Honest passes everything on.
	Honest Mood = "honest"
	// Ignoring answers commands that change a server as HAProxy does when it obeyed, and changes nothing.
	Ignoring Mood = "ignoring"
	// Lying does that too, and shows every server as drained that it was asked to drain.
	Lying Mood = "lying"
	// Hanging takes commands and never answers.
	Hanging Mood = "hanging"
	// Absent refuses connections.
	Absent Mood = "absent"
)

// Relay stands between HAProxy's runtime socket and whoever works it.
type Relay struct {
	path, real string

	mu       sync.Mutex
	mood     Mood
	listener net.Listener
	drained  map[string]bool // servers that it was asked to drain, "backend/server"
	hung     chan struct{}   // closed when the mood changes
	serving  sync.WaitGroup
}

// newRelay listens at path for what is meant for real.
func newRelay(ctx context.Context, path, real string) (*Relay, error) {
	r := &Relay{path: path, real: real, mood: Honest, drained: map[string]bool{}, hung: make(chan struct{})}
	return r, r.listen(ctx)
}

func (r *Relay) listen(ctx context.Context) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", r.path)
	if err != nil {
		return fmt.Errorf("listen in the place of HAProxy's socket: %w", err)
	}
	r.mu.Lock()
	r.listener = l
	r.mu.Unlock()
	r.serving.Go(func() { r.accept(l) })
	return nil
}

func (r *Relay) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		r.serving.Go(func() {
			r.serve(conn)
			_ = conn.Close()
		})
	}
}

// Set changes the mood. Coming back from a bad one forgets what was asked for meanwhile.
func (r *Relay) Set(ctx context.Context, mood Mood) error {
	r.mu.Lock()
	before, l := r.mood, r.listener
	r.mood = mood
	if mood == Honest {
		clear(r.drained)
	}
	close(r.hung)
	r.hung = make(chan struct{})
	r.mu.Unlock()
	switch {
	case mood == Absent && before != Absent:
		return l.Close()
	case mood != Absent && before == Absent:
		return r.listen(ctx)
	}
	return nil
}

// Close ends the relay.
func (r *Relay) Close() error {
	err := r.Set(context.Background(), Absent) // closing needs none
	r.serving.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// serve handles one connection, which carries one line of a command.
func (r *Relay) serve(conn net.Conn) {
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	command := strings.TrimSpace(line)
	r.mu.Lock()
	mood, hung := r.mood, r.hung
	r.note(command)
	r.mu.Unlock()
	switch {
	case mood == Hanging:
		<-hung // whoever asked may have gone meanwhile
		return
	case (mood == Ignoring || mood == Lying) && strings.HasPrefix(command, "set "):
		_, _ = io.WriteString(conn, "\n")
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout) // a connection has no context of its own
	defer cancel()
	answer, err := ask(ctx, r.real, command)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "relay:", err)
		return
	}
	if mood == Lying {
		answer = r.embellish(answer)
	}
	_, _ = io.WriteString(conn, answer)
}

// note remembers what a server was asked for: "set server BACKEND/SERVER state drain".
func (r *Relay) note(command string) {
	words := strings.Fields(command)
	if len(words) == 5 && words[0] == "set" && words[1] == "server" && words[3] == "state" {
		r.drained[words[2]] = words[4] == "drain"
	}
}

// embellish shows as drained what was asked to be, in HAProxy's statistics.
func (r *Relay) embellish(answer string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := strings.Split(answer, "\n")
	status := -1
	for i, name := range strings.Split(lines[0], ",") {
		if name == "status" {
			status = i
		}
	}
	for i, line := range lines {
		fields := strings.Split(line, ",")
		if status >= 0 && len(fields) > status && r.drained[fields[0]+"/"+fields[1]] {
			fields[status] = "DRAIN"
			lines[i] = strings.Join(fields, ",")
		}
	}
	return strings.Join(lines, "\n")
}

// Faults are those of HAProxy's socket.
func (h *HAProxy) Faults() []Fault {
	fault := func(name, says string, mood Mood) Fault {
		return Fault{Name: name, Says: says, Inject: func(ctx context.Context, _ string) (func(context.Context) error, error) {
			return func(ctx context.Context) error { return h.relay.Set(ctx, Honest) }, h.relay.Set(ctx, mood)
		}}
	}
	return []Fault{
		fault("socket-absent", "nobody listens on HAProxy's socket", Absent),
		fault("socket-hangs", "HAProxy's socket takes commands and never answers", Hanging),
		fault("socket-ignores", "HAProxy's socket takes the drain command and nothing happens", Ignoring),
		fault("socket-lies", "HAProxy's socket takes the drain command, nothing happens, and it shows the server as drained", Lying),
	}
}

package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// How much of each log is shown.
const (
	tailLines = 25
	lineWidth = 300
)

func logFile(dir, name string) string { return filepath.Join(dir, name+".log") }

// Logs returns the last lines of every program's log.
func (c *Cluster) Logs() string {
	var b strings.Builder
	for _, name := range []string{Etcd, APIServer, ControllerManager, Scheduler, Kwok} {
		p := c.processes[name]
		if p == nil {
			continue
		}
		state := "running"
		if done, err := p.ended(); done {
			state = fmt.Sprintf("ended: %v", err)
		}
		fmt.Fprintf(&b, "--- %s (%s), last lines of %s\n%s\n", name, state, p.log, Tail(p.log))
	}
	return b.String()
}

// Tail returns the last lines of a file, or why it cannot be read.
func Tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	for i, line := range lines {
		if len(line) > lineWidth {
			lines[i] = line[:lineWidth] + "..."
		}
	}
	return strings.Join(lines, "\n")
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
)

// state is what is recorded of a cluster that stays.
type state struct {
	Dir        string         `json:"dir"`
	Kubeconfig string         `json:"kubeconfig"`
	PIDs       map[string]int `json:"pids"` // by program
}

func stateFile(cache string) string { return filepath.Join(cache, "cluster.json") }

// readState returns nil when no cluster is recorded.
func readState(cache string) (*state, error) {
	data, err := os.ReadFile(stateFile(cache))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &state{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("read %q: %w", stateFile(cache), err)
	}
	return s, nil
}

func (s *state) write(cache string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(stateFile(cache), data, 0o600)
}

func (s *state) remove(cache string) error {
	return errors.Join(os.RemoveAll(s.Dir), os.Remove(stateFile(cache)))
}

// alive lists the programs that still run under their recorded process ids, sorted.
func (s *state) alive() []string {
	var names []string
	for name, pid := range s.PIDs {
		if s.isOurs(pid) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// isOurs reports whether a process id still means a process of this cluster: its command line names the cluster's
// directory or, where the system does not show command lines, it merely runs.
func (s *state) isOurs(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if errors.Is(err, fs.ErrNotExist) {
		_, err := os.Stat("/proc/self")
		return err != nil
	}
	return err == nil && bytes.Contains(line, []byte(s.Dir))
}

// down ends the recorded processes, by their ids alone, and removes what up made.
func down(ctx context.Context) error {
	cache, err := controlplane.CacheDir()
	if err != nil {
		return err
	}
	s, err := readState(cache)
	if err != nil {
		return err
	}
	if s == nil {
		_, err := fmt.Fprintln(os.Stdout, "no cluster is up")
		return err
	}
	ended := s.alive()
	for _, name := range ended {
		if err := syscall.Kill(s.PIDs[name], syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end %s, pid %d: %w", name, s.PIDs[name], err)
		}
	}
	err = controlplane.Poll(ctx, 10*time.Second, "programs ended", func(context.Context) (bool, string, error) {
		left := s.alive()
		return len(left) == 0, strings.Join(left, ", "), nil
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, "ended:", strings.Join(ended, ", "))
	return errors.Join(err, s.remove(cache))
}

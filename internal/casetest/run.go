package casetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Exec runs safedrain with these arguments.
type Exec func(args []string) (stdout []byte, exit int)

// Run runs every command of the case in dir as a test of its own. A case that needs a capability which is not among
// these is skipped.
func Run(t *testing.T, dir string, exec Exec, capabilities ...string) {
	t.Helper()
	c, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, need := range c.Needs {
		if !slices.Contains(capabilities, need) {
			t.Skipf("needs %s", need)
		}
	}
	for _, run := range c.Runs {
		t.Run(strings.Join(run.Args, " "), func(t *testing.T) {
			for _, err := range Check(run, dir, exec) {
				t.Error(err)
			}
		})
	}
}

// Check runs one command of the case in dir and returns everything that is wrong with its answer.
func Check(run Command, dir string, exec Exec) []error {
	args := append(slices.Clone(run.Args), "-f", filepath.Join(dir, "cluster.yaml"), "-o", "json")
	stdout, exit := exec(args)
	var wrong []error
	switch {
	case run.Exit == nil && exit != 0 && exit != 3:
		wrong = append(wrong, fmt.Errorf("exit %d, want 0 or 3", exit))
	case run.Exit != nil && exit != *run.Exit:
		wrong = append(wrong, fmt.Errorf("exit %d, want %d", exit, *run.Exit))
	}
	if exit == 1 || exit == 2 {
		if len(bytes.TrimSpace(stdout)) > 0 {
			wrong = append(wrong, fmt.Errorf("exit %d leaves something on stdout: %.200s", exit, stdout))
		}
		return wrong
	}
	report, err := oneDocument(stdout)
	if err != nil {
		return append(wrong, err)
	}
	return append(wrong, run.judge(report)...)
}

// oneDocument decodes stdout, which must be exactly one JSON document.
func oneDocument(stdout []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(stdout))
	dec.UseNumber()
	var report any
	if err := dec.Decode(&report); err != nil {
		return nil, fmt.Errorf("stdout is no JSON document: %w: %.200s", err, stdout)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("stdout holds more than one JSON document")
	}
	return report, nil
}

// judge compares a report with what the run says about it.
func (r *Command) judge(report any) []error {
	var wrong []error
	if r.Want != nil {
		if why := missing(r.Want, report, ""); why != "" {
			wrong = append(wrong, fmt.Errorf("want: %s", why))
		}
	}
	for _, s := range r.Some {
		found, err := s.find(report)
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Errorf("some: %w", err))
		case found == nil:
			wrong = append(wrong, fmt.Errorf("some: nothing at %s matches %s", s.Path, show(s.Match)))
		}
	}
	for _, s := range r.Never {
		found, err := s.find(report)
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Errorf("never: %w", err))
		case found != nil:
			wrong = append(wrong, fmt.Errorf("never: at %s, %s matches: %s", s.Path, show(s.Match), show(found)))
		}
	}
	return wrong
}

// find returns the first value at the path that matches, nil when there is none.
func (s *Selector) find(report any) (any, error) {
	values, err := at(report, s.Path)
	if err != nil {
		return nil, err
	}
	for _, v := range values {
		if missing(s.Match, v, "") == "" {
			return v, nil
		}
	}
	return nil, nil //nolint:nilnil // nil is the documented answer for nothing found
}

package cluster

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// FuzzRead feeds anything to the reader. What it accepts must be answerable: every method of the view works on it.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("..", "..", "testdata", "cases", "*", "cluster.yaml"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files[:6] {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text[:min(len(text), 6000)])
		for _, doc := range bytes.SplitAfter(text, []byte("\n- ")) {
			f.Add(doc)
		}
	}
	for _, seed := range []string{
		world, bomb(), "--- {}\n...\n", `{"apiVersion":"v1","kind":"List","items":[null]}`, "\xef\xbb\xbf[",
		service(`{clusterIPs: [10.96.0.1, 'fd00::a'], ports: [{name: http, port: 80}]}`, slice4("a", "ports: [{name: http, port: 80}]\nendpoints: [{addresses: [10.0.0.1], nodeName: n1}]")),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Read(context.Background(), []string{"-"}, bytes.NewReader(text))
		if err != nil {
			if s != nil {
				t.Error("a snapshot beside an error")
			}
			return
		}
		exercise(s)
	})
}

// exercise calls what a request calls.
func exercise(s *Snapshot) {
	m := unknown()
	ix := s.Index(m, s.NodeNames())
	for n := range ix.Nodes() {
		for f := range ix.ServicesOn(n.Name) {
			ix.Objects().Slices(f.Key.Namespace, f.Key.Name)
		}
		for p := range ix.Pods(n.Name) {
			ix.Pod(p.UID)
			ix.Budgets(p.Namespace)
			ix.Workloads(p.Namespace)
		}
	}
	for f := range ix.Services() {
		_ = f.Local()
	}
	_ = s.Lacks(Scope{AllPods: true})
	s.Doubts()
	s.Counts(m.hooks)
	_ = s.Resolve([]string{"n1"})
}

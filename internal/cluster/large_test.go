package cluster_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/cluster/clustertest"
	"github.com/safedrain/safedrain/pkg/guard"
)

// TestCasesRead reads the dump of every case and asks for all that is in it.
func TestCasesRead(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "testdata", "cases", "*", "cluster.yaml"))
	if err != nil || len(files) < 40 {
		t.Fatalf("%d cases: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			s, err := cluster.Read(t.Context(), []string{file}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Lacks(cluster.Scope{Nodes: s.NodeNames()}); err != nil {
				t.Error(err)
			}
			ix := s.Index(matcher{}, nil)
			pods := 0
			for _, n := range s.NodeNames() {
				pods += len(slices.Collect(ix.Pods(n)))
			}
			if pods == 0 {
				t.Error("no pods")
			}
		})
	}
}

// keys lists the Services of a plan that have a finding of a code.
func keys(plan *guard.DrainPlan, code guard.Code) []string {
	var out []string
	for _, s := range plan.Services {
		if slices.ContainsFunc(s.Findings, func(f guard.Finding) bool { return f.Code == code }) {
			out = append(out, s.Name)
		}
	}
	slices.Sort(out)
	return out
}

// TestLargeCluster judges drains of a cluster of 5,000 nodes and 10,000 Services whose right answers follow from how it
// is generated.
func TestLargeCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("too much for the race detector")
	}
	s, err := cluster.FromObjects(clustertest.Large(5000, 10_000, 10).Objects()...)
	if err != nil {
		t.Fatal(err)
	}
	ix := s.Index(matcher{}, []string{"n0"})
	if on := len(slices.Collect(ix.ServicesOn("n0"))); on != 40 {
		t.Errorf("%d Services on n0, want 40", on)
	}
	last := []string{"s0", "s5000"}
	others := []string{"s1410", "s2141", "s3551", "s4282", "s5692", "s6410", "s692", "s7141", "s8551", "s9282"}
	one := guard.Plan(ix, guard.Request{Nodes: []string{"n0"}})
	if len(one.Services) != 12 {
		t.Errorf("%d Services, want 12", len(one.Services))
	}
	if diff := cmp.Diff(last, keys(&one, guard.LastEndpoint)); diff != "" {
		t.Errorf("LastEndpoint: %s", diff)
	}
	loses := slices.DeleteFunc(keys(&one, guard.LosesLocalEndpoint), func(k string) bool { return slices.Contains(last, k) })
	if diff := cmp.Diff(others, loses); diff != "" {
		t.Errorf("LosesLocalEndpoint: %s", diff)
	}
	var ten []string
	for _, n := range []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		ten = append(ten, "n"+n)
	}
	all := guard.Plan(s.Index(matcher{}, ten), guard.Request{Nodes: ten})
	if len(all.Services) != 112 {
		t.Errorf("%d Services, want 112", len(all.Services))
	}
	if diff := cmp.Diff(last, keys(&all, guard.LastEndpoint)); diff != "" {
		t.Errorf("LastEndpoint of ten: %s", diff)
	}
}

// BenchmarkRead reads dumps: all cases as YAML, and a generated cluster as JSON.
func BenchmarkRead(b *testing.B) {
	b.Run("cases", func(b *testing.B) {
		dir := filepath.Join("..", "..", "testdata", "cases")
		files, err := filepath.Glob(filepath.Join(dir, "*", "cluster.yaml"))
		if err != nil || len(files) == 0 {
			b.Fatal(err)
		}
		var size int64
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil {
				b.Fatal(err)
			}
			size += info.Size()
		}
		b.SetBytes(size)
		for b.Loop() {
			for _, f := range files {
				if _, err := cluster.Read(b.Context(), []string{f}, nil); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("json", func(b *testing.B) {
		var dump bytes.Buffer
		if err := clustertest.Large(500, 1000, 500).WriteJSON(&dump); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(dump.Len()))
		for b.Loop() {
			if _, err := cluster.Read(b.Context(), []string{"-"}, bytes.NewReader(dump.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkIndex walks views of the large cluster: the Services of one node, and every Service.
func BenchmarkIndex(b *testing.B) {
	before := heap()
	s, err := cluster.FromObjects(clustertest.Large(5000, 10_000, 1).Objects()...)
	if err != nil {
		b.Fatal(err)
	}
	held := float64(heap()-before) / (1 << 20)
	for name, walk := range map[string]func(){
		"one node": func() {
			for range s.Index(matcher{}, []string{"n0"}).ServicesOn("n0") {
			}
		},
		"every Service": func() {
			for range s.Index(matcher{}, []string{"n0"}).Services() {
			}
		},
		"plan": func() {
			guard.Plan(s.Index(matcher{}, []string{"n0"}), guard.Request{Nodes: []string{"n0"}})
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				walk()
			}
			b.ReportMetric(held, "MiB-held")
		})
	}
	runtime.KeepAlive(s)
}

// heap returns the bytes in use after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkLoad loads the large cluster over HTTP; the server is in the same process and shares the machine.
func BenchmarkLoad(b *testing.B) {
	srv := clustertest.NewServer()
	defer srv.Close()
	if err := srv.ServeCluster(clustertest.Large(5000, 10_000, 1)); err != nil {
		b.Fatal(err)
	}
	clients, err := cluster.NewClients(&rest.Config{Host: srv.URL})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := cluster.Load(b.Context(), clients, hooks, cluster.Scope{Nodes: []string{"n0"}}); err != nil {
			b.Fatal(err)
		}
	}
}

package results

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/test/dataplane/load"
)

var titles = Titles{
	Experiments: []Title{{"drain", "One node."}, {"fault", "A fault."}},
	Balancers:   []Title{{"l2", "By <ARP>."}, {"haproxy", "By hand."}},
	Plotted:     "drain",
}

func record(experiment, balancer, tool string, run, lost int) *Record {
	return &Record{
		Key:    Key{experiment, balancer, "nftables", tool, run},
		Commit: "abc", Build: "1", New: load.Counts{Scheduled: 100, OK: 100 - lost, Timeout: lost},
		First: 1, Last: 1 + float64(lost)/10, Broken: lost / 10,
		Series: Series{From: -2, OK: []int{50, 50, 50, 50 - lost, 50, 50}, Failed: []int{0, 0, 0, lost, 0, 0}},
	}
}

func store(t *testing.T, records ...*Record) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "results"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(records...); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStoreKeepsRecords(t *testing.T) {
	t.Parallel()
	first := record("drain", "l2", Kubectl, 1, 20)
	first.Times, first.Steps = &Times{Removed: 1}, []Step{{At: 0.5, What: "told"}}
	s := store(t, first, record("drain", "l2", Kubectl, 2, 10))
	again := record("drain", "l2", Kubectl, 2, 12)
	again.Build = "2"
	if err := s.Put(again); err != nil {
		t.Fatal(err)
	}
	s, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*Record{first, again}, s.Records()); diff != "" {
		t.Error("what is read differs from what was put, the later record of a key in place of the former:", diff)
	}
	if !s.Has(again.Key, "2") || s.Has(again.Key, "1") || s.Has(Key{}, "2") {
		t.Error("only what was measured with a build counts as there")
	}
	if err := os.WriteFile(s.path(), []byte("{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.dir); err == nil {
		t.Error("a broken file is no empty one")
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	fault := record("fault", "haproxy", Safedrain, 1, 0)
	fault.Exit, fault.Problems = 5, []string{"x"}
	timed := record("drain", "l2", Safedrain, 1, 0)
	timed.Way, timed.Times = "label", &Times{Removed: 0.25, Switched: 0.5, Proven: 0.125, Settle: 2, Total: 3, Bound: 4}
	s := store(t, record("drain", "l2", Kubectl, 1, 20), record("drain", "l2", Kubectl, 2, 5), timed, fault)
	if err := Write(s, titles); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(s.dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| l2 | nftables | 2 + 1 | 5–20 | 0.5–2 s | timeout 100% | 0 | 0–2 | **0** | 100 | 0 | 0 |",
		"| haproxy | nftables | 1 | 5 | 0 | 100 | 0 | 0 | 0 of 1 |",
		"| l2, label | 1 | 0.25–0.25 | 0.50–0.50 | 0.12–0.12 | 0.38 | 2.00–2.00 |",
		"4 records are of commit abc (safedrain 1).",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the page lacks %q:\n%s", want, b)
		}
	}
}

func TestPlotIsAnSVG(t *testing.T) {
	t.Parallel()
	svg := Plot([]*Record{record("drain", "l2", Kubectl, 1, 40), record("drain", "l2", Kubectl, 2, 20), record("drain", "l2", Safedrain, 1, 0)}, titles)
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
	for _, want := range []string{"prefers-color-scheme: dark", ">l2<", "2 + 1 runs", `class="value">50<`} {
		if !strings.Contains(svg, want) {
			t.Errorf("the plot lacks %q", want)
		}
	}
	if strings.Contains(svg, "haproxy") {
		t.Error("a balancer without runs has a panel")
	}
}

func TestMeanPutsSecondsInTheirPlaces(t *testing.T) {
	t.Parallel()
	means, runs := mean([]*Record{record("drain", "l2", Kubectl, 1, 40), record("drain", "l2", Kubectl, 2, 20)}, Key{Experiment: "drain", Balancer: "l2", Tool: Kubectl})
	if runs != 2 || means[1-timeFrom] != 30 || means[0-timeFrom] != 0 || means[2-timeFrom] != 0 {
		t.Errorf("%d runs, %v", runs, means)
	}
}

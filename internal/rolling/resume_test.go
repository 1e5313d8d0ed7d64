package rolling

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/drain"
)

// fakeNodes is an API that lists nodes.
type fakeNodes struct{ list func() []corev1.Node }

func (f fakeNodes) Get(context.Context, string, metav1.GetOptions) (*corev1.Node, error) {
	return nil, errors.New("not here")
}

func (f fakeNodes) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	return &corev1.NodeList{Items: f.list()}, nil
}

func (f fakeNodes) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.Node, error) {
	return nil, errors.New("not here")
}

func marked(name string, mark *Mark) corev1.Node {
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if mark != nil {
		node.Annotations = map[string]string{Annotation: mark.String()}
	}
	return node
}

func testRoll(opts Options, list func() []corev1.Node) *roll {
	return &roll{
		Roller: &Roller{Runner: &drain.Runner{Clock: clock.RealClock{}, RunID: "new", Holder: "bob@host"}},
		opts:   opts, marks: marks{fakeNodes{list}},
	}
}

var (
	begunAt = time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	command = Options{Nodes: []string{"a", "b", "c"}, Selection: "-l pool=workers", Command: "true"}
)

// mark is one of roll "old", which the command has begun.
func mark(step Step, change ...func(*Mark)) *Mark {
	m := &Mark{Roll: "old", Started: begunAt, Holder: "alice@host", Work: command.work(), Step: step, Run: "r1", Ended: &begunAt}
	for _, c := range change {
		c(m)
	}
	return m
}

func TestOpen(t *testing.T) {
	later := begunAt.Add(time.Hour)
	complete := func(m *Mark) { m.Complete = true }
	others := func(m *Mark) { m.Work = "other" }
	newer := func(m *Mark) { m.Roll, m.Started = "newer", later }
	for name, test := range map[string]struct {
		a, b, c    *Mark
		unfinished Unfinished
		roll       string // "" is a refusal
		left       int    // nodes that are not done
		reason     string
	}{
		"nothing":               {roll: "new", left: 3, reason: "a roll begins"},
		"interrupted":           {a: mark(Done), b: mark(Draining), roll: "old", left: 2, reason: "the same command goes on"},
		"all done":              {a: mark(Done), b: mark(Done), c: mark(Done), roll: "new", left: 3, reason: "a roll without a node to go is over"},
		"complete, a new node":  {a: mark(Done), b: mark(Done, complete), roll: "new", left: 3, reason: "a node that joined does not reopen a roll"},
		"complete, half erased": {b: mark(Done, complete), roll: "new", left: 3, reason: "the mark that says so goes last"},
		"of another command":    {a: mark(Done, others), reason: "nobody guesses"},
		"resume another":        {a: mark(Done, others), unfinished: UnfinishedResume, roll: "old", left: 2, reason: "as it was told"},
		"restart another":       {a: mark(Done, others), unfinished: UnfinishedRestart, roll: "new", left: 3, reason: "as it was told"},
		"the newest counts":     {a: mark(Done, others), b: mark(Done, newer), roll: "newer", left: 2, reason: "an older roll was given up"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := command
			opts.Unfinished = test.unfinished
			d := testRoll(opts, func() []corev1.Node {
				return []corev1.Node{marked("a", test.a), marked("b", test.b), marked("c", test.c), marked("z", mark(Draining))}
			})
			s, err := d.open(t.Context())
			var other *OtherWork
			if test.roll == "" {
				if !errors.As(err, &other) {
					t.Fatalf("error %v, want a refusal: %s", err, test.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			left := len(s.nodes)
			for _, m := range s.marks {
				if m.Step == Done {
					left--
				}
			}
			if s.id != test.roll || left != test.left {
				t.Errorf("roll %q with %d nodes left, want %q with %d: %s", s.id, left, test.roll, test.left, test.reason)
			}
			if s.id == "new" && test.a != nil && !s.started.After(test.a.Started) {
				t.Errorf("the new roll is not newer than the old one: %s", s.started)
			}
		})
	}
}

// TestOpenWatches: marks that do not say that their run ended are watched for a minute; one that changes is alive.
func TestOpenWatches(t *testing.T) {
	live := func(m *Mark) { m.Ended = nil }
	for name, renews := range map[string]bool{"dead": false, "alive": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				started := time.Now()
				d := testRoll(command, func() []corev1.Node {
					m := mark(Running, live)
					if renews && time.Since(started) > 20*time.Second {
						now := time.Now()
						m.Renewed = &now
					}
					return []corev1.Node{marked("a", m), marked("b", nil), marked("c", nil)}
				})
				s, err := d.open(t.Context())
				var atWork *AtWork
				took := time.Since(started)
				switch {
				case renews && (!errors.As(err, &atWork) || atWork.Node != "a" || took > 25*time.Second):
					t.Errorf("after %s: %v", took, err)
				case !renews && (err != nil || s.id != "old" || took < time.Minute):
					t.Errorf("after %s: %v", took, err)
				}
			})
		})
	}
	d := testRoll(command, func() []corev1.Node { return []corev1.Node{marked("a", mark(Running, live))} })
	d.opts.Drain.TakeOver = true
	if s, err := d.open(t.Context()); err != nil || s.id != "old" {
		t.Errorf("--take-over: %v", err)
	}
}

func TestTail(t *testing.T) {
	w := &tail{limit: 10}
	for _, text := range []string{"first line\n", "second\n", "end\n"} {
		_, _ = w.Write([]byte(text))
	}
	if got := w.String(); got != "...\nend\n" {
		t.Errorf("kept %q", got)
	}
}

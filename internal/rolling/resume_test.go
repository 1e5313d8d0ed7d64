package rolling

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

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

// TestOpenWatches: marks that do not say that their run ended are watched for a minute; what is written meanwhile shows a
// process at work, unless it says that it has ended.
func TestOpenWatches(t *testing.T) {
	running := func(change ...func(*Mark)) *Mark {
		return mark(Running, append([]func(*Mark){func(m *Mark) { m.Ended = nil }}, change...)...)
	}
	renewed := running(func(m *Mark) { m.Renewed = ptr.To(begunAt.Add(time.Minute)) })
	for name, test := range map[string]struct {
		later  []corev1.Node // after 20 s; nil: nothing happens
		took   time.Duration // at least, and no more than 5 s longer
		step   Step          // of the refusal; "none": it goes on
		roll   string
		reason string
	}{
		"dead":                  {nil, time.Minute, "none", "old", "the mark stands still"},
		"alive":                 {[]corev1.Node{marked("a", renewed)}, 20 * time.Second, Running, "", "it is renewed"},
		"done":                  {[]corev1.Node{marked("a", mark(Done))}, 20 * time.Second, Done, "", "a live process has come to the next node"},
		"through":               {[]corev1.Node{marked("a", nil)}, 20 * time.Second, "", "", "a live process has ended the roll: another one is not begun by itself"},
		"ended":                 {[]corev1.Node{marked("a", mark(Running))}, 20 * time.Second, "none", "old", "it says that it is over"},
		"deleted":               {[]corev1.Node{marked("b", nil)}, 20 * time.Second, "none", "new", "nobody can be at work on it"},
		"at work on the second": {[]corev1.Node{marked("a", running()), marked("b", running())}, 20 * time.Second, Running, "", "a live process has come to it"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				started := time.Now()
				d := testRoll(command, func() []corev1.Node {
					if test.later != nil && time.Since(started) > 20*time.Second {
						return test.later
					}
					return []corev1.Node{marked("a", running()), marked("b", nil)}
				})
				s, err := d.open(t.Context())
				var atWork *AtWork
				took := time.Since(started)
				switch {
				case took < test.took || took > test.took+5*time.Second:
					t.Errorf("after %s, want %s: %s", took, test.took, test.reason)
				case test.step == "none" && (err != nil || s.id != test.roll):
					t.Errorf("%v, want roll %q: %s", err, test.roll, test.reason)
				case test.step != "none" && (!errors.As(err, &atWork) || atWork.Step != test.step):
					t.Errorf("%v, want a refusal at step %q: %s", err, test.step, test.reason)
				}
			})
		})
	}
	d := testRoll(command, func() []corev1.Node { return []corev1.Node{marked("a", running())} })
	d.opts.Drain.TakeOver = true
	if s, err := d.open(t.Context()); err != nil || s.id != "old" {
		t.Errorf("--take-over: %v", err)
	}
}

// TestOutcome: what a roll comes to; one that another process keeps from its first node has changed nothing.
func TestOutcome(t *testing.T) {
	taken := fmt.Errorf("node %q: %w", "a", &TakenOver{Node: "a", Roll: "other", Holder: "alice@host", Step: Draining})
	late := fmt.Errorf("after 5m: %w", &notNow{Cause: errors.New("a budget")})
	for name, test := range map[string]struct {
		begun bool
		err   error
		want  drain.Outcome
	}{
		"done":                        {true, nil, drain.Done},
		"taken, nothing begun":        {false, taken, drain.Refused},
		"taken, one node done":        {true, taken, drain.Unfinished},
		"not now, nothing begun":      {false, late, drain.Refused},
		"not now, one node done":      {true, late, drain.Unfinished},
		"the command failed":          {true, &CommandError{Node: "a", Why: "exit code 7"}, drain.Unfinished},
		"interrupted and failed":      {true, errors.Join(errInterrupted, &CommandError{Node: "a"}), drain.Interrupted},
		"a hook failed on one of two": {true, errors.Join(&CommandError{Node: "a"}, &badEnd{drain.HookFailed, errors.New("not proven")}), drain.HookFailed},
		"of the API, nothing begun":   {false, errors.New("no such host"), drain.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			d := testRoll(command, nil)
			d.state, d.order, d.nodes = &state{}, []string{"a"}, map[string]*node{"a": {begun: test.begun}}
			if got := d.outcome(test.err); got != test.want {
				t.Errorf("outcome %d, want %d", got, test.want)
			}
		})
	}
}

// TestTimed: each part of a turn is in the report; a drain that guard refuses again and again once.
func TestTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{roll: testRoll(command, nil), name: "a"}
		for _, part := range []struct {
			name string
			err  error
		}{
			{"drain", &notNow{Cause: errors.New("a budget")}}, {"drain", &notNow{Cause: errors.New("a budget")}}, {"drain", nil},
			{"run", &CommandError{Node: "a", Why: "ended after 1h", TimedOut: true}}, {"run", errInterrupted},
			{"return", &badEnd{drain.Unfinished, errors.New("not Ready")}}, {"cover", &NotCovered{After: "5m"}},
		} {
			_ = n.timed(t.Context(), part.name, func(context.Context) error { time.Sleep(time.Second); return part.err })
		}
		var got []string
		for _, s := range n.parts {
			got = append(got, fmt.Sprintf("%s %s %s %s", s.Node, s.Name, s.Outcome, s.Ended.Sub(s.Started)))
		}
		want := []string{
			"a drain blocked 2s", "a drain done 1s", "a run timedOut 1s", "a run interrupted 1s", "a return failed 1s", "a cover timedOut 1s",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("parts (-want +got):\n%s", diff)
		}
	})
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

package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/rolling"
)

// rollProgress shows a roll and its drains.
type rollProgress interface {
	progress
	moved(rolling.Event)
}

// newRollProgress chooses between a table that is redrawn and lines. With a document on stdout, results go to stderr too.
func (a *app) newRollProgress(document bool) rollProgress {
	out := a.streams.Out
	if document {
		out = a.streams.ErrOut
	}
	n := &narrator{}
	columns, ok := redraws(a.streams.ErrOut)
	if !ok {
		return &plainRoll{&plainProgress{narrator: n, out: escaping{out}, errOut: escaping{a.streams.ErrOut}, now: time.Now}}
	}
	_, together := redraws(out)
	return newRollTable(n, out, a.streams.ErrOut, columns, together)
}

// plainRoll writes a line for each change.
type plainRoll struct{ *plainProgress }

func (p *plainRoll) moved(ev rolling.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range rollLines(ev) {
		p.write(l)
	}
	if e, ok := ev.(rolling.CommandFailed); ok {
		writeOutput(p.errOut, e)
	}
}

// writeOutput shows what a command has said, behind a bar.
func writeOutput(w io.Writer, e rolling.CommandFailed) {
	for text := range strings.Lines(e.Output) {
		fmt.Fprintf(w, "  | %s\n", strings.TrimRight(text, "\r\n"))
	}
}

// rollLines says an event of a roll.
func rollLines(ev rolling.Event) []line {
	switch e := ev.(type) {
	case rolling.Began:
		return []line{stamped("%s", beganText(e))}
	case rolling.Moved:
		return movedLines(e)
	case rolling.Held:
		return []line{stamped("%s: %s", e.Node, e.Why)}
	case rolling.Uncovered:
		return []line{stamped("%s: not covered again yet: %s (timeout %s)", e.Node, strings.Join(e.Missing, "; "), seconds(e.Timeout))}
	case rolling.CommandFailed:
		return []line{stamped("%s: the command failed: %s", e.Node, e.Why)}
	case rolling.Stopping:
		return []line{stamped("no further node is begun: %s", oneLine(e.Why))}
	case rolling.Warned:
		return []line{{text: "Warning: " + oneLine(e.Text)}}
	}
	return nil
}

func beganText(e rolling.Began) string {
	text := fmt.Sprintf("roll %s: %s, at most %d at once: %s", e.Roll, count(len(e.Order), "node"), e.AtOnce, listed(e.Order, 12))
	if e.Resumed {
		text = fmt.Sprintf("going on with roll %s: %d done, %d to go, at most %d at once: %s",
			e.Roll, len(e.Done), len(e.Order), e.AtOnce, listed(e.Order, 12))
	}
	return text
}

func movedLines(e rolling.Moved) []line {
	again := ""
	if e.Again {
		again = ", once more after an earlier run"
	}
	switch {
	case e.Gone:
		return []line{stamped("%s: not there any more, left out", e.Node)}
	case e.Step == rolling.Done:
		return []line{resultLine("node/%s rolled", e.Node), stamped("%s: through after %s", e.Node, seconds(e.Took.Round(100*time.Millisecond)))}
	case e.Step == rolling.Running:
		return []line{stamped("%s: running the command%s", e.Node, again)}
	case e.Step == rolling.Returning:
		return []line{stamped("%s: returning%s", e.Node, again)}
	}
	if again != "" {
		return []line{stamped("%s: %s%s", e.Node, e.Step, again)}
	}
	return nil
}

// rollRow is a node in the table.
type rollRow struct {
	step   rolling.Step
	since  time.Time // of the step
	began  time.Time
	took   time.Duration
	detail string
	total  int // pods
	gone   int
}

// rollTable shows a roll on a terminal: lines that stay, and below them a table that is redrawn in place.
type rollTable struct {
	mu       sync.Mutex
	narrator *narrator
	out      io.Writer
	errOut   io.Writer
	columns  int
	together bool
	now      func() time.Time

	order []string
	rows  map[string]*rollRow
	early int // done by earlier runs
	drawn int
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
}

func newRollTable(n *narrator, out, errOut io.Writer, columns int, together bool) *rollTable {
	t := &rollTable{
		narrator: n, out: escaping{out}, errOut: errOut, columns: columns, together: together, now: time.Now,
		rows: map[string]*rollRow{}, stop: make(chan struct{}), done: make(chan struct{}),
	}
	go t.tick()
	return t
}

func (t *rollTable) tick() {
	defer close(t.done)
	ticker := time.NewTicker(redrawEvery)
	defer ticker.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-ticker.C:
			t.mu.Lock()
			t.redraw(nil)
			t.mu.Unlock()
		}
	}
}

func (t *rollTable) emit(ev drain.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detail(ev)
	var stay []line
	for _, l := range t.narrator.lines(ev) {
		_, warned := ev.(drain.Warned)
		if warned || l.result && !t.together {
			stay = append(stay, l)
		}
	}
	t.redraw(stay)
}

func (t *rollTable) moved(ev rolling.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var stay []line
	switch e := ev.(type) {
	case rolling.Began:
		t.order, t.early = e.Order, len(e.Done)
		for _, name := range e.Order {
			t.rows[name] = &rollRow{step: rolling.Waiting}
		}
		stay = rollLines(ev)
	case rolling.Moved:
		t.step(e)
		for _, l := range rollLines(ev) {
			if l.result && !t.together {
				stay = append(stay, l)
			}
		}
	case rolling.Held:
		t.row(e.Node).detail = e.Why
	case rolling.Uncovered:
		t.row(e.Node).detail = strings.Join(e.Missing, "; ")
	default:
		stay = rollLines(ev)
	}
	t.redraw(stay)
	if e, ok := ev.(rolling.CommandFailed); ok {
		t.erase()
		writeOutput(escaping{t.errOut}, e)
		t.redraw(nil)
	}
}

func (t *rollTable) row(name string) *rollRow {
	r := t.rows[name]
	if r == nil {
		r = &rollRow{}
		t.rows[name] = r
	}
	return r
}

func (t *rollTable) step(e rolling.Moved) {
	r := t.row(e.Node)
	r.step, r.since, r.detail, r.took = e.Step, t.now(), "", e.Took
	if r.began.IsZero() {
		r.began = r.since
	}
}

// detail keeps what a drain is at.
func (t *rollTable) detail(ev drain.Event) {
	switch e := ev.(type) {
	case drain.Withdrawing:
		if !noBalancer(e.Hook) {
			t.row(e.Node).detail = fmt.Sprintf("%s leaving %s", e.Service, e.Hook)
		}
	case drain.ProofPending:
		t.row(e.Node).detail = pendingText(e)
	case drain.Proven:
		t.row(e.Node).detail = provenText(e)
	case drain.SurgePending:
		t.row(e.Node).detail = fmt.Sprintf("%s has no further replica yet: %s", e.Workload, e.For)
	case drain.Surged:
		t.row(e.Node).detail = fmt.Sprintf("further replica of %s Ready on %s", e.Workload, listed(ranges(e.On), 4))
	case drain.Wave:
		r := t.row(e.Node)
		r.total = max(r.total, r.gone+e.Pods+e.Waiting)
		r.detail = fmt.Sprintf("%d of %d pods gone", r.gone, r.total)
	case drain.PodGone:
		r := t.row(e.Node)
		r.gone++
		r.detail = fmt.Sprintf("%d of %d pods gone", r.gone, max(r.total, r.gone))
	case drain.Waiting:
		t.row(e.Node).detail = waitingText(e)
	case drain.ReturnPending:
		t.row(e.Node).detail = returnPendingText(e)
	case drain.Returned:
		t.row(e.Node).detail = returnedText(e)
	}
}

// Rows of the table: those under way, and around them the last that are done and the next.
const (
	rowsDone = 3
	rowsNext = 4
)

// lines are the table as it is now; all rows when the roll is over and few enough.
func (t *rollTable) lines(all bool) []string {
	if len(t.order) == 0 {
		return nil
	}
	now := t.now()
	var done, under, next []string
	var took time.Duration
	for _, name := range t.order {
		switch r := t.rows[name]; r.step {
		case rolling.Done:
			done = append(done, name)
			took += r.took
		case rolling.Waiting:
			next = append(next, name)
		default:
			under = append(under, name)
		}
	}
	all = all && len(t.order) <= 40
	shown := slices.Clone(done)
	if !all {
		shown = shown[max(0, len(done)-rowsDone):]
	}
	shown = append(shown, under...)
	if all {
		shown = append(shown, next...)
	} else {
		shown = append(shown, next[:min(len(next), rowsNext)]...)
	}
	tab := table{head: []string{"NODE", "STEP", "TIME", ""}}
	for _, name := range shown {
		r := t.rows[name]
		tab.row(name, string(r.step), r.time(now), r.detail)
	}
	lines := strings.Split(strings.TrimRight(tab.String(), "\n"), "\n")
	sum := fmt.Sprintf("%d of %s done", len(done)+t.early, count(len(t.order)+t.early, "node"))
	if len(done) > 0 && len(next)+len(under) > 0 {
		mean := took / time.Duration(len(done))
		left := mean * time.Duration(len(next)+len(under)) / time.Duration(max(1, len(under)))
		sum += fmt.Sprintf(", about %s left by the %s of those done here", span2(left), span2(mean))
	}
	return append(lines, sum)
}

func (r *rollRow) time(now time.Time) string {
	switch r.step {
	case rolling.Waiting:
		return ""
	case rolling.Done:
		return seconds(r.took.Round(time.Second))
	}
	return seconds(now.Sub(r.since).Round(time.Second))
}

func (t *rollTable) erase() {
	if t.drawn > 0 {
		fmt.Fprintf(t.errOut, "\x1b[%dA\x1b[J", t.drawn)
		t.drawn = 0
	}
}

// redraw removes the table, writes what is to stay and draws the table anew. Rows are cut at the width of the terminal, so
// that one row is one line.
func (t *rollTable) redraw(stay []line) {
	t.erase()
	for _, l := range stay {
		w := io.Writer(escaping{t.errOut})
		if l.result {
			w = t.out
		}
		fmt.Fprintln(w, strings.ReplaceAll(l.text, "\n", " "))
	}
	for _, text := range t.lines(false) {
		fmt.Fprintln(t.errOut, t.cut(text))
		t.drawn++
	}
}

func (t *rollTable) cut(text string) string {
	runes := []rune(strings.ReplaceAll(escape(text), "\n", " "))
	return string(runes[:min(len(runes), t.columns)])
}

func (t *rollTable) note(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.redraw([]line{{text: text}})
}

// close leaves the table as it is at the end.
func (t *rollTable) close() {
	t.once.Do(func() {
		close(t.stop)
		<-t.done
		t.mu.Lock()
		defer t.mu.Unlock()
		t.erase()
		for _, text := range t.lines(true) {
			fmt.Fprintln(t.errOut, t.cut(text))
		}
	})
}

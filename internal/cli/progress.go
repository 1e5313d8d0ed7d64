package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/safedrain/safedrain/internal/drain"
)

// progress shows the events of a run as they come; any goroutine may emit.
type progress interface {
	emit(drain.Event)
	// note is a line that is no event.
	note(text string)
	// close leaves the screen as it is to stay.
	close()
}

// line is one line of progress.
type line struct {
	result bool // a result, for stdout; else progress for stderr
	stamp  bool // begins with the time
	text   string
}

func resultLine(format string, args ...any) line {
	return line{result: true, text: fmt.Sprintf(format, args...)}
}

func stamped(format string, args ...any) line {
	return line{stamp: true, text: fmt.Sprintf(format, args...)}
}

// newProgress chooses between a screen that is redrawn and lines. With a document on stdout, results go to stderr too.
func (a *app) newProgress(dryRun drain.DryRun, document bool) progress {
	out := a.streams.Out
	if document {
		out = a.streams.ErrOut
	}
	n := &narrator{suffix: dryRunSuffix(dryRun)}
	columns, ok := redraws(a.streams.ErrOut)
	if !ok {
		return &plainProgress{narrator: n, out: escaping{out}, errOut: escaping{a.streams.ErrOut}, now: time.Now}
	}
	_, together := redraws(out)
	return newScreen(n, out, a.streams.ErrOut, columns, together)
}

// dryRunSuffix is what kubectl adds to its lines.
func dryRunSuffix(d drain.DryRun) string {
	switch d {
	case drain.DryRunClient:
		return " (dry run)"
	case drain.DryRunServer:
		return " (server dry run)"
	}
	return ""
}

// plainProgress writes a line for each change, with the time in UTC.
type plainProgress struct {
	mu       sync.Mutex
	narrator *narrator
	out      io.Writer
	errOut   io.Writer
	now      func() time.Time
}

func (p *plainProgress) emit(ev drain.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.narrator.lines(ev) {
		p.write(l)
	}
}

func (p *plainProgress) write(l line) {
	w, text := p.errOut, strings.ReplaceAll(l.text, "\n", " ")
	if l.result {
		w = p.out
	}
	if l.stamp {
		text = p.now().UTC().Format(time.RFC3339) + " " + text
	}
	fmt.Fprintln(w, text)
}

func (p *plainProgress) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write(line{text: text})
}

func (p *plainProgress) close() {}

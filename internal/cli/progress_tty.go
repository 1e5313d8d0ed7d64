package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/safedrain/safedrain/internal/drain"
)

// redrawEvery is how often the times on the status lines move on.
const redrawEvery = time.Second

// screen shows a run on a terminal: lines that stay, and below them at most three that are redrawn in place: what is
// being withdrawn, the pods, and what holds them.
type screen struct {
	mu       sync.Mutex
	narrator *narrator
	out      io.Writer
	errOut   io.Writer
	columns  int
	together bool // stdout is a terminal too: pods are counted there, not listed

	pending map[string]drain.ProofPending // by node and Service
	order   []string
	pods    podCount
	drawn   int // rows of the status on the screen now
	stop    chan struct{}
	done    chan struct{}
	once    sync.Once
}

// podCount is what the status line of the pods says.
type podCount struct {
	node        string
	total, gone int
	waiting     drain.Waiting
	since       time.Time
	began       time.Time
}

func newScreen(n *narrator, out, errOut io.Writer, columns int, together bool) *screen {
	s := &screen{
		narrator: n, out: escaping{out}, errOut: errOut, columns: columns, together: together,
		pending: map[string]drain.ProofPending{}, stop: make(chan struct{}), done: make(chan struct{}),
	}
	go s.tick()
	return s
}

func (s *screen) tick() {
	defer close(s.done)
	t := time.NewTicker(redrawEvery)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			s.mu.Lock()
			s.redraw(nil, time.Now())
			s.mu.Unlock()
		}
	}
}

func (s *screen) emit(ev drain.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.take(ev, now)
	var stay []line
	for _, l := range s.narrator.lines(ev) {
		if d, ok := ev.(drain.Drained); ok && l.result && s.together {
			l.text += fmt.Sprintf(" in %s: %s evicted, %d stay", seconds(d.Took), count(d.Evicted, "pod"), d.Stay)
		}
		if s.stays(ev, l) {
			stay = append(stay, l)
		}
	}
	s.redraw(stay, now)
}

// stays reports whether a line is to remain; what the status lines say for a while does not.
func (s *screen) stays(ev drain.Event, l line) bool {
	if l.result && !s.together {
		return true
	}
	switch ev.(type) {
	case drain.PodGone, drain.PodEvicted:
		return false
	case drain.ProofPending, drain.Withdrawing, drain.Wave, drain.Waiting, drain.SurgePending:
		return false
	}
	return true
}

// take updates what the status lines show.
func (s *screen) take(ev drain.Event, now time.Time) {
	switch e := ev.(type) {
	case drain.Withdrawing:
		if noBalancer(e.Hook) {
			return
		}
		s.show(e.Node+" "+e.Service, drain.ProofPending{
			Node: e.Node, Service: e.Service, Hook: e.Hook, Timeout: e.Timeout, Evidence: "withdrawing",
		})
	case drain.ProofPending:
		s.show(e.Node+" "+e.Service, e)
	case drain.Proven:
		delete(s.pending, e.Node+" "+e.Service)
	case drain.NotProven:
		delete(s.pending, e.Node+" "+e.Service)
	case drain.Wave:
		if s.pods.node != e.Node {
			s.pods = podCount{node: e.Node, began: now}
		}
		s.pods.total = max(s.pods.total, s.pods.gone+e.Pods+e.Waiting)
	case drain.PodGone:
		s.pods.gone++
	case drain.Waiting:
		s.pods.waiting, s.pods.since = e, now
		s.pods.total, s.pods.gone = max(s.pods.total, e.Total), max(s.pods.gone, e.Gone)
	case drain.Drained:
		s.pods = podCount{}
	}
}

func (s *screen) show(key string, p drain.ProofPending) {
	if _, ok := s.pending[key]; !ok {
		s.order = append(s.order, key)
	}
	s.pending[key] = p
}

// status is the lines to redraw; at most three.
func (s *screen) status(now time.Time) []string {
	var lines []string
	for _, key := range s.order {
		if p, ok := s.pending[key]; ok && len(lines) == 0 {
			text := pendingText(p)
			if len(s.pending) > 1 {
				text += fmt.Sprintf(" (+%d)", len(s.pending)-1)
			}
			lines = append(lines, text)
		}
	}
	if p := &s.pods; p.total > 0 {
		lines = append(lines, fmt.Sprintf("pods  %d of %d gone, %s", p.gone, p.total, seconds(now.Sub(p.began))))
		if w := p.waiting; len(w.Blocked) > 0 || w.Terminating > 0 {
			lines = append(lines, waitingText(w))
		}
	}
	return lines
}

// redraw removes the status, writes what is to stay and draws the status anew.
func (s *screen) redraw(stay []line, now time.Time) {
	if s.drawn > 0 {
		fmt.Fprintf(s.errOut, "\x1b[%dA\x1b[J", s.drawn)
		s.drawn = 0
	}
	for _, l := range stay {
		w := io.Writer(escaping{s.errOut})
		if l.result {
			w = s.out
		}
		fmt.Fprintln(w, strings.ReplaceAll(l.text, "\n", " "))
	}
	for _, text := range s.status(now) {
		text = oneLine(text)
		fmt.Fprintln(s.errOut, text)
		s.drawn += 1 + (max(1, utf8.RuneCountInString(text))-1)/s.columns
	}
}

func (s *screen) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.redraw([]line{{text: text}}, time.Now())
}

func (s *screen) close() {
	s.once.Do(func() {
		close(s.stop)
		<-s.done
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pending, s.pods = nil, podCount{}
		s.redraw(nil, time.Now())
	})
}

package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// MaxAnswer is the size in bytes above which an answer is not read.
const MaxAnswer = 64 << 10

// maxLine bounds a line of evidence or of an error's cause, in characters.
const maxLine = 300

// Answer is what is told back. Unknown fields are errors: a field that is misspelled must not be taken as left out.
type Answer struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Out says whether the node is out of rotation. An answer to prove must have it.
	Out *bool `json:"out,omitempty"`
	// Idle says, of a node that is not out, that the balancer sends nothing to it now: its own check of it fails.
	Idle bool `json:"idle,omitempty"`
	// Evidence is one line: what was seen. An answer to prove must have it.
	Evidence string `json:"evidence,omitempty"`
	// By names who took over, where the balancer tells.
	By string `json:"by,omitempty"`
	// Settle is a time to wait after the proof, "5s", in place of the hook's own.
	Settle string `json:"settle,omitempty"`
}

// ParseAnswer reads one answer.
func ParseAnswer(data []byte) (*Answer, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	a := &Answer{}
	if err := decoder.Decode(a); err != nil {
		return nil, fmt.Errorf("the answer is no %s: %w", KindAnswer, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("more than one document in the answer")
	}
	if a.APIVersion != APIVersion || a.Kind != KindAnswer {
		return nil, fmt.Errorf("the answer is %s %s, want %s %s", a.APIVersion, a.Kind, APIVersion, KindAnswer)
	}
	return a, nil
}

// Proof turns an answer to prove into an observation.
func (a *Answer) Proof() (lbhooks.Proof, error) {
	p := lbhooks.Proof{Evidence: Line(a.Evidence), By: Line(a.By)}
	switch {
	case a.Out == nil:
		return lbhooks.Proof{}, errors.New("the answer does not say out: true or false")
	case p.Evidence == "":
		return lbhooks.Proof{}, errors.New("the answer has no evidence: it has to say what was seen")
	}
	p.Out, p.Idle = *a.Out, a.Idle
	if p.Out && p.Idle {
		return lbhooks.Proof{}, errors.New("the answer says out and idle: a node that is out for good is not idle")
	}
	if a.Settle != "" {
		settle, err := time.ParseDuration(a.Settle)
		if err != nil || settle < 0 {
			return lbhooks.Proof{}, fmt.Errorf("the answer's settle %q is not a duration: write 5s", a.Settle)
		}
		p.Settle = &settle
	}
	return p, nil
}

// Line makes one line of a text: blanks of any kind become one blank, what cannot be printed goes, and the end is cut.
func Line(text string) string {
	printable := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, text)
	line := []rune(strings.Join(strings.Fields(printable), " "))
	if len(line) > maxLine {
		line = append(line[:maxLine-1], '…')
	}
	return string(line)
}

// LastLine is the last line of a text that is not empty.
func LastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return Line(lines[len(lines)-1])
}

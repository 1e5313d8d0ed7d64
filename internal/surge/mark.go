package surge

import (
	"fmt"
	"strconv"
	"strings"
)

// Mark is what the label says.
type Mark struct {
	From *int64 // nil: the field was absent
	To   int64
	Run  string // the first part of the run's identity
}

// runPart is as much of a run's identity as the label has.
func runPart(run string) string {
	part, _, _ := strings.Cut(run, "-")
	return part[:min(len(part), 16)]
}

// absent is how the label says that the field was not there.
const absent = "none"

func (m Mark) String() string {
	from := absent
	if m.From != nil {
		from = strconv.FormatInt(*m.From, 10)
	}
	return fmt.Sprintf("%s-%d-%s", from, m.To, m.Run)
}

// parseMark reads the label; nil when it is not one of ours.
func parseMark(text string) *Mark {
	parts := strings.SplitN(text, "-", 3)
	if len(parts) != 3 {
		return nil
	}
	m := &Mark{Run: parts[2]}
	if parts[0] != absent {
		n, err := strconv.ParseInt(parts[0], 10, 32)
		if err != nil {
			return nil
		}
		m.From = &n
	}
	var err error
	if m.To, err = strconv.ParseInt(parts[1], 10, 32); err != nil {
		return nil
	}
	return m
}

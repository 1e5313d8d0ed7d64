package cli

import (
	"io"
	"os"

	"golang.org/x/term"
)

// Streams are the ends of a process: where it reads, where results go, and where all else goes.
type Streams struct {
	In     io.Reader
	Out    io.Writer // results only
	ErrOut io.Writer // progress, warnings, errors
}

// width is that of a terminal that does not tell its own.
const width = 100

// redraws reports whether status lines on w may be redrawn in place: a terminal that can move its cursor.
func redraws(w io.Writer) (columns int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || os.Getenv("TERM") == "dumb" || os.Getenv("TERM") == "" {
		return 0, false
	}
	fd := int(f.Fd())
	if !term.IsTerminal(fd) {
		return 0, false
	}
	columns, _, err := term.GetSize(fd)
	if err != nil || columns <= 0 {
		columns = width
	}
	return columns, true
}

package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// escape makes text that came from a cluster or a file safe for a terminal: control characters, those that turn the
// direction of text, and bytes that are no UTF-8 are written as escapes. Line feeds and tabs stay.
func escape(s string) string {
	if strings.IndexFunc(s, unsafeRune) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unsafeRune(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		s = s[size:]
	}
	return b.String()
}

func unsafeRune(r rune) bool {
	return r == utf8.RuneError || r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r))
}

// escaping is a writer of text that passes everything through escape.
type escaping struct{ w io.Writer }

func (e escaping) Write(p []byte) (int, error) {
	if _, err := io.WriteString(e.w, escape(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// oneLine is escape for a place where a line feed would forge a line.
func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(escape(s), "\n", " ")), " ")
}

package protocol_test

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// The two documents of the page are those of the code, with every field there is.
func TestDocumentedDocuments(t *testing.T) {
	const page = "../../../docs/hooks/protocol.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(text, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d documents in %s, want 2", len(blocks), page)
	}
	var request protocol.Request
	decoder := json.NewDecoder(bytes.NewReader(blocks[0][1]))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{request, request.Node, request.Service, request.Service.Ports[0]} {
		for i := range reflect.TypeOf(v).NumField() {
			if reflect.ValueOf(v).Field(i).IsZero() {
				t.Errorf("%s.%s is not in the example", reflect.TypeOf(v), reflect.TypeOf(v).Field(i).Name)
			}
		}
	}
	again, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	var one, two any
	if json.Unmarshal(blocks[0][1], &one) != nil || json.Unmarshal(again, &two) != nil || !cmp.Equal(one, two) {
		t.Errorf("the example is not what is sent:\n%s", cmp.Diff(one, two))
	}
	answer, err := protocol.ParseAnswer(blocks[1][1])
	if err != nil {
		t.Fatal(err)
	}
	if p, err := answer.Proof(); err != nil || !p.Out || p.By != "node-7" || *p.Settle != 5*time.Second || p.Evidence == "" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestLine(t *testing.T) {
	long := string(bytes.Repeat([]byte("é"), 400))
	for name, test := range map[string]struct{ in, line, last string }{
		"empty":             {"", "", ""},
		"blanks":            {" a\t b \r\n", "a b", "a b"},
		"lines":             {"a\nb\n\n", "a b", "b"},
		"escapes":           {"a\x1b[31mb\x00", "a[31mb", "a[31mb"},
		"what is no text":   {"a\xffb", "ab", "ab"},
		"longer than shown": {long, string([]rune(long)[:299]) + "…", string([]rune(long)[:299]) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := protocol.Line(test.in); got != test.line {
				t.Errorf("Line %q, want %q", got, test.line)
			}
			if got := protocol.LastLine(test.in); got != test.last {
				t.Errorf("LastLine %q, want %q", got, test.last)
			}
		})
	}
}

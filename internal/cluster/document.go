package cluster

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// document is one YAML or JSON document of an input.
type document struct {
	text []byte
	line int // where it begins in its input, from 1
}

// documents splits an input at the document markers of YAML. Documents of blanks and comments alone are left out.
func documents(data []byte) ([]document, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if bytes.IndexByte(data, 0) >= 0 || !utf8.Valid(data) {
		return nil, errors.New("not UTF-8 text")
	}
	var docs []document
	start, startLine, content := 0, 1, false
	cut := func(end, next, nextLine int) {
		if content {
			docs = append(docs, document{data[start:end], startLine})
		}
		start, startLine, content = next, nextLine, false
	}
	for at, line := 0, 1; at < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		text := data[at:end]
		switch {
		case marker(text, "---"):
			cut(at, at+3, line)
			content = meaningful(text[3:])
		case marker(text, "..."):
			cut(at, end, line+1)
		case !content && meaningful(text) && text[0] != '%': // a directive belongs to the document that follows
			content, startLine = true, line
		}
		at = end
	}
	cut(len(data), len(data), 0)
	return docs, nil
}

// marker reports whether a line is a document marker.
func marker(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || rest[0] == '\n' || rest[0] == '\r' || rest[0] == ' ' || rest[0] == '\t')
}

// meaningful reports whether a line is neither blank nor a comment.
func meaningful(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && line[0] != '#'
}

// values calls each for every JSON value of the document: a YAML document is one, JSON values may follow one another.
func (d document) values(each func(json []byte) error) error {
	trimmed := bytes.TrimSpace(d.text)
	if len(trimmed) == 0 || trimmed[0] != '{' {
		json, err := yamlToJSON(d.text)
		if err != nil {
			return err
		}
		return each(json)
	}
	all, jsonErr := jsonValues(trimmed)
	if jsonErr != nil {
		if len(trimmed) > maxFlow {
			return jsonErr
		}
		json, err := yamlToJSON(d.text)
		if err != nil {
			return jsonErr
		}
		all = [][]byte{json}
	}
	for _, json := range all {
		if err := each(json); err != nil {
			return err
		}
	}
	return nil
}

// maxFlow is the most that a document which begins with a brace and is no JSON may hold to be tried as YAML in flow style:
// written by hand.
const maxFlow = 1 << 20

// jsonValues splits JSON values that follow one another.
func jsonValues(text []byte) ([][]byte, error) {
	var all [][]byte
	dec := stdjson.NewDecoder(bytes.NewReader(text))
	for {
		var raw stdjson.RawMessage
		err := dec.Decode(&raw)
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, errors.New("JSON ends in the middle of a value: the file is truncated")
		case err != nil:
			return nil, fmt.Errorf("invalid JSON: %w", err)
		}
		all = append(all, raw)
	}
}

// yamlToJSON converts one YAML document; duplicate keys, excessive aliasing and text after its end are errors.
func yamlToJSON(text []byte) ([]byte, error) {
	if len(text) > MaxYAML {
		return nil, fmt.Errorf("more than %d MiB in one YAML document: dump with -o json", MaxYAML>>20)
	}
	if plainMapping(text) {
		json, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return nil, fmt.Errorf("invalid YAML: %w", err)
		}
		return json, nil
	}
	// The parser stops at the end of the first node and would ignore what follows it. As the value of a key the
	// document cannot end early.
	indented := append([]byte("v:\n  "), bytes.ReplaceAll(text, []byte("\n"), []byte("\n  "))...)
	json, err := yaml.YAMLToJSONStrict(indented)
	if err != nil {
		return nil, fmt.Errorf("invalid YAML: %w", err)
	}
	var whole struct {
		V stdjson.RawMessage `json:"v"`
	}
	if err := stdjson.Unmarshal(json, &whole); err != nil {
		return nil, fmt.Errorf("invalid YAML: %w", err)
	}
	return whole.V, nil
}

// plainMapping reports whether a document begins with a key in the first column. Such a mapping ends only where the
// document ends.
func plainMapping(text []byte) bool {
	for line := range bytes.Lines(text) {
		if meaningful(line) {
			return line[0] >= 'a' && line[0] <= 'z' || line[0] >= 'A' && line[0] <= 'Z'
		}
	}
	return true
}

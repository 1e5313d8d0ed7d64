// Command schemas writes testdata/crds: the kinds of others that deploy/ makes objects of, from the Go modules that define
// them. What people read (descriptions) and what no object here uses is left out, so that the copies stay small; both only
// makes them stricter.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// source is one definition: a module with its version, a file of it, and properties of the spec that are left out.
type source struct {
	module, file string
	without      []string
}

const (
	certManager = "github.com/cert-manager/cert-manager@v1.21.2"
	prometheus  = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

var sources = map[string]source{
	"certificates":    {certManager, "deploy/crds/cert-manager.io_certificates.yaml", nil},
	"issuers":         {certManager, "deploy/crds/cert-manager.io_issuers.yaml", []string{"acme", "vault", "venafi"}},
	"servicemonitors": {prometheus, "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml", nil},
	"prometheusrules": {prometheus, "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml", nil},
}

func main() {
	dir := flag.String("dir", filepath.Join("deploy", "testdata", "crds"), "where the copies go")
	flag.Parse()
	for name, s := range sources {
		if err := s.copy(context.Background(), filepath.Join(*dir, name+".yaml")); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
	}
}

// copy writes the definition to a file.
func (s source) copy(ctx context.Context, path string) error {
	dir, err := download(ctx, s.module)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(s.file)))
	if err != nil {
		return err
	}
	var crd map[string]any
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return fmt.Errorf("%s: %w", s.file, err)
	}
	for _, version := range dig(crd, "spec")["versions"].([]any) {
		schema := dig(version.(map[string]any), "schema", "openAPIV3Schema")
		for _, property := range s.without {
			delete(dig(schema, "properties", "spec", "properties"), property)
		}
		undescribe(schema)
	}
	if text, err = yaml.Marshal(crd); err != nil {
		return err
	}
	head := fmt.Sprintf("# %s of %s, Apache License 2.0, without descriptions", s.file, s.module)
	if len(s.without) > 0 {
		head += fmt.Sprintf(" and without %v", s.without)
	}
	return os.WriteFile(path, append([]byte(head+". Written by test/deploy/schemas.\n"), text...), 0o644)
}

// download returns the directory of a module's files.
func download(ctx context.Context, module string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
	var answer struct{ Dir, Error string }
	if decoded := json.Unmarshal(out, &answer); decoded != nil || answer.Error != "" {
		return "", errors.Join(fmt.Errorf("download %s: %s", module, answer.Error), err, decoded)
	}
	return answer.Dir, nil
}

// dig follows fields, which have to be there.
func dig(object map[string]any, fields ...string) map[string]any {
	for _, f := range fields {
		object = object[f].(map[string]any)
	}
	return object
}

// undescribe removes the descriptions of a schema and of all below it; a property may well be called description.
func undescribe(schema map[string]any) {
	delete(schema, "description")
	for _, name := range []string{"items", "additionalProperties", "not"} {
		if below, ok := schema[name].(map[string]any); ok {
			undescribe(below)
		}
	}
	if properties, ok := schema["properties"].(map[string]any); ok {
		for _, below := range properties {
			undescribe(below.(map[string]any))
		}
	}
	for _, name := range []string{"allOf", "anyOf", "oneOf"} {
		for _, below := range list(schema[name]) {
			undescribe(below)
		}
	}
}

func list(v any) []map[string]any {
	var out []map[string]any
	all, _ := v.([]any)
	for _, e := range all {
		out = append(out, e.(map[string]any))
	}
	return out
}

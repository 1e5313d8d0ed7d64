package deploy

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Installs are the kustomizations that are rendered into files of their own, below deploy/kustomize/install.
var Installs = []string{"warn", "enforce-clamp", "enforce-deny"}

// Generated returns the files below deploy/ that others are made into, by their paths relative to it: the rendered
// installs, and what the chart has in common with the kustomizations.
func Generated(deploy string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range Installs {
		text, err := Kustomize(filepath.Join(deploy, "kustomize", "install", name))
		if err != nil {
			return nil, err
		}
		head := "# Made of deploy/kustomize/install/" + name + " by `make manifests`; a change is made there.\n"
		files["install/"+name+".yaml"] = append([]byte(head), text...)
	}
	monitoring := filepath.Join(deploy, "kustomize", "components", "monitoring")
	dashboard, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		return nil, err
	}
	files["chart/files/dashboard.json"] = dashboard
	rule, err := os.ReadFile(filepath.Join(monitoring, "prometheusrule.yaml"))
	if err != nil {
		return nil, err
	}
	spec, err := specOf(string(rule))
	if err != nil {
		return nil, err
	}
	files["chart/files/alerts.yaml"] = []byte(spec)
	return files, nil
}

// specOf cuts the spec out of a manifest that ends with it, comments included.
func specOf(manifest string) (string, error) {
	_, spec, found := strings.Cut(manifest, "\nspec:\n")
	if !found {
		return "", errors.New("a manifest without spec")
	}
	lines := strings.SplitAfter(spec, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, ""), nil
}

// Stale lists those of the generated files that are not up to date, sorted.
func Stale(deploy string, files map[string][]byte) ([]string, error) {
	var stale []string
	for name, want := range files {
		have, err := os.ReadFile(filepath.Join(deploy, name))
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		if !bytes.Equal(have, want) {
			stale = append(stale, name)
		}
	}
	slices.Sort(stale)
	return stale, nil
}

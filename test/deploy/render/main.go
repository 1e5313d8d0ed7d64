// Command render writes the generated files below deploy/: the rendered installs and what the chart shares with the
// kustomizations. With -check it changes nothing and fails when one is not up to date.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/safedrain/safedrain/test/deploy"
)

func main() {
	check := flag.Bool("check", false, "change nothing, fail when a file is not up to date")
	dir := flag.String("dir", filepath.Join("..", "deploy"), "the directory deploy")
	flag.Parse()
	if err := run(*dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(dir string, check bool) error {
	files, err := deploy.Generated(dir)
	if err != nil {
		return err
	}
	stale, err := deploy.Stale(dir, files)
	if err != nil {
		return err
	}
	if check && len(stale) > 0 {
		return fmt.Errorf("not up to date below %s: %s: make manifests", dir, strings.Join(stale, ", "))
	}
	for _, name := range stale {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // manifests are for everybody
			return err
		}
		if err := os.WriteFile(path, files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Command promql checks files by the rules of Prometheus: alerting rules (.yaml) as Prometheus loads them, and the queries of
// Grafana's dashboards (.json). It prints the name of every metric that they read, a line each, or fails with every mistake.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	metrics := map[string]bool{}
	var wrong []error
	for _, file := range os.Args[1:] {
		wrong = append(wrong, check(file, metrics))
	}
	if err := errors.Join(wrong...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		fmt.Println(name)
	}
}

// check reads a file and adds the metrics that it reads.
func check(file string, metrics map[string]bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	queries, err := queriesOf(file, text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	p := parser.NewParser(parser.Options{})
	for _, query := range queries {
		expr, err := p.ParseExpr(query)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", file, query, err)
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if v, ok := node.(*parser.VectorSelector); ok {
				metrics[v.Name] = true
			}
			return nil
		})
	}
	return nil
}

// queriesOf returns the queries of a file of rules or of a dashboard; there has to be one.
func queriesOf(file string, text []byte) ([]string, error) {
	var queries []string
	switch filepath.Ext(file) {
	case ".yaml":
		groups, errs := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		for _, group := range groups.Groups {
			for _, rule := range group.Rules {
				queries = append(queries, rule.Expr)
			}
		}
	case ".json":
		var dashboard struct {
			Panels []struct{ Targets []struct{ Expr string } }
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			return nil, err
		}
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				queries = append(queries, strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
			}
		}
	}
	if len(queries) == 0 {
		return nil, errors.New("no queries")
	}
	return queries, nil
}

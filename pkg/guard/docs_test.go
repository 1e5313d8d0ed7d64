package guard

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEveryCodeIsDocumented compares the constants of finding.go with the rows of docs/findings.md.
func TestEveryCodeIsDocumented(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "finding.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Code" {
				declared = append(declared, v.Names[0].Name)
			}
		}
		return true
	})
	doc, err := os.ReadFile("../../docs/findings.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z][A-Za-z]+) \| (?:Block|Unproven|Warn|Info)`).FindAllSubmatch(doc, -1) {
		documented = append(documented, string(m[1]))
	}
	slices.Sort(declared)
	slices.Sort(documented)
	if d := cmp.Diff(declared, documented); d != "" {
		t.Errorf("codes in finding.go and not in docs/findings.md (-), or the other way round (+):\n%s", d)
	}
}

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHooksIAM prints what docs/iam publishes, without a cluster, for the options that are given.
func TestHooksIAM(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		file string // of docs/iam; "" for a usage error
		says string
	}{
		"aws":               {args: []string{"aws"}, file: "aws.json"},
		"aws that acts":     {args: []string{"aws", "--hook-option=aws.deregister=true"}, file: "aws-deregister.json"},
		"aws told not to":   {args: []string{"aws", "--hook-option=aws.deregister=false"}, file: "aws.json"},
		"azure":             {args: []string{"azure"}, file: "azure.json"},
		"gcp":               {args: []string{"gcp"}, file: "gcp.yaml"},
		"no hook":           {says: "name the hook, as in safedrain hooks aws --iam"},
		"in the cluster":    {args: []string{"metallb-l2"}, says: "needs no rights outside the cluster; these do: aws, azure, gcp"},
		"an unknown one":    {args: []string{"awss"}, says: "these do: aws, azure, gcp"},
		"as a document":     {args: []string{"aws", "-o", "yaml"}, says: "leave out --fix, --output"},
		"with repairs":      {args: []string{"aws", "--fix"}, says: "leave out --fix"},
		"of a dump":         {args: []string{"aws", "--example"}, says: "--file and --example"},
		"a mistaken option": {args: []string{"aws", "--hook-option=aws.deregister=perhaps"}, says: `option deregister="perhaps"`},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := Run(t.Context(), Process{
				Args:    append([]string{"safedrain", "hooks", "--iam"}, test.args...),
				Streams: Streams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut},
			})
			if test.file == "" {
				if code != 2 || out.Len() > 0 || !strings.Contains(errOut.String(), test.says) {
					t.Errorf("exit code %d, %q on stdout, want 2 and %q: %s", code, out.String(), test.says, errOut.String())
				}
				return
			}
			want, err := os.ReadFile(filepath.Join("..", "..", "docs", "iam", test.file))
			if err != nil {
				t.Fatal(err)
			}
			if code != 0 || out.String() != string(want) || errOut.Len() > 0 {
				t.Errorf("exit code %d, -want +got %s %s\n%s", code, test.file, out.String(), errOut.String())
			}
		})
	}
}

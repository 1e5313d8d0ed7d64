package hookset

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/docs/iam"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/aws"
	"github.com/safedrain/safedrain/pkg/lbhooks/azure"
	"github.com/safedrain/safedrain/pkg/lbhooks/gcp"
)

// policies are the files of docs/iam with the least rights of each hook that needs rights outside the cluster, by the
// hook's options.
var policies = map[string]func(lbhooks.Options) string{
	aws.Name: func(o lbhooks.Options) string {
		if aws.Deregisters(o) {
			return "aws-deregister.json"
		}
		return "aws.json"
	},
	azure.Name: func(lbhooks.Options) string { return "azure.json" },
	gcp.Name:   func(lbhooks.Options) string { return "gcp.yaml" },
}

// Policy returns the least rights outside the cluster of a hook with these settings, in the form that its provider reads.
// The error says which hooks need any.
func Policy(hook string, s Settings) ([]byte, error) {
	file := policies[hook]
	if file == nil {
		return nil, fmt.Errorf("hook %q needs no rights outside the cluster; these do: %s", hook, strings.Join(slices.Sorted(maps.Keys(policies)), ", "))
	}
	return iam.Files.ReadFile(file(s.options[hook]))
}

package hookset

import (
	"fmt"
	"strings"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/aws"
	"github.com/safedrain/safedrain/pkg/lbhooks/azure"
	execcmd "github.com/safedrain/safedrain/pkg/lbhooks/exec"
	"github.com/safedrain/safedrain/pkg/lbhooks/gcp"
	httphook "github.com/safedrain/safedrain/pkg/lbhooks/http"
	"github.com/safedrain/safedrain/pkg/lbhooks/kubevip"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/pkg/lbhooks/outside"
)

// knownOptions are the options of each hook that has any, by the hook's name: "aws": aws.Options(). A hook without an
// entry knows none.
var knownOptions = map[string][]lbhooks.Option{
	aws.Name:      aws.Options(),
	azure.Name:    azure.Options(),
	gcp.Name:      gcp.Options(),
	execcmd.Name:  execcmd.Options(),
	httphook.Name: httphook.Options(),
	kubevip.Name:  outside.Options(),
	metallb.L2:    outside.Options(),
}

// named are the hooks that may be configured more than once, under names of their own.
var named = []string{execcmd.Name, httphook.Name}

// ParseOptions reads the values of --hook-option, "name.key=value": the options of each hook by its name. A value given
// twice for one key is a mistake unless it is the same.
func ParseOptions(values []string) (map[string]map[string]string, error) {
	out := map[string]map[string]string{}
	for _, text := range values {
		path, value, ok := strings.Cut(text, "=")
		name, key, dot := strings.Cut(path, ".")
		if !ok || !dot || name == "" || key == "" {
			return nil, fmt.Errorf("hook option %q: write name.key=value", text)
		}
		if out[name] == nil {
			out[name] = map[string]string{}
		}
		if other, twice := out[name][key]; twice && other != value {
			return nil, fmt.Errorf("hook option %q: %s is %q already", text, path, other)
		}
		out[name][key] = value
	}
	return out, nil
}

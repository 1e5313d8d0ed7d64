// Package hookset knows every hook: the one map from name to constructor, and the order in which they are asked who
// fronts a Service.
package hookset

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/aws"
	"github.com/safedrain/safedrain/pkg/lbhooks/azure"
	"github.com/safedrain/safedrain/pkg/lbhooks/calico"
	"github.com/safedrain/safedrain/pkg/lbhooks/cilium"
	"github.com/safedrain/safedrain/pkg/lbhooks/cloudprovider"
	execcmd "github.com/safedrain/safedrain/pkg/lbhooks/exec"
	"github.com/safedrain/safedrain/pkg/lbhooks/gcp"
	"github.com/safedrain/safedrain/pkg/lbhooks/healthcheck"
	httphook "github.com/safedrain/safedrain/pkg/lbhooks/http"
	"github.com/safedrain/safedrain/pkg/lbhooks/kuberouter"
	"github.com/safedrain/safedrain/pkg/lbhooks/kubevip"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/pkg/lbhooks/outside"
	"github.com/safedrain/safedrain/pkg/lbhooks/servicelb"
)

// constructors are all hooks by name. One that has options takes them from Deps.options and lists them in knownOptions.
var constructors = map[string]func(Deps) lbhooks.Hook{
	metallb.L2:         func(d Deps) lbhooks.Hook { return d.watched(metallb.NewL2(d.Kubernetes, d.Dynamic)) },
	metallb.BGP:        func(d Deps) lbhooks.Hook { return metallb.NewBGP(d.Kubernetes, d.Dynamic) },
	servicelb.Name:     func(d Deps) lbhooks.Hook { return servicelb.New(d.Kubernetes) },
	cilium.BGP:         func(d Deps) lbhooks.Hook { return cilium.NewBGP(d.Dynamic) },
	cilium.L2:          func(d Deps) lbhooks.Hook { return cilium.NewL2(d.Kubernetes, clock.RealClock{}) },
	calico.Name:        func(d Deps) lbhooks.Hook { return calico.New(d.Dynamic, clock.RealClock{}) },
	kuberouter.Name:    func(Deps) lbhooks.Hook { return kuberouter.New() },
	kubevip.Name:       func(d Deps) lbhooks.Hook { return d.watched(kubevip.New(d.Kubernetes, clock.RealClock{})) },
	azure.Name:         func(d Deps) lbhooks.Hook { return azure.New(d.Kubernetes, d.options(), azure.SDK{}) },
	gcp.Name:           func(d Deps) lbhooks.Hook { return gcp.New(d.Kubernetes, d.options(), gcp.SDK{}) },
	aws.Name:           func(d Deps) lbhooks.Hook { return aws.New(d.Kubernetes, d.Dynamic, d.options()) },
	healthcheck.Name:   func(d Deps) lbhooks.Hook { return healthcheck.New(d.HTTP) },
	cloudprovider.Name: func(d Deps) lbhooks.Hook { return cloudprovider.New(d.Kubernetes) },
	httphook.Name:      func(d Deps) lbhooks.Hook { return httphook.New(d.name, d.options(), d.Kubernetes == nil) },
	execcmd.Name:       func(d Deps) lbhooks.Hook { return execcmd.New(d.name, d.options(), d.Kubernetes == nil) },
}

// Deps are what hooks work with. Offline the clients are nil: then hooks match, and are taken at their word.
type Deps struct {
	Kubernetes kubernetes.Interface
	Dynamic    dynamic.Interface
	HTTP       *http.Client // for probes; nil: one without proxy
	// Override names the hook of a Service by namespace/name, or of every Service by [Every]; it wins over annotations.
	Override map[string]string
	// Disabled names hooks that never match by themselves.
	Disabled []string
	// Settings are what the operator configures: options of hooks, further hooks by name, rules. The zero value is nothing.
	Settings Settings

	name string // of the hook under construction
}

// options are those of the hook under construction; a constructor hands them to its hook.
func (d Deps) options() lbhooks.Options { return d.Settings.options[d.name] }

// watched adds a look from outside to the hook under construction, where its options ask for one.
func (d Deps) watched(hook lbhooks.Hook) lbhooks.Hook { return outside.Wrap(hook, d.options()) }

// Set is the hooks, ready to be asked.
type Set struct {
	hooks    map[string]lbhooks.Hook
	specific []string // sorted; they match by themselves
	generic  []string // sorted; asked when no specific one matches
	override map[string]string
	settings Settings
	live     bool // there is an API server, so hooks can be asked whether they work
	checks   checks
}

var _ cluster.Matcher = (*Set)(nil)

// New builds every hook.
func New(deps Deps) *Set {
	s := &Set{hooks: make(map[string]lbhooks.Hook, len(constructors)), override: deps.Override, settings: deps.Settings, live: deps.Kubernetes != nil, checks: checks{missing: map[string][]lbhooks.Missing{}, alone: map[guard.Key]string{}}}
	for name, construct := range constructors {
		deps.name = name
		hook := construct(deps)
		s.hooks[name] = hook
		switch {
		case slices.Contains(deps.Disabled, name):
		case hook.Describe().Generic:
			s.generic = append(s.generic, name)
		default:
			s.specific = append(s.specific, name)
		}
	}
	for name, typ := range deps.Settings.types {
		deps.name = name
		s.hooks[name] = constructors[typ](deps)
	}
	slices.Sort(s.specific)
	slices.Sort(s.generic)
	return s
}

// Hook returns the hook of that name.
func (s *Set) Hook(name string) (lbhooks.Hook, bool) {
	hook, ok := s.hooks[name]
	return hook, ok
}

// Names lists every hook, sorted.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.hooks))
	for name := range s.hooks {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Descriptions lists every hook and what it needs, sorted by name.
func (s *Set) Descriptions() []lbhooks.Description {
	out := make([]lbhooks.Description, 0, len(s.hooks))
	for _, hook := range s.hooks {
		out = append(out, hook.Describe())
	}
	slices.SortFunc(out, func(a, b lbhooks.Description) int { return strings.Compare(a.Name, b.Name) })
	return out
}

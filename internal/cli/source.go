package cli

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"slices"

	"github.com/spf13/pflag"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/testdata/example"
)

// SourceFlags say what is judged: the cluster, files, or the example that is built in.
type SourceFlags struct {
	Files   []string
	Example string
}

// exampleDefault is what a bare --example means.
const exampleDefault = "before"

var examples = []string{"before", "after", "metallb"}

func (f *SourceFlags) bind(fs *pflag.FlagSet) {
	fs.StringArrayVarP(&f.Files, "file", "f", nil, "Judge these files or directories (- for stdin) as kubectl get -o yaml writes them, instead of the cluster. Repeatable.")
	fs.StringVar(&f.Example, "example", "", "Judge an example that is built in: before, after or metallb.")
	fs.Lookup("example").NoOptDefVal = exampleDefault
}

func (f *SourceFlags) check() error {
	if f.Example != "" && len(f.Files) > 0 {
		return usagef("--example and --file exclude each other")
	}
	if f.Example != "" && !slices.Contains(examples, f.Example) {
		return usagef("--example=%s: there are before, after and metallb", f.Example)
	}
	return nil
}

// offline reports whether no cluster is asked.
func (f *SourceFlags) offline() bool { return f.Example != "" || len(f.Files) > 0 }

// world is what a command judges: objects, and the hooks that match among them.
type world struct {
	snap  *cluster.Snapshot
	hooks drain.Hooks
}

// descriptions are those of the hooks, by name.
func (w *world) descriptions() map[string]lbhooks.Description { return byName(w.hooks) }

func byName(hooks drain.Hooks) map[string]lbhooks.Description {
	out := map[string]lbhooks.Description{}
	for _, d := range hooks.Descriptions() {
		out[d.Name] = d
	}
	return out
}

// load reads files or the cluster. The scope's nodes only matter for the cluster.
func (a *app) load(ctx context.Context, f *SourceFlags, chosen choice, scope cluster.Scope) (*world, error) {
	if f.offline() {
		return a.read(ctx, f, chosen, scope)
	}
	c, err := a.kube.clients()
	if err != nil {
		return nil, err
	}
	hooks := newHooks(c, chosen)
	snap, err := cluster.Load(ctx, c, hooks.Descriptions(), scope)
	if err != nil {
		return nil, &connectError{kube: a.kube, err: err}
	}
	return &world{snap, hooks}, nil
}

// check asks the hooks behind the Services on some nodes, on all when none is named, whether they could work; offline
// they are taken at their word.
func (w *world) check(ctx context.Context, nodes []string) {
	if set, ok := w.hooks.(*hookset.Set); ok {
		set.Check(ctx, w.snap, nodes)
	}
}

// lacks lists what a hook said that it lacks when it was asked: nothing that a role of Kubernetes would mend.
func (w *world) lacks(hook string) []missing {
	set, ok := w.hooks.(*hookset.Set)
	if !ok {
		return nil
	}
	var out []missing
	for _, m := range set.Missing(hook) {
		out = append(out, missing{What: m.What, Why: m.Why})
	}
	return out
}

// newHooks builds the hooks; without clients they match only.
func newHooks(c *cluster.Clients, chosen choice) *hookset.Set {
	deps := hookset.Deps{Override: chosen.override, Settings: chosen.settings}
	if c != nil {
		deps.Kubernetes, deps.Dynamic = c.Kubernetes, c.Dynamic
	}
	return hookset.New(deps)
}

func (a *app) read(ctx context.Context, f *SourceFlags, chosen choice, scope cluster.Scope) (*world, error) {
	paths, stdin := f.Files, a.streams.In
	if f.Example != "" {
		dump, err := fs.ReadFile(example.Files, f.Example+"/cluster.yaml")
		if err != nil {
			return nil, fmt.Errorf("cannot read the example %q: %w", f.Example, err)
		}
		paths, stdin = []string{"-"}, bytes.NewReader(dump)
	}
	snap, err := cluster.Read(ctx, paths, stdin)
	if err != nil {
		return nil, err
	}
	if err := snap.Lacks(scope); err != nil {
		return nil, err
	}
	if f.Example == "" && scope.Namespace == "" { // what is doubted is about drains
		a.warn(snap.Doubts()...)
	}
	return &world{snap, newHooks(nil, chosen)}, nil
}

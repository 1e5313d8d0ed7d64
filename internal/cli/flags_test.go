package cli

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectldrain "k8s.io/kubectl/pkg/cmd/drain"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/safedrain/safedrain/internal/drain"
)

// TestFlagsOfKubectl compares our flags with those of kubectl drain itself.
func TestFlagsOfKubectl(t *testing.T) {
	factory := cmdutil.NewFactory(genericclioptions.NewConfigFlags(true))
	theirs := kubectldrain.NewCmdDrain(factory, genericiooptions.NewTestIOStreamsDiscard()).Flags()
	root := newApp(Process{Args: []string{"safedrain"}}).root()
	plan, _, err := root.Find([]string{"plan"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	theirs.VisitAll(func(want *pflag.Flag) {
		names = append(names, want.Name)
		for name, ours := range map[string]*pflag.FlagSet{"drain": root.Flags(), "plan": plan.Flags()} {
			got := ours.Lookup(want.Name)
			if got == nil {
				t.Errorf("%s has no flag --%s", name, want.Name)
				continue
			}
			type shape struct{ Shorthand, Default, NoOpt, Type string }
			shapeOf := func(f *pflag.Flag) shape { return shape{f.Shorthand, f.DefValue, f.NoOptDefVal, f.Value.Type()} }
			if diff := cmp.Diff(shapeOf(want), shapeOf(got)); diff != "" {
				t.Errorf("%s: --%s (-kubectl +ours):\n%s", name, want.Name, diff)
			}
		}
	})
	slices.Sort(names)
	if diff := cmp.Diff(names, kubectlFlags); diff != "" {
		t.Errorf("kubectlFlags (-kubectl +ours):\n%s", diff)
	}
}

func TestOptions(t *testing.T) {
	settle := 3 * time.Second
	for name, test := range map[string]struct {
		args []string
		want func(*drain.Options)
	}{
		"defaults":      {nil, func(*drain.Options) {}},
		"grace":         {[]string{"--grace-period=5"}, func(o *drain.Options) { o.GracePeriod, o.Flags.GracePeriod = 5, 5*time.Second }},
		"grace zero":    {[]string{"--grace-period=0"}, func(o *drain.Options) { o.GracePeriod, o.Flags.GracePeriod = 0, 0 }},
		"skip wait":     {[]string{"--skip-wait-for-delete-timeout=7"}, func(o *drain.Options) { o.SkipWaitForDeleteTimeout = 7 * time.Second }},
		"settle":        {[]string{"--settle=3s"}, func(o *drain.Options) { o.Settle = &settle }},
		"dry run":       {[]string{"--dry-run=server"}, func(o *drain.Options) { o.DryRun = drain.DryRunServer }},
		"bare dry run":  {[]string{"--dry-run"}, func(o *drain.Options) { o.DryRun = drain.DryRunClient }},
		"false dry run": {[]string{"--dry-run=false"}, func(*drain.Options) {}},
		"lists": {
			[]string{"--accept-unproven=b/c,a/*", "--accept-unproven=b/c", "--wait-budget=all", "--force-unsafe=pod/a/b"},
			func(o *drain.Options) {
				o.Flags.AcceptUnproven, o.Flags.WaitBudget, o.Flags.ForceUnsafe = []string{"a/*", "b/c"}, []string{"all"}, []string{"pod/a/b"}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, fs := defaultDrainFlags(), pflag.NewFlagSet("drain", pflag.ContinueOnError)
			f.bind(fs)
			if err := fs.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			got, _, err := f.options(fs)
			if err != nil {
				t.Fatal(err)
			}
			want := drain.Options{GracePeriod: -1, HookTimeout: 30 * time.Second, DryRun: drain.DryRunNone}
			want.Flags.GracePeriod = -1
			test.want(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFlagsThatMeanNothing: a value that could name nothing is a mistake in what was typed.
func TestFlagsThatMeanNothing(t *testing.T) {
	for _, flag := range []string{
		"--hold=nonsense", "--hold=/x", "--hold=x/", "--hold=/", "--hold=a/b/c", "--hold=shop/*",
		"--wait-budget=/x", "--wait-budget=x/", "--wait-budget=pay/*",
		"--accept-unproven=web", "--force-unsafe=web", "--settle=-1s", "--chunk-size=-1",
	} {
		t.Run(flag, func(t *testing.T) {
			f, fs := defaultDrainFlags(), pflag.NewFlagSet("drain", pflag.ContinueOnError)
			f.bind(fs)
			if err := fs.Parse([]string{flag}); err != nil {
				t.Fatal(err)
			}
			var usage *usageError
			if _, _, err := f.options(fs); !errors.As(err, &usage) {
				t.Errorf("error %v, want a usage error", err)
			}
		})
	}
}

// TestHoldApartFromItsValue: --hold takes its value with an equals sign, and the error says so.
func TestHoldApartFromItsValue(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"apart":          {[]string{"n1", "--hold", "shop/web"}, `expected resource of type node, got "shop/web"; a Service to hold is written with an equals sign: --hold=shop/web`},
		"without --hold": {[]string{"n1", "shop/web"}, `expected resource of type node, got "shop/web"`},
	} {
		t.Run(name, func(t *testing.T) {
			root := newApp(Process{Args: []string{"safedrain"}}).root()
			if err := root.ParseFlags(test.args); err != nil {
				t.Fatal(err)
			}
			if _, err := chooseNodes(root, root.Flags().Args(), "", false); err == nil || err.Error() != test.want {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

func TestRanges(t *testing.T) {
	for name, test := range map[string]struct{ in, want []string }{
		"none":          {nil, nil},
		"two":           {[]string{"node-1", "node-2"}, []string{"node-1", "node-2"}},
		"many and gaps": {[]string{"node-1", "node-2", "node-3", "node-5", "node-10"}, []string{"node-[1-3]", "node-5", "node-10"}},
		"other names":   {[]string{"cp", "node-01", "b-1", "a-1"}, []string{"cp", "node-01", "a-1", "b-1"}},
		"numbers only":  {[]string{"1", "2", "3"}, []string{"1", "2", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, ranges(test.in)); diff != "" {
				t.Errorf("ranges(%q) (-want +got):\n%s", test.in, diff)
			}
		})
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain":        "plain",
		"\x1b[2J":      `\u001b[2J`,
		"a\u202eb":     `a\u202eb`,
		"bad\xff":      `bad\xff`,
		"\r\b":         `\u000d\u0008`,
		"line\n\ttab":  "line\n\ttab",
		"ünïcode — ok": "ünïcode — ok",
	} {
		if got := escape(in); got != want {
			t.Errorf("escape(%q) = %q, want %q", in, got, want)
		}
	}
	if got := oneLine("a\nerror: forged"); got != "a error: forged" {
		t.Errorf("oneLine: %q", got)
	}
}

func TestNextCommand(t *testing.T) {
	base := typed{name: "kubectl safedrain"}.with("--ignore-daemonsets", "--accept-unproven=a/b")
	for name, test := range map[string]struct {
		more []string
		want string
	}{
		"nothing more": {nil, "kubectl safedrain n --ignore-daemonsets --accept-unproven=a/b"},
		"joined":       {[]string{"--accept-unproven=c/d", "--accept-unproven=a/b"}, "kubectl safedrain n --ignore-daemonsets --accept-unproven=a/b,c/d"},
		"already":      {[]string{"--ignore-daemonsets"}, "kubectl safedrain n --ignore-daemonsets --accept-unproven=a/b"},
		"quoted":       {[]string{"--accept-unproven=x/*"}, "kubectl safedrain n --ignore-daemonsets --accept-unproven='a/b,x/*'"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := base.with(test.more...).command("", "n"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
	chosen := typed{name: "safedrain"}.with("--selector=pool=old", "--force")
	if got, want := chosen.command("", "n"), "safedrain n --force"; got != want {
		t.Errorf("of nodes chosen by a selector: got %s, want %s", got, want)
	}
	if got, want := chosen.command(""), "safedrain --selector=pool=old --force"; got != want {
		t.Errorf("of nodes chosen anew: got %s, want %s", got, want)
	}
	if got := quoted("it's"); got != `'it'\''s'` {
		t.Errorf("quoted: %s", got)
	}
}

// TestSecrets: a token that was typed never stands in the command that is printed.
func TestSecrets(t *testing.T) {
	a := newApp(Process{Args: []string{"safedrain"}})
	root := a.root()
	if err := root.ParseFlags([]string{"--token=hush", "--timeout=20m", "-o", "json", "--context=prod"}); err != nil {
		t.Fatal(err)
	}
	want := "safedrain n --context=prod --timeout=20m --token=..."
	if got := typedFlags(a.name, root.Flags()).command("", "n"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestShortDuration(t *testing.T) {
	for in, want := range map[string]string{"20m0s": "20m", "1h0m0s": "1h", "1h0m5s": "1h0m5s", "0s": "0s", "10s": "10s", "1h10m0s": "1h10m"} {
		if got := shortDuration(in); got != want {
			t.Errorf("shortDuration(%q) = %q, want %q", in, got, want)
		}
	}
}

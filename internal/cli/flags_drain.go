package cli

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/internal/surge"
	"github.com/safedrain/safedrain/pkg/guard"
)

// DrainFlags are the flags of drain and plan as they were typed: those of kubectl drain with its names, meanings and
// defaults, then ours.
type DrainFlags struct {
	ChunkSize          int64
	DeleteEmptyDirData bool
	DisableEviction    bool
	DryRun             string
	Force              bool
	GracePeriod        int
	IgnoreDaemonSets   bool
	PodSelector        string
	Selector           string
	SkipWait           int
	Timeout            time.Duration

	AcceptUnproven    []string
	Deadline          time.Duration
	ForceUnsafe       []string
	Hold              []string
	Hooks             []string
	HookTimeout       time.Duration
	Parallel          bool
	RespectDoNotEvict bool
	Rollback          bool
	Settle            time.Duration
	StayUp            bool
	Surge             string
	TakeOver          bool
	WaitBudget        []string
	WaitReplacements  bool

	HookFlags
}

// defaultDrainFlags is the one place where the defaults stand.
func defaultDrainFlags() *DrainFlags {
	return &DrainFlags{
		ChunkSize:   500,
		DryRun:      "none",
		GracePeriod: -1,
		HookTimeout: 30 * time.Second,
	}
}

// dryRunUnchanged is what kubectl takes a bare --dry-run for.
const dryRunUnchanged = "unchanged"

func (f *DrainFlags) bind(fs *pflag.FlagSet) {
	fs.Int64Var(&f.ChunkSize, "chunk-size", f.ChunkSize, "Return large lists in chunks rather than all at once. Pass 0 to disable.")
	fs.BoolVar(&f.DeleteEmptyDirData, "delete-emptydir-data", f.DeleteEmptyDirData, "Continue even if there are pods using emptyDir (local data that will be deleted when the node is drained).")
	fs.BoolVar(&f.DisableEviction, "disable-eviction", f.DisableEviction, "Delete pods instead of evicting them. This bypasses PodDisruptionBudgets, use with caution.")
	fs.StringVar(&f.DryRun, "dry-run", f.DryRun, `Must be "none", "server", or "client". client: only the plan. server: send every request, and let nothing persist.`)
	fs.Lookup("dry-run").NoOptDefVal = dryRunUnchanged
	fs.BoolVar(&f.Force, "force", f.Force, "Continue even if there are pods that do not declare a controller.")
	fs.IntVar(&f.GracePeriod, "grace-period", f.GracePeriod, "Period of time in seconds given to each pod to terminate gracefully. If negative, the default value specified in the pod will be used.")
	fs.BoolVar(&f.IgnoreDaemonSets, "ignore-daemonsets", f.IgnoreDaemonSets, "Ignore DaemonSet-managed pods.")
	fs.StringVar(&f.PodSelector, "pod-selector", f.PodSelector, "Label selector to filter pods on the node.")
	fs.StringVarP(&f.Selector, "selector", "l", f.Selector, "Selector (label query) to choose nodes by, supports '=', '==', '!=', 'in', 'notin' (e.g. -l key1=value1,key2=value2).")
	fs.IntVar(&f.SkipWait, "skip-wait-for-delete-timeout", f.SkipWait, "If a pod's deletionTimestamp is older than N seconds, skip waiting for the pod. Must be greater than 0 to skip.")
	fs.DurationVar(&f.Timeout, "timeout", f.Timeout, "The length of time to wait before giving up, zero means infinite.")

	fs.StringSliceVar(&f.AcceptUnproven, "accept-unproven", nil, "Services (namespace/name, a glob of it, or all) that may be drained without proof that the node left rotation: withdraw, settle, evict.")
	fs.DurationVar(&f.Deadline, "deadline", f.Deadline, "The time after which the nodes are gone whatever happens, as on preemption: pods serve as long as they can, and end before it even without proof (exit code 5).")
	fs.StringSliceVar(&f.ForceUnsafe, "force-unsafe", nil, "What may break: service/namespace/name, pod/namespace/name, or all. Budgets are never forced.")
	fs.StringSliceVar(&f.Hold, "hold", nil, "Services (namespace/name, or all; bare: all) whose pods may be held while the health check of their balancer fails, where nothing else takes the node out.")
	fs.Lookup("hold").NoOptDefVal = "all"
	fs.StringSliceVar(&f.Hooks, "hook", nil, "Say which hook fronts a Service, for this run: namespace/name=hook, or hook for all.")
	fs.DurationVar(&f.HookTimeout, "hook-timeout", f.HookTimeout, "How long each balancer has to prove that the node left its rotation.")
	fs.BoolVar(&f.Parallel, "parallel", f.Parallel, "Drain several nodes side by side, not one after another.")
	fs.BoolVar(&f.RespectDoNotEvict, "respect-do-not-evict", f.RespectDoNotEvict, "Refuse where an autoscaler's annotation asks to leave a pod alone.")
	fs.BoolVar(&f.Rollback, "rollback", f.Rollback, "Undo what was set on the node on every outcome but success.")
	fs.DurationVar(&f.Settle, "settle", f.Settle, "Time to wait after each proof, in place of the hook's own.")
	fs.BoolVar(&f.StayUp, "stay-up", f.StayUp, "The node keeps running: endpoints that are not evicted stay.")
	fs.StringVar(&f.Surge, "surge", f.Surge, "Start one more replica before the pods go, and take it back afterwards: last (bare: last) for workloads whose Service would be left without an endpoint, all for every one behind a Service of policy Local.")
	fs.Lookup("surge").NoOptDefVal = string(surge.Last)
	fs.BoolVar(&f.TakeOver, "take-over", f.TakeOver, "Take over another run's claim on the node at once.")
	fs.StringSliceVar(&f.WaitBudget, "wait-budget", nil, "Budgets (namespace/name, or all) that an operator releases once the node is cordoned: cordon, try, wait.")
	fs.BoolVar(&f.WaitReplacements, "wait-replacements", f.WaitReplacements, "Wait until the replacements of evicted pods are Ready.")
	f.HookFlags.bind(fs)
}

// kubectlFlags are the flags that drain has in common with kubectl drain, for the usage and the README.
var kubectlFlags = []string{
	"chunk-size", "delete-emptydir-data", "disable-eviction", "dry-run", "force", "grace-period", "ignore-daemonsets",
	"pod-selector", "selector", "skip-wait-for-delete-timeout", "timeout",
}

// options checks the flags and turns them into those of a run; warnings are for stderr.
func (f *DrainFlags) options(fs *pflag.FlagSet) (o drain.Options, warnings []string, err error) {
	o = drain.Options{
		StayUp:                   f.StayUp,
		Timeout:                  f.Timeout,
		GracePeriod:              int64(f.GracePeriod),
		SkipWaitForDeleteTimeout: time.Duration(f.SkipWait) * time.Second,
		HookTimeout:              f.HookTimeout,
		Parallel:                 f.Parallel,
		WaitReplacements:         f.WaitReplacements,
		Rollback:                 f.Rollback,
		TakeOver:                 f.TakeOver,
		Surge:                    surge.Scope(f.Surge),
		Deadline:                 f.Deadline,
	}
	if err := f.check(); err != nil {
		return o, nil, err
	}
	if o.DryRun, warnings, err = dryRun(f.DryRun); err != nil {
		return o, nil, err
	}
	if f.PodSelector != "" {
		if o.PodSelector, err = labels.Parse(f.PodSelector); err != nil {
			return o, nil, usagef("--pod-selector=<pod_selector> must be a valid label selector: %w", err)
		}
	}
	o.HookTimeoutTyped = fs.Changed("hook-timeout")
	if fs.Changed("settle") {
		o.Settle = &f.Settle
	}
	o.Flags = f.guardFlags()
	return o, warnings, nil
}

func (f *DrainFlags) guardFlags() guard.Flags {
	grace := time.Duration(-1)
	if f.GracePeriod >= 0 {
		grace = time.Duration(f.GracePeriod) * time.Second
	}
	return guard.Flags{
		IgnoreDaemonSets:   f.IgnoreDaemonSets,
		DeleteEmptyDirData: f.DeleteEmptyDirData,
		Force:              f.Force,
		DisableEviction:    f.DisableEviction,
		RespectDoNotEvict:  f.RespectDoNotEvict,
		AcceptUnproven:     sorted(f.AcceptUnproven),
		ForceUnsafe:        sorted(f.ForceUnsafe),
		WaitBudget:         sorted(f.WaitBudget),
		Hold:               sorted(f.Hold),
		Together:           f.Parallel,
		GracePeriod:        grace,
	}
}

// check finds values that no run could mean.
func (f *DrainFlags) check() error {
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"timeout", f.Timeout}, {"settle", f.Settle}, {"hook-timeout", f.HookTimeout}, {"deadline", f.Deadline}} {
		if d.value < 0 {
			return usagef("--%s=%s: must not be negative", d.flag, d.value)
		}
	}
	if s := surge.Scope(f.Surge); s != surge.Off && s != surge.Last && s != surge.All {
		return usagef("--surge=%s: want last or all", f.Surge)
	}
	if f.ChunkSize < 0 {
		return usagef("--chunk-size=%d: must not be negative", f.ChunkSize)
	}
	for _, p := range f.AcceptUnproven {
		if _, err := path.Match(p, ""); err != nil || p != "all" && !strings.Contains(p, "/") {
			return usagef("--accept-unproven=%s: want namespace/name, a glob of it such as 'shop/*', or all", p)
		}
	}
	for _, p := range f.ForceUnsafe {
		if p != "all" && !strings.Contains(p, "/") {
			return usagef("--force-unsafe=%s: want service/namespace/name, pod/namespace/name, or all", p)
		}
	}
	for _, p := range f.Hold {
		if p != "all" && !namespaced(p) {
			return usagef("--hold=%s: want namespace/name, or all", p)
		}
	}
	for _, p := range f.WaitBudget {
		if p != "all" && !namespaced(p) {
			return usagef("--wait-budget=%s: want namespace/name, or all", p)
		}
	}
	_, err := f.chosen()
	return err
}

// namespaced reports whether text is a namespace and a name, and no pattern of them.
func namespaced(text string) bool {
	namespace, name, _ := strings.Cut(text, "/")
	return namespace != "" && name != "" && !strings.ContainsAny(name, "/*?[") && !strings.ContainsAny(namespace, "*?[")
}

// pageSize is --chunk-size as a snapshot's scope has it.
func (f *DrainFlags) pageSize() int64 {
	if f.ChunkSize == 0 {
		return -1
	}
	return f.ChunkSize
}

// chosen reads what the flags say of hooks.
func (f *DrainFlags) chosen() (choice, error) { return f.choose(f.Hooks) }

// dryRun reads --dry-run as kubectl does, with its deprecated boolean and bare forms.
func dryRun(value string) (drain.DryRun, []string, error) {
	switch value {
	case "none", "client", "server":
		return drain.DryRun(value), nil, nil
	case dryRunUnchanged:
		return drain.DryRunClient, []string{"--dry-run is deprecated and can be replaced with --dry-run=client"}, nil
	}
	b, err := strconv.ParseBool(value)
	if err != nil {
		return "", nil, usagef(`invalid dry-run value (%v): must be "none", "server", or "client"`, value)
	}
	mode := drain.DryRunNone
	if b {
		mode = drain.DryRunClient
	}
	return mode, []string{fmt.Sprintf("--dry-run=%v is deprecated (boolean value) and can be replaced with --dry-run=%s", value, mode)}, nil
}

func sorted(in []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(in)))
}

// KubectlFlags names the flags of a drain that are kubectl drain's own, with its names, meanings and defaults.
func KubectlFlags() []string { return slices.Clone(kubectlFlags) }

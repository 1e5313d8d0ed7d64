package cli

import (
	"context"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// scaleAsked is what --scale asks for.
type scaleAsked struct {
	kind     string // as in guard.ScaleTarget
	name     string
	replicas int32
}

// scaleKinds are the kinds whose controllers the rules know, by the names that kubectl takes for them.
var scaleKinds = map[string]string{
	"deploy": cluster.KindDeployment, "deployment": cluster.KindDeployment, "deployments": cluster.KindDeployment,
	"sts": cluster.KindStatefulSet, "statefulset": cluster.KindStatefulSet, "statefulsets": cluster.KindStatefulSet,
	"rs": cluster.KindReplicaSet, "replicaset": cluster.KindReplicaSet, "replicasets": cluster.KindReplicaSet,
}

// unscalable are kinds that have no scale, by the same.
var unscalable = map[string]string{
	"ds": "DaemonSet", "daemonset": "DaemonSet", "daemonsets": "DaemonSet", "job": "Job", "jobs": "Job",
	"cj": "CronJob", "cronjob": "CronJob", "cronjobs": "CronJob", "po": "Pod", "pod": "Pod", "pods": "Pod",
	"svc": "Service", "service": "Service", "services": "Service", "no": "Node", "node": "Node", "nodes": "Node",
}

// parseScale reads deploy/x=2, deployment.apps/x=2 and the like.
func parseScale(text string) (scaleAsked, error) {
	workload, number, ok := strings.Cut(text, "=")
	typ, name, slash := strings.Cut(workload, "/")
	if !ok || !slash || typ == "" || name == "" || strings.Contains(name, "/") {
		return scaleAsked{}, usagef("--scale=%s: write kind/name=replicas, such as deploy/web=2; the namespace goes into -n", text)
	}
	resource, group, grouped := strings.Cut(strings.ToLower(typ), ".")
	kind := scaleKinds[resource]
	switch {
	case unscalable[resource] != "":
		return scaleAsked{}, usagef("--scale=%s: a %s has no scale", text, unscalable[resource])
	case kind == "" || grouped && group != "apps" && group != "v1.apps":
		return scaleAsked{}, usagef("--scale=%s: nobody knows which pods a %s takes; there are deployments, statefulsets and replicasets", text, typ)
	}
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil:
		return scaleAsked{}, usagef("--scale=%s: %q is not a number of replicas", text, number)
	case n < 0 || n > math.MaxInt32:
		return scaleAsked{}, usagef("--scale=%s: there cannot be %d replicas", text, n)
	}
	return scaleAsked{kind, name, int32(n)}, nil
}

// scaleFlags are the flags of plan that mean something for a scaling.
var scaleFlags = []string{"scale", "output", "file", "example", "hook", "hook-option", "config", "chunk-size"}

// checkScale finds what was typed beside --scale and is about a drain.
func checkScale(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("--scale judges a workload: leave out %s", strings.Join(args, ", "))
	}
	var err error
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && err == nil && !slices.Contains(scaleFlags, f.Name) {
			err = usagef("--%s is about a drain, not about --scale", f.Name)
		}
	})
	return err
}

// runScale judges a change of a workload's replicas.
func (r *planRun) runScale(ctx context.Context, cmd *cobra.Command, args []string) error {
	if err := checkScale(cmd, args); err != nil {
		return err
	}
	if err := r.source.check(); err != nil {
		return err
	}
	if err := r.flags.check(); err != nil {
		return err
	}
	asked, err := parseScale(r.scale)
	if err != nil {
		return err
	}
	hooks, err := r.flags.chosen()
	if err != nil {
		return err
	}
	namespace, err := r.namespace()
	if err != nil {
		return err
	}
	key := guard.Key{Namespace: namespace, Name: asked.name}
	w, err := r.app.load(ctx, &r.source, hooks, cluster.Scope{Namespace: namespace, PageSize: r.flags.pageSize()})
	if err != nil {
		return err
	}
	target, err := r.app.scaleTarget(ctx, w, &r.source, asked.kind, key)
	if err != nil {
		return err
	}
	w.check(ctx, nil)
	ix := w.snap.Index(w.hooks, nil)
	target.Services = target.Behind(ix.Services())
	plan := guard.JudgeScale(target, ix, asked.replicas, time.Now())
	if owner := setBack(target); owner != "" {
		r.app.warn(owner)
	}
	return r.printScale(&plan)
}

// namespace is the one of -n; else live that of the kubeconfig's context, and in files the default one.
func (r *planRun) namespace() (string, error) {
	flags := r.app.kube.flags
	if !r.source.offline() {
		ns, _, err := flags.ToRawKubeConfigLoader().Namespace()
		if err != nil {
			return "", &connectError{kube: r.app.kube, err: err}
		}
		return ns, nil
	}
	if flags.Namespace != nil && *flags.Namespace != "" {
		return *flags.Namespace, nil
	}
	return metav1.NamespaceDefault, nil
}

// scaleTarget reads the workload: live by itself, after what stands around it, or out of files.
func (a *app) scaleTarget(ctx context.Context, w *world, f *SourceFlags, kind string, key guard.Key) (*guard.ScaleTarget, error) {
	if f.offline() {
		return w.snap.ScaleTarget(kind, key)
	}
	c, err := a.kube.clients()
	if err != nil {
		return nil, err
	}
	t, err := cluster.ReadScaleTarget(ctx, c.Kubernetes, kind, key)
	if err != nil {
		return nil, &connectError{kube: a.kube, err: err}
	}
	return t, nil
}

// setBack says that a workload is scaled by another, which undoes what is asked for; "" when it is not.
func setBack(t *guard.ScaleTarget) string {
	if t.Kind != cluster.KindReplicaSet {
		return ""
	}
	owner := metav1.GetControllerOf(t.ReplicaSets[0])
	if owner == nil {
		return ""
	}
	name := strings.ToLower(owner.Kind) + "/" + owner.Name
	return "replicaset " + t.Key.String() + " is controlled by " + name + ", which sets its replicas back: scale " + name
}

func (r *planRun) printScale(plan *guard.ScalePlan) error {
	out, code := r.app.streams.Out, 0
	var names []string
	if plan.Refused() {
		code = int(drain.Refused)
	} else {
		names = []string{workloadName(plan)}
	}
	if r.output.document() {
		if err := writeDocument(out, r.output, plan, names); err != nil {
			return err
		}
		return exitWith(code)
	}
	v := scaleView{plan: plan, name: r.app.name, wide: r.output == formatWide}
	if _, err := io.WriteString(escaping{out}, v.text()); err != nil {
		return err
	}
	return exitWith(code)
}

// workloadName is a workload as -o name prints it: deployment.apps/web.
func workloadName(p *guard.ScalePlan) string {
	return strings.ToLower(p.Workload.Kind) + ".apps/" + p.Workload.Name
}

package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// kindHookList is the document of the command hooks.
const kindHookList = "HookList"

// hookList is every balancer that fronts a Service.
type hookList struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Items      []hookRow `json:"items"`
}

// hookRow is what is known of the balancer of one Service.
type hookRow struct {
	Namespace  string           `json:"namespace"`
	Name       string           `json:"name"`
	Local      bool             `json:"local"` // externalTrafficPolicy Local
	Hook       string           `json:"hook"`
	Reason     string           `json:"reason,omitempty"`
	Evidence   string           `json:"evidence,omitempty"`
	Removal    guard.Removal    `json:"removal"`
	InRotation []string         `json:"inRotation"` // nodes
	Rotation   guard.InRotation `json:"rotation"`   // Unknown when nothing tells which nodes
	Provable   bool             `json:"provable"`
	Nobody     bool             `json:"nobody,omitempty"` // nobody outside sends
	Witness    string           `json:"witness,omitempty"`
	Settle     string           `json:"settle,omitempty"`
	Broken     string           `json:"broken,omitempty"`
	Missing    []missing        `json:"missing"`
	NodePorts  []int32          `json:"nodePorts,omitempty"`
}

// missing is something without which a hook works less well, or not.
type missing struct {
	What      string `json:"what"`
	Why       string `json:"why,omitempty"`
	Forbidden bool   `json:"forbidden,omitempty"` // a permission would mend it
}

// hooksRun is the command hooks.
type hooksRun struct {
	app    *app
	source SourceFlags
	output format
	fix    bool
	hooks  HookFlags
}

func (a *app) hooksCommand() *cobra.Command {
	r := &hooksRun{app: a}
	cmd := &cobra.Command{
		Use:   "hooks [NAMESPACE/NAME | NODE]",
		Short: "Show which balancer fronts which Service, what it can prove, and what is missing",
		Long: "Show which balancer fronts each Service that is reachable from outside, which nodes it sends to, what can prove that a\n" +
			"node left it, and what is missing for that. With a Service: why this hook. With a node: the Services that use it.",
		Example:           "  " + a.name + " hooks\n  " + a.name + " hooks ingress/edge\n  " + a.name + " hooks --fix",
		Args:              atMost(1),
		ValidArgsFunction: a.completeNodes,
		RunE:              r.run,
	}
	r.source.bind(cmd.Flags())
	cmd.Flags().VarP(&r.output, "output", "o", "Output format: json, yaml, wide or name.")
	r.hooks.bind(cmd.Flags())
	cmd.Flags().BoolVar(&r.fix, "fix", false, "Print the commands that make Services provable.")
	return cmd
}

func (r *hooksRun) run(cmd *cobra.Command, args []string) error {
	ctx, stop := r.app.interruptible(cmd.Context())
	defer stop()
	if err := r.source.check(); err != nil {
		return err
	}
	chosen, err := r.hooks.choose(nil)
	if err != nil {
		return err
	}
	w, err := r.app.load(ctx, &r.source, chosen, cluster.Scope{})
	if err != nil {
		return err
	}
	w.check(ctx, nil)
	rows, detail, err := r.rows(ctx, w, args)
	if err != nil {
		return err
	}
	out := r.app.streams.Out
	if r.output.document() {
		var names []string
		for i := range rows {
			names = append(names, "service/"+rows[i].Namespace+"/"+rows[i].Name)
		}
		return writeDocument(out, r.output, hookList{guard.APIVersion, kindHookList, rows}, names)
	}
	v := &hooksView{rows: rows, typed: typedFlags(r.app.name, cmd.Flags()), wide: r.output == formatWide}
	text := hooksText(v)
	switch {
	case r.fix:
		text = fixText(v)
	case detail:
		text = hookDetail(v)
	}
	_, err = io.WriteString(escaping{out}, text)
	return err
}

// rows lists what is known, narrowed to one Service or to one node; detail says that it is one Service.
func (r *hooksRun) rows(_ context.Context, w *world, args []string) (rows []hookRow, detail bool, err error) {
	namespace := ""
	if ns := r.app.kube.flags.Namespace; ns != nil {
		namespace = *ns
	}
	rows = w.hookRows(namespace)
	if len(args) == 0 {
		return rows, false, nil
	}
	kind, node, slash := strings.Cut(args[0], "/")
	if !slash {
		node = args[0]
	}
	if _, found := w.snap.RawNode(node); found && (!slash || isNodeType(kind)) {
		return slices.DeleteFunc(rows, func(h hookRow) bool {
			return h.Rotation != guard.Unknown && !slices.Contains(h.InRotation, node)
		}), false, nil
	}
	if !slash && namespace == "" {
		return nil, false, w.snap.Resolve([]string{node})
	}
	key, err := serviceArg(args[0], namespace)
	if err != nil {
		return nil, false, err
	}
	rows = slices.DeleteFunc(rows, func(h hookRow) bool { return h.Namespace != key.Namespace || h.Name != key.Name })
	if len(rows) == 0 {
		if _, ok := w.snap.RawService(key); ok {
			return nil, false, fmt.Errorf("service %s is not reachable from outside: no balancer sends to it", key)
		}
		return nil, false, notFoundService(key)
	}
	return rows, true, nil
}

func notFoundService(key guard.Key) error {
	return fmt.Errorf("service %s not found; see kubectl -n %s get services", key, key.Namespace)
}

// hookRows asks the hooks about every Service that something outside can reach.
func (w *world) hookRows(namespace string) []hookRow {
	descriptions := w.descriptions()
	rows := []hookRow{}
	for svc := range w.snap.Index(w.hooks, nil).Services() {
		rot := &svc.Rotation
		if namespace != "" && svc.Key.Namespace != namespace || !svc.External && rot.Hook == "" {
			continue
		}
		rows = append(rows, w.hookRow(svc, descriptions[rot.Hook]))
	}
	return rows
}

func (w *world) hookRow(svc *guard.ServiceFacts, d lbhooks.Description) hookRow {
	rot := &svc.Rotation
	row := hookRow{
		Namespace: svc.Key.Namespace, Name: svc.Key.Name, Local: svc.External, Hook: rot.Hook, Reason: rot.Reason,
		Evidence: rot.Evidence, Removal: rot.Removal, Provable: rot.Provable && rot.Broken == "", Nobody: rot.Nobody,
		Witness: d.Witness, Broken: rot.Broken, Missing: []missing{}, NodePorts: svc.NodePorts,
	}
	row.InRotation, row.Rotation = w.inRotation(rot)
	if row.Hook == "" {
		row.Hook = "none"
	}
	if row.Removal == "" {
		row.Removal = guard.RemovalNone
	}
	if rot.Settle != nil {
		row.Settle = seconds(*rot.Settle)
	} else if d.Settle > 0 {
		row.Settle = seconds(d.Settle)
	}
	lacks := w.lacks(rot.Hook)
	row.Missing = append(row.Missing, lacks...)
	if rot.NoProof != "" {
		row.Missing = append(row.Missing, missing{What: "proof of a removal", Why: rot.NoProof})
	}
	if rot.Broken != "" && len(lacks) == 0 {
		row.Missing = append(row.Missing, missing{What: rot.Broken, Forbidden: strings.Contains(rot.Broken, notAllowed)})
	}
	for _, n := range d.Needs {
		gk := schema.GroupKind{Group: n.Group, Kind: n.Kind}
		if what := w.snap.Unavailable(gk); what != "" && what != rot.Broken {
			row.Missing = append(row.Missing, missing{What: what, Why: n.Why, Forbidden: w.forbidden(gk)})
		}
	}
	if row.Hook == "none" && !rot.Nobody && !rot.Declared {
		row.Missing = append(row.Missing, missing{What: "a hook, or " + lbhooks.AnnotationNodes})
	}
	return row
}

// notAllowed begins what a snapshot says of a kind that may not be listed.
const notAllowed = "not allowed to "

// forbidden reports whether objects of a kind are missing for want of a permission.
func (w *world) forbidden(gk schema.GroupKind) bool {
	return strings.HasPrefix(w.snap.Unavailable(gk), notAllowed)
}

// inRotation lists the nodes that a balancer sends to; Unknown when nothing tells.
func (w *world) inRotation(rot *guard.Rotation) ([]string, guard.InRotation) {
	nodes, unknown := []string{}, false
	for _, name := range w.snap.NodeNames() {
		switch rot.Seat(name).In {
		case guard.Yes:
			nodes = append(nodes, name)
		case guard.Unknown:
			unknown = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rot.Seats)) {
		if rot.Seats[name].In == guard.Yes && !slices.Contains(nodes, name) {
			nodes = append(nodes, name)
		}
	}
	switch {
	case unknown && len(nodes) == 0 && !rot.Nobody:
		return nodes, guard.Unknown
	case len(nodes) == 0:
		return nodes, guard.No
	}
	return nodes, guard.Yes
}

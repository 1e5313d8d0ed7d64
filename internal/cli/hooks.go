package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
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
	Namespace     string           `json:"namespace"`
	Name          string           `json:"name"`
	Local         bool             `json:"local"` // externalTrafficPolicy Local
	Hook          string           `json:"hook"`
	Conflict      []string         `json:"conflict,omitempty"` // the hooks that claim it, where more than one does
	Reason        string           `json:"reason,omitempty"`
	Evidence      string           `json:"evidence,omitempty"`
	Removal       guard.Removal    `json:"removal"`
	InRotation    []string         `json:"inRotation"` // nodes
	Rotation      guard.InRotation `json:"rotation"`   // Unknown when nothing tells which nodes
	OthersUnknown bool             `json:"othersUnknown,omitempty"`
	Seats         []hookSeat       `json:"seats,omitempty"` // of a node, or of all where one Service is asked about
	Provable      bool             `json:"provable"`
	Nobody        bool             `json:"nobody,omitempty"`     // nobody outside sends
	Declared      bool             `json:"declared,omitempty"`   // the nodes are those of the annotation safedrain.dev/nodes
	PodTargets    bool             `json:"podTargets,omitempty"` // the balancer sends to pods, past the nodes
	Witness       string           `json:"witness,omitempty"`
	Settle        string           `json:"settle,omitempty"`
	Unsupported   string           `json:"unsupported,omitempty"`
	Broken        string           `json:"broken,omitempty"`
	Missing       []missing        `json:"missing"`
	NodePorts     []int32          `json:"nodePorts,omitempty"`
}

// hookSeat is one node's place in a rotation.
type hookSeat struct {
	Node     string           `json:"node"`
	In       guard.InRotation `json:"in"`
	Eligible bool             `json:"eligible"` // could take over
	Why      string           `json:"why,omitempty"`
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
	iam    bool
	hooks  HookFlags
}

func (a *app) hooksCommand() *cobra.Command {
	r := &hooksRun{app: a}
	cmd := &cobra.Command{
		Use:   "hooks [NAMESPACE/NAME | NODE | HOOK --iam]",
		Short: "Show which balancer fronts which Service, what it can prove, and what is missing",
		Long: "Show which balancer fronts each Service that is reachable from outside, which nodes it sends to, what can prove that a\n" +
			"node left it, and what is missing for that. With a Service: why this hook. With a node: the Services that use it.\n" +
			"With --iam: the least rights that a cloud's hook needs there.",
		Example: "  " + a.name + " hooks\n  " + a.name + " hooks ingress/edge\n  " + a.name + " hooks --fix\n" +
			"  " + a.name + " hooks aws --iam",
		Args:              atMost(1),
		ValidArgsFunction: a.completeNodes,
		RunE:              r.run,
	}
	r.source.bind(cmd.Flags())
	cmd.Flags().VarP(&r.output, "output", "o", "Output format: json, yaml, wide or name.")
	r.hooks.bind(cmd.Flags())
	cmd.Flags().BoolVar(&r.fix, "fix", false, "Print the commands that make Services provable.")
	cmd.Flags().BoolVar(&r.iam, "iam", false, "Print the least policy or role outside the cluster for this hook, with its options.")
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
	if r.iam {
		return r.policy(args, chosen)
	}
	w, err := r.app.load(ctx, &r.source, chosen, cluster.Scope{})
	if err != nil {
		return err
	}
	w.check(ctx, nil)
	rows, asked, err := r.rows(ctx, w, args)
	if err != nil {
		return err
	}
	for i := range rows {
		if len(rows[i].Conflict) > 0 {
			r.app.warn(conflictText(&rows[i]))
		}
	}
	out := r.app.streams.Out
	if r.output.document() {
		var names []string
		for i := range rows {
			names = append(names, "service/"+rows[i].Namespace+"/"+rows[i].Name)
		}
		return writeDocument(out, r.output, hookList{guard.APIVersion, kindHookList, rows}, names)
	}
	v := &hooksView{rows: rows, typed: typedFlags(r.app.name, cmd.Flags()), wide: r.output == formatWide, node: asked.node}
	text := hooksText(v)
	switch {
	case r.fix:
		text = fixText(v)
	case asked.service:
		text = hookDetail(v)
	}
	_, err = io.WriteString(escaping{out}, text)
	return err
}

// asked is what the command was asked about: everything, a node, or one Service.
type asked struct {
	node    string
	service bool
}

// rows lists what is known, narrowed to one Service or to one node.
func (r *hooksRun) rows(ctx context.Context, w *world, args []string) ([]hookRow, asked, error) {
	namespace := ""
	if ns := r.app.kube.flags.Namespace; ns != nil {
		namespace = *ns
	}
	if len(args) == 0 {
		return w.hookRows(guard.Key{Namespace: namespace}, nil), asked{}, nil
	}
	kind, node, slash := strings.Cut(args[0], "/")
	if !slash {
		node = args[0]
	}
	if _, found := w.snap.RawNode(node); found && (!slash || isNodeType(kind)) {
		w.check(ctx, []string{node})
		rows := slices.DeleteFunc(w.hookRows(guard.Key{Namespace: namespace}, []string{node}), func(h hookRow) bool { return h.Seats[0].In == guard.No })
		return rows, asked{node: node}, nil
	}
	if !slash && namespace == "" {
		return nil, asked{}, w.snap.Resolve([]string{node})
	}
	key, err := serviceArg(args[0], namespace)
	if err != nil {
		return nil, asked{}, err
	}
	if _, there := w.snap.RawService(key); !there {
		return nil, asked{}, notFoundService(key)
	}
	rows := w.hookRows(key, w.snap.NodeNames())
	if len(rows) == 0 {
		return nil, asked{}, fmt.Errorf("service %s is not reachable from outside: no balancer sends to it", key)
	}
	return rows, asked{service: true}, nil
}

func notFoundService(key guard.Key) error {
	return fmt.Errorf("service %s not found; see kubectl -n %s get services", key, key.Namespace)
}

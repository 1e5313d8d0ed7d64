package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/safedrain/safedrain/internal/drain"
	"github.com/safedrain/safedrain/pkg/guard"
)

// planList is the document of plan --each.
type planList struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []guard.DrainPlan `json:"items"`
}

// printEach judges every node by itself.
func (r *planRun) printEach(_ *cobra.Command, w *world, o *drain.Options) error {
	list := planList{APIVersion: guard.APIVersion, Kind: guard.KindDrainPlan + "List", Items: []guard.DrainPlan{}}
	code, names := 0, []string(nil)
	if note := w.snap.PlacementNote(); note != "" {
		r.app.warn(note)
	}
	places := w.snap.Placement()
	for _, node := range o.Nodes {
		plan := w.judge(o, places, node)
		list.Items = append(list.Items, plan)
		code = max(code, planCode(&plan))
		names = append(names, drainable(&plan)...)
	}
	out := r.app.streams.Out
	if r.output.document() {
		if err := writeDocument(out, r.output, &list, names); err != nil {
			return err
		}
		return exitWith(code)
	}
	if _, err := io.WriteString(escaping{out}, eachText(list.Items, r.output == formatWide)); err != nil {
		return err
	}
	return exitWith(code)
}

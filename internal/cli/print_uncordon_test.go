package cli

import (
	"testing"
	"time"

	"github.com/safedrain/safedrain/internal/drain"
)

// TestRestoredIsAllBack: a node is said to be restored only when nothing of it stays out.
func TestRestoredIsAllBack(t *testing.T) {
	back := []drain.RestoredService{{Service: "web/lb", Hook: "metallb-l2", Back: true}}
	for name, test := range map[string]struct {
		node drain.Restored
		want string
	}{
		"all back":       {drain.Restored{Node: "n1", Services: back}, "node/n1 restored in 2s\n"},
		"nothing to do":  {drain.Restored{Node: "n1"}, ""},
		"labelled":       {drain.Restored{Node: "n1", Services: back, StaysOut: []string{"labelled: the node is not Ready"}}, ""},
		"a hook did not": {drain.Restored{Node: "n1", Services: append([]drain.RestoredService{{Service: "web/b"}}, back...)}, ""},
		"pods are held":  {drain.Restored{Node: "n1", Services: back, StaysOut: []string{"pods that are held: ..."}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := &uncordonView{restored: []drain.Restored{test.node}, result: &drain.Result{Took: 2 * time.Second}}
			if got := uncordonResult(v); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

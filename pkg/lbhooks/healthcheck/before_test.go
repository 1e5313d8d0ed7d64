package healthcheck_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// TestBefore: nothing is relied on that was not seen working: the node's own port passes, and one of the others does too.
func TestBefore(t *testing.T) {
	for name, test := range map[string]struct {
		n1, n2, n3 string
		fine       bool
	}{
		"all pass":             {passing, passing, passing, true},
		"one of the others":    {passing, failing, passing, true},
		"the node fails":       {failing, passing, passing, false},
		"the node is silent":   {hang, passing, passing, false},
		"the node refuses":     {refuse, passing, passing, false},
		"the node answers odd": {otherName, passing, passing, false},
		"the others fail":      {passing, failing, failing, false},
		"the others are sick":  {passing, proxyIsSick, empty, false},
	} {
		bubble(t, name, func(t *testing.T) {
			p := newProxies(t)
			p.say("n1", test.n1)
			p.say("n2", test.n2)
			p.say("n3", test.n3)
			if test.n1 == refuse {
				p.doors["n1"].Close()
			}
			hook := p.hook()
			others := []*corev1.Node{target("n2").Node, target("n3").Node}
			evidence, err := hook.Before(t.Context(), target("n1"), others)
			switch {
			case test.fine && (err != nil || evidence == ""):
				t.Errorf("%q, %v; want evidence", evidence, err)
			case !test.fine && !errors.Is(err, lbhooks.ErrNotProven):
				t.Errorf("%q, %v; want an error that says not proven", evidence, err)
			}
		})
	}
}

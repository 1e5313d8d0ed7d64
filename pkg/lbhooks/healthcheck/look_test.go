package healthcheck_test

import (
	"testing"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// TestLook: silence is no 503, and what is not this Service's answer is not to be believed.
func TestLook(t *testing.T) {
	for name, test := range map[string]struct {
		says string
		want lbhooks.Sight
	}{
		"passing":             {passing, lbhooks.SightPassing},
		"failing":             {failing, lbhooks.SightFailing},
		"silent":              {hang, lbhooks.SightUnreachable},
		"another Service":     {otherName, lbhooks.SightOdd},
		"an empty 200":        {empty, lbhooks.SightOdd},
		"a proxy that is ill": {proxyIsSick, lbhooks.SightOdd},
	} {
		bubble(t, name, func(t *testing.T) {
			p := newProxies(t)
			p.say("n1", test.says)
			got, detail, err := p.hook().Look(t.Context(), target("n1"))
			if err != nil || got != test.want || detail == "" {
				t.Errorf("%q (%q), %v; want %q", got, detail, err, test.want)
			}
		})
	}
}

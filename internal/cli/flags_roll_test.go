package cli

import (
	"errors"
	"testing"

	"github.com/spf13/pflag"
)

func TestRollFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args   []string
		usage  bool
		atOnce int // of ten nodes
	}{
		"none":                         {nil, false, 1},
		"one at a time":                {[]string{"--rolling"}, false, 1},
		"a number":                     {[]string{"--rolling", "--max-unavailable=3"}, false, 3},
		"percent are rounded down":     {[]string{"--rolling", "--max-unavailable=25%"}, false, 2},
		"one in any case":              {[]string{"--rolling", "--max-unavailable=1%"}, false, 1},
		"zero":                         {[]string{"--rolling", "--max-unavailable=0"}, true, 0},
		"no number":                    {[]string{"--rolling", "--max-unavailable=some"}, true, 0},
		"without --rolling":            {[]string{"--uncordon"}, true, 0},
		"a plan without --rolling":     {[]string{"--plan"}, true, 0},
		"an empty command":             {[]string{"--rolling", "--run= "}, true, 0},
		"rebalance needs the way back": {[]string{"--rolling", "--rebalance"}, true, 0},
		"rebalance":                    {[]string{"--rolling", "--uncordon", "--rebalance=shop/web"}, false, 1},
		"rebalance of no Service":      {[]string{"--rolling", "--uncordon", "--rebalance=shop"}, true, 0},
		"a deadline":                   {[]string{"--rolling", "--deadline=2m"}, true, 0},
		"unfinished":                   {[]string{"--rolling", "--unfinished=maybe"}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, fs := defaultRollFlags(), pflag.NewFlagSet("drain", pflag.ContinueOnError)
			f.bind(fs)
			defaultDrainFlags().bind(fs)
			if err := fs.Parse(test.args); err != nil {
				t.Fatal(err)
			}
			err := f.check(fs)
			var usage *usageError
			if errors.As(err, &usage) != test.usage {
				t.Fatalf("error %v, want a usage error: %v", err, test.usage)
			}
			if n, _ := f.atOnce(10); !test.usage && n != test.atOnce {
				t.Errorf("%d at once, want %d", n, test.atOnce)
			}
		})
	}
}

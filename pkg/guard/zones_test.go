package guard

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// zoned puts nodes into the zone that their names begin with: "a1" is in zone a, "-1" in none.
func zoned(names ...string) *world {
	w := newWorld(names...)
	for _, name := range names {
		w.nodes[name].Zone = strings.TrimPrefix(name[:1], "-")
	}
	return w
}

// pooled is a balancer that keeps nodes in pools and can withdraw one.
func pooled(change ...func(*Rotation)) func(*ServiceFacts) {
	return func(s *ServiceFacts) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.Rotation = Rotation{Hook: "cloud", Removal: RemovalLabel, Provable: true, Follows: true, Rest: Seat{In: Yes, Eligible: true}}
		for _, c := range change {
			c(&s.Rotation)
		}
	}
}

func TestZoneLosesLastBackend(t *testing.T) {
	for name, test := range map[string]struct {
		world  *world
		change func(*ServiceFacts)
		on     []string // nodes with an endpoint
		drain  []string
		zone   string // "" for no finding
		nodes  []string
	}{
		"the only one of its zone": {zoned("a1", "b1", "b2"), pooled(), []string{"a1", "b1", "b2"}, []string{"a1"}, "zone a", []string{"a1"}},
		"another stays in it":      {zoned("a1", "a2", "b1"), pooled(), []string{"a1", "a2", "b1"}, []string{"a1"}, "", nil},
		"another without one":      {zoned("a1", "a2", "b1"), pooled(), []string{"a1", "b1"}, []string{"a1"}, "zone a", []string{"a1"}},
		"both of a zone":           {zoned("a1", "a2", "b1"), pooled(), []string{"a1", "a2", "b1"}, []string{"a1", "a2"}, "zone a", []string{"a1", "a2"}},
		"two of three zones":       {zoned("a1", "b1", "c1"), pooled(), []string{"a1", "b1", "c1"}, []string{"a1", "b1"}, "zone a, b", []string{"a1", "b1"}},
		"one zone in all":          {zoned("a1", "a2"), pooled(), []string{"a1", "a2"}, []string{"a1"}, "", nil},
		"no zones":                 {zoned("-1", "-2"), pooled(), []string{"-1", "-2"}, []string{"-1"}, "", nil},
		"all zones at once":        {zoned("a1", "b1"), pooled(), []string{"a1", "b1"}, []string{"a1", "b1"}, "", nil},
		"a node out of rotation": {
			zoned("a1", "a2", "b1"), pooled(func(r *Rotation) { r.Seats = map[string]Seat{"a2": {In: No}} }),
			[]string{"a1", "a2", "b1"},
			[]string{"a1"},
			"zone a",
			[]string{"a1"},
		},
		"a node that is not Ready": {
			func() *world { w := zoned("a1", "a2", "b1"); w.nodes["a2"].Ready = false; return w }(), pooled(),
			[]string{"a1", "a2", "b1"},
			[]string{"a1"},
			"zone a",
			[]string{"a1"},
		},
		"an announcer":         {zoned("a1", "b1"), pooled(func(r *Rotation) { r.ZoneBlind = true }), []string{"a1", "b1"}, []string{"a1"}, "", nil},
		"nobody known":         {zoned("a1", "b1"), nil, []string{"a1", "b1"}, []string{"a1"}, "", nil},
		"nothing is lost here": {zoned("a1", "b1", "b2"), pooled(), []string{"b1", "b2"}, []string{"a1"}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			plan := test.world.service("s", test.change, test.on...).plan(Flags{}, test.drain...)
			var found *Finding
			for i := range plan.Services {
				for k := range plan.Services[i].Findings {
					if f := &plan.Services[i].Findings[k]; f.Code == ZoneLosesLastBackend {
						found = f
					}
				}
			}
			if (found != nil) != (test.zone != "") {
				t.Fatalf("finding %+v, want %q", found, test.zone)
			}
			if found == nil {
				return
			}
			if found.Severity != Warn || !strings.Contains(found.Message, test.zone+" ") || strings.Join(found.Nodes, " ") != strings.Join(test.nodes, " ") {
				t.Errorf("%+v; want %s, %v", found, test.zone, test.nodes)
			}
			if plan.Verdict != Withdraw {
				t.Errorf("verdict %s: a zone that is lost is a warning, no more", plan.Verdict)
			}
		})
	}
}

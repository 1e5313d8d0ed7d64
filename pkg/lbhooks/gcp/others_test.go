package gcp_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Before a node leaves, somebody healthy has to be left at the balancer itself.
func TestOthers(t *testing.T) {
	first := member{zoneB, "vm-n1", "HEALTHY"}
	for name, test := range map[string]struct {
		members []member
		leaving []string
		alone   bool
	}{
		"another is healthy":       {[]member{first, {zoneC, "vm-n2", "HEALTHY"}}, []string{"n1"}, false},
		"another of its zone":      {[]member{first, {zoneB, "vm-n3", "HEALTHY"}}, []string{"n1"}, false},
		"another is unhealthy":     {[]member{first, {zoneC, "vm-n2", "UNHEALTHY"}}, []string{"n1"}, true},
		"another, nothing is told": {[]member{first, {zoneC, "vm-n2", ""}}, []string{"n1"}, true},
		"nobody":                   {[]member{first}, []string{"n1"}, true},
		"both leave":               {[]member{first, {zoneB, "vm-n3", "HEALTHY"}}, []string{"n1", "n3"}, true},
		"none of Google's":         {[]member{first}, nil, false},
	} {
		for _, kind := range []string{neg, ig, ""} {
			t.Run(name+", "+kind, func(t *testing.T) {
				c := newCloud()
				svc := service(rbs)
				if kind == "" {
					svc = service(finalized("service.kubernetes.io/load-balancer-cleanup"))
					c.pools[legacy] = test.members
				}
				for _, zone := range []string{zoneB, zoneC} {
					c.backends[backend] = append(c.backends[backend], groupURL(zone, kind, "g"))
					c.groups["zones/"+zone+"/"+kind+"/g"] = nil
				}
				for _, m := range test.members {
					key := "zones/" + m.zone + "/" + kind + "/g"
					c.groups[key] = append(c.groups[key], m)
				}
				leaving := []*corev1.Node{{}}
				for i, name := range test.leaving {
					leaving = append(leaving[:i], node(name))
				}
				err := newHook(t, c, nil).Others(t.Context(), svc, leaving)
				if errors.Is(err, lbhooks.ErrNobodyElse) != test.alone || !test.alone && err != nil {
					t.Errorf("%v, want nobody else: %t", err, test.alone)
				}
			})
		}
	}
	c := newCloud()
	c.always(&answer{status: 503, reason: "backendError", message: "down"})
	if err := newHook(t, c, nil).Others(t.Context(), service(rbs), []*corev1.Node{node("n1")}); err == nil || errors.Is(err, lbhooks.ErrNobodyElse) {
		t.Errorf("%v, want an error that tells nothing", err)
	}
}

package aws_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Before a node leaves, somebody healthy has to be left at the balancer itself, in every group.
func TestOthers(t *testing.T) {
	n1, n2 := node("n1"), node("n2")
	third := func(state string) *target { return &target{id: "i-n3", port: 30080, state: state} }
	for name, test := range map[string]struct {
		protocol string
		groups   [][]*target
		leaving  []*corev1.Node
		alone    string // the group that has nobody else, "" for none
	}{
		"another is healthy":           {groups: [][]*target{{onNode("healthy"), other("healthy")}}, leaving: []*corev1.Node{n1}},
		"both leave":                   {groups: [][]*target{{onNode("healthy"), other("healthy")}}, leaving: []*corev1.Node{n1, n2}, alone: "g0"},
		"both leave, a third stays":    {groups: [][]*target{{onNode("healthy"), other("healthy"), third("healthy")}}, leaving: []*corev1.Node{n1, n2}},
		"the other is unhealthy":       {groups: [][]*target{{onNode("healthy"), other("unhealthy")}}, leaving: []*corev1.Node{n1}, alone: "g0"},
		"the other is going":           {groups: [][]*target{{onNode("healthy"), other("draining")}}, leaving: []*corev1.Node{n1}, alone: "g0"},
		"in one group only":            {groups: [][]*target{{onNode("healthy"), other("healthy")}, {onNode("healthy"), other("initial")}}, leaving: []*corev1.Node{n1}, alone: "g1"},
		"nobody leaves":                {groups: [][]*target{{onNode("unhealthy")}}},
		"udp that was never healthy":   {protocol: "UDP", groups: [][]*target{{onNode("unhealthy"), other("unhealthy")}}, leaving: []*corev1.Node{n1}},
		"udp, nobody else registered":  {protocol: "UDP", groups: [][]*target{{onNode("unhealthy")}}, leaving: []*corev1.Node{n1}, alone: "g0"},
		"udp, its check is known good": {protocol: "UDP", groups: [][]*target{{onNode("healthy"), other("unhealthy")}}, leaving: []*corev1.Node{n1}, alone: "g0"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			for i, targets := range test.groups {
				g := nlb([]string{"g0", "g1"}[i], targets...)
				if test.protocol != "" {
					g.protocol = test.protocol
				}
				cloud.groups = append(cloud.groups, g)
			}
			hook, _ := newHook(t, cloud.serve(t), nil)
			wantAlone(t, hook.Others(t.Context(), service(class(nlbClass), hosted(nlbHost)), test.leaving), test.alone)
		})
	}
}

func wantAlone(t *testing.T, err error, at string) {
	t.Helper()
	if errors.Is(err, lbhooks.ErrNobodyElse) != (at != "") || at != "" && !strings.Contains(err.Error(), at) || at == "" && err != nil {
		t.Errorf("%v, want nobody else at %q", err, at)
	}
}

func TestOthersClassic(t *testing.T) {
	for name, test := range map[string]struct {
		all   []instance
		alone bool
	}{
		"another in service": {all: []instance{{"i-n1", "InService", "N/A"}, {"i-n2", "InService", "N/A"}}},
		"another out":        {all: []instance{{"i-n1", "InService", "N/A"}, {"i-n2", "OutOfService", "N/A"}}, alone: true},
		"another going":      {all: []instance{{"i-n1", "InService", "N/A"}, {"i-n2", "InService", "Instance deregistration currently in progress."}}, alone: true},
		"nobody":             {alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			cloud.classic["a1b2c3"] = test.all
			hook, _ := newHook(t, cloud.serve(t), nil)
			wantAlone(t, hook.Others(t.Context(), service(hosted(clbHost)), []*corev1.Node{node("n1")}), map[bool]string{true: "load balancer a1b2c3"}[test.alone])
		})
	}
}

// What cannot be asked tells nothing: the proof asks again, and says what stands against it.
func TestOthersThatCannotTell(t *testing.T) {
	cloud := newCloud()
	cloud.always(&answer{status: 403, code: "AccessDenied", message: "no"})
	hook, _ := newHook(t, cloud.serve(t), nil)
	for _, svc := range []*corev1.Service{service(class(nlbClass), hosted(nlbHost)), service(hosted(clbHost))} {
		if err := hook.Others(t.Context(), svc, []*corev1.Node{node("n1")}); err == nil || errors.Is(err, lbhooks.ErrNobodyElse) {
			t.Errorf("%v, want an error that tells nothing", err)
		}
	}
	if err := newOffline(t).Others(t.Context(), service(), nil); !errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("offline: %v", err)
	}
}

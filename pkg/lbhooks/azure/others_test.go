package azure_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Before a node leaves, every rule has to have another backend that is up.
func TestOthers(t *testing.T) {
	const ok = "Up_Probe_Success"
	own, other, down := ofScaleSet(0, "Up", ok), ofScaleSet(1, "Up", ok), ofScaleSet(1, "Down", "Down_Probe_HttpStatusCodeError")
	rows := func(all ...backend) []backend { return all }
	for name, test := range map[string]struct {
		first, second []backend
		leaving       []*corev1.Node
		alone         string
	}{
		"another is up":               {rows(own, other), rows(own, other), []*corev1.Node{node("n1")}, ""},
		"down at one rule":            {rows(own, other), rows(own, down), []*corev1.Node{node("n1")}, "TCP-443"},
		"up because all are down":     {rows(own, ofScaleSet(1, "Up", "Up_Probe_AllDownIsUp")), rows(own, other), []*corev1.Node{node("n1")}, "TCP-80"},
		"both leave":                  {rows(own, other), rows(own, other), []*corev1.Node{node("n1"), node("n2")}, "TCP-443"},
		"nobody":                      {rows(own), rows(own), []*corev1.Node{node("n1")}, "TCP-443"},
		"none of Azure's":             {rows(own), rows(own), []*corev1.Node{{}}, ""},
		"the node itself may be down": {rows(other), rows(ofScaleSet(0, "Down", ""), other), []*corev1.Node{node("n1")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newRules(nil, test.first, test.second)
			hook := newHook(t, cloud.serve(t, 0), map[string]string{"resource-group": "MC_rg"})
			err := hook.Others(t.Context(), service(), test.leaving)
			if errors.Is(err, lbhooks.ErrNobodyElse) != (test.alone != "") || test.alone == "" && err != nil || test.alone != "" && !strings.Contains(err.Error(), test.alone) {
				t.Errorf("%v, want nobody else at %q", err, test.alone)
			}
		})
	}
	cloud := newRules(nil, nil, nil)
	cloud.always(&answer{status: 429, code: "TooManyRequests", message: "throttled"})
	hook := newHook(t, cloud.serve(t, 0), map[string]string{"resource-group": "MC_rg"})
	if err := hook.Others(t.Context(), service(), []*corev1.Node{node("n1")}); err == nil || errors.Is(err, lbhooks.ErrNobodyElse) {
		t.Errorf("%v, want an error that tells nothing", err)
	}
}

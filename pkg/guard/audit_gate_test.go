package guard

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUngated(t *testing.T) {
	w := newWorld("n")
	for name, gate := range map[string]string{"plain": "", "off": "off", "warned": "warn", "typo": "of"} {
		w.service(name, func(s *ServiceFacts) { s.Gate = gate }, "n:RS")
	}
	w.service("inside", func(s *ServiceFacts) { s.External, s.Internal = false, true }, "n:RS")
	const broken = "webhook evict.safedrain.dev is not registered"
	for name, tc := range map[string]struct {
		facts  GateFacts
		filter AuditFilter
		want   []string
	}{
		"covered": {GateFacts{}, AuditFilter{}, []string{"Info not covered by the gate, safedrain.dev/gate=off on the Service: a/off"}},
		"another": {GateFacts{}, AuditFilter{Namespace: "b"}, nil},
		"broken":  {GateFacts{Broken: []string{broken}}, AuditFilter{Name: "plain"}, []string{"Warn the gate is installed and does not judge: " + broken}},
		"the namespace is off": {GateFacts{Gate: map[string]string{"a": "off"}}, AuditFilter{}, []string{
			"Info not covered by the gate, safedrain.dev/gate=off on namespace a: a/plain, a/typo",
			"Info not covered by the gate, safedrain.dev/gate=off on the Service: a/off",
		}},
		"the cluster is off": {GateFacts{Off: true}, AuditFilter{}, []string{
			"Info not covered by the gate, safedrain.dev/gate=off on the Service: a/off",
			"Info not covered by the gate, which is off in this cluster: a/plain, a/typo",
		}},
		"apart": {GateFacts{Apart: map[string]string{"a": "in an exempt namespace"}}, AuditFilter{}, []string{
			"Info not covered by the gate, in an exempt namespace: a/off, a/plain, a/typo, a/warned",
		}},
	} {
		var got []string
		for _, f := range Ungated(w, tc.filter, &tc.facts) {
			if f.Code != NotGated || f.Advice == "" {
				t.Errorf("%s: %+v", name, f)
			}
			got = append(got, string(f.Severity)+" "+f.Message)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

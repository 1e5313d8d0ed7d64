package timing_test

import (
	"testing"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// TestResets: a network load balancer of AWS breaks the connections of a node whose check fails, whoever states the check.
func TestResets(t *testing.T) {
	const prefix = "service.beta.kubernetes.io/aws-load-balancer-"
	for name, test := range map[string]struct {
		annotations map[string]string
		want        bool
	}{
		"classic":          {nil, false},
		"network":          {map[string]string{prefix + "type": "nlb"}, true},
		"the controller's": {map[string]string{prefix + "type": "external"}, true},
		"the controller's, told to keep them": {map[string]string{
			prefix + "type":                    "external",
			prefix + "target-group-attributes": "a=b,target_health_state.unhealthy.connection_termination.enabled=false",
		}, false},
		"network, with a check of ours": {map[string]string{prefix + "type": "nlb", lbhooks.AnnotationHealthCheck: "interval=1s,unhealthy=2"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			hc, err := timing.Known(service(test.annotations), cloud("aws:///x/i-1"))
			if err != nil {
				t.Fatal(err)
			}
			if got := hc.Resets != ""; got != test.want {
				t.Errorf("resets %t (%s), want %t", got, hc.Resets, test.want)
			}
		})
	}
}

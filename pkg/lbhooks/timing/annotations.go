package timing

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// overrideAWS applies the annotations that both the cloud provider and the load balancer controller read.
func overrideAWS(svc *corev1.Service, hc *lbhooks.HealthCheck) error {
	r := reader{annotations: svc.Annotations, prefix: awsPrefix + "healthcheck-"}
	r.seconds("interval", &hc.Interval)
	r.seconds("timeout", &hc.Timeout)
	r.number("unhealthy-threshold", &hc.Unhealthy)
	r.source(hc)
	return r.err
}

// overrideAzure applies the annotations of the Service and, port by port, those of its ports; of the ports the slowest
// counts, for the node is out of the Service only when it is out of all.
func overrideAzure(svc *corev1.Service, hc *lbhooks.HealthCheck) error {
	r := reader{annotations: svc.Annotations, prefix: azurePrefix + "health-probe-"}
	r.seconds("interval", &hc.Interval)
	r.number("num-of-probe", &hc.Unhealthy)
	r.source(hc)
	slowest := *hc
	for _, port := range svc.Spec.Ports {
		one := *hc
		p := reader{annotations: svc.Annotations, prefix: fmt.Sprintf("service.beta.kubernetes.io/port_%d_health-probe_", port.Port), err: r.err}
		p.seconds("interval", &one.Interval)
		p.number("num-of-probe", &one.Unhealthy)
		p.source(&one)
		r.err = p.err
		if p.used && one.Interval*time.Duration(one.Unhealthy) > slowest.Interval*time.Duration(slowest.Unhealthy) {
			slowest = one
		}
	}
	*hc = slowest
	return r.err
}

// reader reads annotations with one prefix. Whole seconds and counts, as the providers write them.
type reader struct {
	annotations map[string]string
	prefix      string
	used        bool
	err         error
}

func (r *reader) number(name string, to *int) {
	text, ok := r.annotations[r.prefix+name]
	if !ok || r.err != nil {
		return
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 1 {
		r.err = fmt.Errorf("annotation %s: %q is not a number above 0", r.prefix+name, text)
		return
	}
	r.used, *to = true, n
}

func (r *reader) seconds(name string, to *time.Duration) {
	var n int
	r.number(name, &n)
	if n > 0 {
		*to = time.Duration(n) * time.Second
	}
}

func (r *reader) source(hc *lbhooks.HealthCheck) {
	if r.used {
		hc.Source = "annotations " + r.prefix + "* over " + strings.TrimPrefix(hc.Source, "annotations ")
	}
}

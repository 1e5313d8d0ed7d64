package timing_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

const second = time.Second

func service(annotations map[string]string) *corev1.Service {
	svc := &corev1.Service{}
	svc.Annotations = annotations
	svc.Spec.HealthCheckNodePort = 32000
	svc.Spec.Ports = []corev1.ServicePort{{Port: 80}, {Port: 443}}
	return svc
}

func cloud(providerID string) []*corev1.Node {
	return []*corev1.Node{{Spec: corev1.NodeSpec{ProviderID: providerID}}}
}

// Sources: cloud-provider-aws pkg/providers/v1/aws.go and aws_loadbalancer.go; aws-load-balancer-controller
// pkg/service/model_builder.go; cloud-provider-azure pkg/provider/azure_loadbalancer.go, azure_loadbalancer_healthprobe.go and
// pkg/consts/consts.go; ingress-gce pkg/healthchecksl4.
func TestKnown(t *testing.T) {
	aws := func(kv ...string) map[string]string {
		out := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			out["service.beta.kubernetes.io/aws-load-balancer-"+kv[i]] = kv[i+1]
		}
		return out
	}
	hc := func(interval, timeout time.Duration, unhealthy int) *lbhooks.HealthCheck {
		return &lbhooks.HealthCheck{Interval: interval, Timeout: timeout, Unhealthy: unhealthy}
	}
	class := timing.LBCClass
	withClass := service(aws("healthcheck-interval", "10", "healthcheck-timeout", "6", "healthcheck-unhealthy-threshold", "2"))
	withClass.Spec.LoadBalancerClass = &class
	other := "other.example/x"
	foreign := service(nil)
	foreign.Spec.LoadBalancerClass = &other
	byHostname := service(nil)
	byHostname.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "a.elb.eu-west-1.amazonaws.com"}}
	noPort := service(nil)
	noPort.Spec.HealthCheckNodePort = 0
	for name, test := range map[string]struct {
		svc   *corev1.Service
		nodes []*corev1.Node
		want  *lbhooks.HealthCheck
	}{
		"aws classic":                      {service(nil), cloud("aws:///eu-west-1a/i-1"), hc(10*second, 5*second, 6)},
		"aws by hostname":                  {byHostname, nil, hc(10*second, 5*second, 6)},
		"aws nlb":                          {service(aws("type", "nlb")), cloud("aws:///x/i-1"), hc(10*second, 10*second, 2)},
		"aws load balancer controller":     {service(aws("type", "external", "nlb-target-type", "instance")), cloud("aws:///x/i-1"), hc(10*second, 6*second, 2)},
		"the same by class, annotated":     {withClass, cloud("aws:///x/i-1"), hc(10*second, 6*second, 2)},
		"aws annotations":                  {service(aws("healthcheck-interval", "30", "healthcheck-unhealthy-threshold", "3")), cloud("aws:///x/i-1"), hc(30*second, 5*second, 3)},
		"aws pod targets":                  {service(aws("type", "external", "nlb-target-type", "ip")), cloud("aws:///x/i-1"), nil},
		"aws probes another port":          {service(aws("healthcheck-port", "8080")), cloud("aws:///x/i-1"), nil},
		"aws probes this very port":        {service(aws("healthcheck-port", "32000")), cloud("aws:///x/i-1"), hc(10*second, 5*second, 6)},
		"azure":                            {service(nil), cloud("azure:///subscriptions/x"), hc(5*second, 0, 2)},
		"azure annotations":                {service(map[string]string{"service.beta.kubernetes.io/azure-load-balancer-health-probe-interval": "10", "service.beta.kubernetes.io/azure-load-balancer-health-probe-num-of-probe": "4"}), cloud("azure:///x"), hc(10*second, 0, 4)},
		"azure, the slowest port":          {service(map[string]string{"service.beta.kubernetes.io/port_443_health-probe_interval": "20"}), cloud("azure:///x"), hc(20*second, 0, 2)},
		"azure, a faster port":             {service(map[string]string{"service.beta.kubernetes.io/port_443_health-probe_num-of-probe": "1"}), cloud("azure:///x"), hc(5*second, 0, 2)},
		"gce":                              {service(nil), cloud("gce://p/z/i"), hc(8*second, second, 3)},
		"openstack: not known":             {service(nil), cloud("openstack:///x"), nil},
		"no cloud":                         {service(nil), cloud(""), nil},
		"somebody else's class":            {foreign, cloud("aws:///x/i-1"), nil},
		"no health check port":             {noPort, cloud("aws:///x/i-1"), nil},
		"ours wins":                        {service(map[string]string{lbhooks.AnnotationHealthCheck: "interval=3s,unhealthy=2,timeout=1s"}), cloud("aws:///x/i-1"), hc(3*second, second, 2)},
		"ours where nothing else is known": {service(map[string]string{lbhooks.AnnotationHealthCheck: "interval=3s,unhealthy=2"}), nil, hc(3*second, 3*second, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := timing.Known(test.svc, test.nodes)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreFields(lbhooks.HealthCheck{}, "Source", "Resets")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if got != nil && got.Source == "" {
				t.Error("no source")
			}
		})
	}
}

func TestOfAssumesNinetySeconds(t *testing.T) {
	got, err := timing.Of(service(nil), cloud("openstack:///x"))
	if err != nil || got.Interval*time.Duration(got.Unhealthy)+got.Timeout != 90*second || !strings.Contains(got.Source, "assumed") {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBadAnnotations(t *testing.T) {
	for name, annotations := range map[string]map[string]string{
		"ours":        {lbhooks.AnnotationHealthCheck: "10s"},
		"aws, text":   {"service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval": "10s"},
		"aws, zero":   {"service.beta.kubernetes.io/aws-load-balancer-healthcheck-unhealthy-threshold": "0"},
		"aws, minus":  {"service.beta.kubernetes.io/aws-load-balancer-healthcheck-timeout": "-1"},
		"aws, nought": {"service.beta.kubernetes.io/aws-load-balancer-healthcheck-timeout": ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := timing.Of(service(annotations), cloud("aws:///x/i-1"))
			if err == nil || got != nil || !strings.Contains(err.Error(), "annotation ") {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]*lbhooks.HealthCheck{
		"interval=10s,unhealthy=3,timeout=5s":   {Interval: 10 * second, Unhealthy: 3, Timeout: 5 * second},
		" unhealthy = 3 , interval = 1m ":       {Interval: time.Minute, Unhealthy: 3, Timeout: time.Minute},
		"interval=500ms,unhealthy=1,timeout=0s": {Interval: 500 * time.Millisecond, Unhealthy: 1},
		"":                                      nil,
		"interval=10s":                          nil,
		"unhealthy=3":                           nil,
		"interval=10,unhealthy=3":               nil,
		"interval=0s,unhealthy=3":               nil,
		"interval=-1s,unhealthy=3":              nil,
		"interval=2h,unhealthy=3":               nil,
		"interval=10s,unhealthy=0":              nil,
		"interval=10s,unhealthy=1001":           nil,
		"interval=10s,unhealthy=three":          nil,
		"interval=10s,unhealthy=3,":             nil,
		"interval=10s,unhealthy=3,x=1":          nil,
		"interval=1s,interval=2s":               nil,
		"interval=1s;unhealthy=2":               nil,
		"Interval=10s,unhealthy=3":              nil,
		"interval=10s,unhealthy=3,port=1":       nil,
	} {
		t.Run(text, func(t *testing.T) {
			got, err := timing.Parse(text)
			if want == nil {
				if err == nil || !strings.Contains(err.Error(), `write "interval=10s`) || cmp.Diff(got, lbhooks.HealthCheck{}) != "" {
					t.Errorf("%+v, %v; want an error that shows how to write it", got, err)
				}
				return
			}
			want.Source = got.Source
			if err != nil || got.Source == "" || cmp.Diff(*want, got) != "" {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("interval=10s,unhealthy=3,timeout=5s")
	f.Fuzz(func(t *testing.T, text string) {
		hc, err := timing.Parse(text)
		if err == nil && (hc.Interval <= 0 || hc.Timeout < 0 || hc.Unhealthy < 1 || hc.Interval*time.Duration(hc.Unhealthy) < hc.Interval) {
			t.Errorf("%q: %+v", text, hc)
		}
	})
}

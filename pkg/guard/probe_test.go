package guard

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// at makes an endpoint on a node: R ready, S serving, T terminating; anything else is unset.
func at(addr, node, conditions string) Endpoint {
	return Endpoint{
		Addr: netip.MustParseAddr(addr), Port: 8080, Node: node,
		Ready: strings.Contains(conditions, "R"), Serving: strings.Contains(conditions, "S"), Terminating: strings.Contains(conditions, "T"),
	}
}

// probed is a Service with one node port a family and a health check port.
func probed(ports ...Port) *ServiceFacts {
	return &ServiceFacts{Key: Key{"w", "lb"}, External: true, HealthCheckPort: 31000, Ports: ports}
}

func TestPredict(t *testing.T) {
	http := func(endpoints ...Endpoint) Port {
		return Port{Name: "http", Protocol: corev1.ProtocolTCP, Family: corev1.IPv4Protocol, NodePort: 30080, Endpoints: endpoints}
	}
	here, there := at("10.0.0.1", "n1", "RS"), at("10.0.0.2", "n2", "RS")
	six := http(at("fd00::2", "n2", "RS"))
	six.Family = corev1.IPv6Protocol
	second := Port{Name: "admin", Protocol: corev1.ProtocolTCP, Family: corev1.IPv4Protocol, NodePort: 30081, Endpoints: []Endpoint{there}}
	udp := Port{Name: "dns", Protocol: corev1.ProtocolUDP, Family: corev1.IPv4Protocol, NodePort: 30053, Endpoints: []Endpoint{there}}
	without := http(here)
	without.NodePort = 0
	for name, test := range map[string]struct {
		svc  *ServiceFacts
		want []string
	}{
		"a ready endpoint here":               {probed(http(here, there)), []string{"http/TCP 30080 OK", "health check 31000 200"}},
		"only elsewhere: dropped":             {probed(http(there)), []string{"http/TCP 30080 Blackhole", "health check 31000 503"}},
		"none at all: rejected":               {probed(http()), []string{"http/TCP 30080 Refused", "health check 31000 503"}},
		"terminating here: served, check 503": {probed(http(at("10.0.0.1", "n1", "ST"))), []string{"http/TCP 30080 OK", "health check 31000 503"}},
		"terminating elsewhere: dropped":      {probed(http(at("10.0.0.2", "n2", "ST"))), []string{"http/TCP 30080 Blackhole", "health check 31000 503"}},
		"terminating and dead: rejected":      {probed(http(at("10.0.0.1", "n1", "T"))), []string{"http/TCP 30080 Refused", "health check 31000 503"}},
		"without a node: dropped everywhere":  {probed(http(at("10.0.0.1", "", "RS"))), []string{"http/TCP 30080 Blackhole", "health check 31000 503"}},
		"one port of two, check counts both":  {probed(http(here), second), []string{"http/TCP 30080 OK", "admin/TCP 30081 Blackhole", "health check 31000 200"}},
		"each family alone":                   {probed(http(here), six), []string{"http/TCP 30080 OK", "http/TCP 30080 IPv6 Blackhole", "health check 31000 200", "health check 31000 IPv6 503"}},
		"UDP is predicted too":                {probed(udp), []string{"dns/UDP 30053 Blackhole", "health check 31000 503"}},
		"no node port, only the check":        {probed(without), []string{"health check 31000 200"}},
		"no check":                            {&ServiceFacts{External: true, Ports: []Port{http(here)}}, []string{"http/TCP 30080 OK"}},
		"a copy that does not terminate wins": {probed(http(at("10.0.0.1", "n1", "ST"), here)), []string{"http/TCP 30080 OK", "health check 31000 200"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range Predict(test.svc).Ports("n1") {
				got = append(got, p.Title()+" "+string(p.Predicted))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// seen is a probe of port 30080 of Service w/lb, or of its health check port where an HTTP answer is predicted.
func seen(node string, predicted, observed Answer) Probe {
	p := Probe{Service: Key{"w", "lb"}, Node: node, PortProbe: PortProbe{
		Port: "http/TCP", Family: corev1.IPv4Protocol, Number: 30080, Predicted: predicted, Observed: observed, Times: 1,
	}}
	if predicted == AnswerHealthy || predicted == AnswerUnhealthy {
		p.Port, p.Number = PortHealthCheck, 31000
	}
	if observed != predicted {
		p.Times = 2
	}
	return p
}

func over6(p Probe) Probe {
	p.Family = corev1.IPv6Protocol
	return p
}

func notCounted(p Probe, why string) Probe {
	p.NotCounted = why
	return p
}

func TestJudgeProbes(t *testing.T) {
	for name, test := range map[string]struct {
		probes  []Probe
		results map[string]ProbeResult
		summary ProbeSummary
		finding []string // nodes, then parts of the message and of the advice
	}{
		"all as the rules say": {
			probes:  []Probe{seen("n1", AnswerOK, AnswerOK), seen("n2", AnswerBlackhole, AnswerBlackhole), seen("n1", AnswerHealthy, AnswerHealthy)},
			results: map[string]ProbeResult{"n1": ProbeAgrees, "n2": ProbeAgrees},
			summary: ProbeSummary{Ports: 3, Counted: 3},
		},
		"a blackhole where the rules say ok": {
			probes:  []Probe{seen("n1", AnswerOK, AnswerOK), seen("n2", AnswerOK, AnswerBlackhole)},
			results: map[string]ProbeResult{"n1": ProbeAgrees, "n2": ProbeContradict},
			summary: ProbeSummary{Ports: 2, Counted: 2, Disagree: 1},
			finding: []string{"n2", "http/TCP 30080: the rules say ok, a probe saw BLACKHOLE twice", "firewall"},
		},
		"one port of a node agrees, the other does not": {
			probes:  []Probe{seen("n1", AnswerHealthy, AnswerHealthy), seen("n1", AnswerOK, AnswerRefused)},
			results: map[string]ProbeResult{"n1": ProbeContradict},
			summary: ProbeSummary{Ports: 2, Counted: 2, Disagree: 1},
			finding: []string{"n1", "the rules say ok, a probe saw refused twice", "target port"},
		},
		"served where the rules say dropped": {
			probes:  []Probe{seen("n1", AnswerBlackhole, AnswerOK)},
			results: map[string]ProbeResult{"n1": ProbeContradict},
			summary: ProbeSummary{Ports: 1, Counted: 1, Disagree: 1},
			finding: []string{"n1", "the rules say BLACKHOLE, a probe saw ok twice", "rules are old"},
		},
		"two nodes, two contradictions": {
			probes:  []Probe{seen("n1", AnswerOK, AnswerBlackhole), seen("n2", AnswerUnhealthy, AnswerHealthy), seen("n2", AnswerBlackhole, AnswerBlackhole)},
			results: map[string]ProbeResult{"n1": ProbeContradict, "n2": ProbeContradict},
			summary: ProbeSummary{Ports: 3, Counted: 3, Disagree: 2},
			finding: []string{"n1,n2", "http/TCP 30080 on n1: the rules say ok, a probe saw BLACKHOLE twice; health check 31000 on n2: the rules say 503, a probe saw 200 twice", "goes on sending"},
		},
		"silence everywhere proves nothing": {
			probes:  []Probe{seen("n1", AnswerOK, AnswerBlackhole), seen("n2", AnswerBlackhole, AnswerBlackhole), seen("n1", AnswerHealthy, AnswerBlackhole)},
			results: map[string]ProbeResult{"n1": ProbeNotCounted, "n2": ProbeNotCounted},
			summary: ProbeSummary{Ports: 3, NoProof: []string{"no node answers on any port over IPv4 from here"}},
		},
		"no route counts as silence": {
			probes:  []Probe{seen("n1", AnswerOK, AnswerUnreachable), seen("n2", AnswerOK, AnswerUnreachable)},
			results: map[string]ProbeResult{"n1": ProbeNotCounted, "n2": ProbeNotCounted},
			summary: ProbeSummary{Ports: 2, NoProof: []string{"no node answers on any port over IPv4 from here"}},
		},
		"a refusal is an answer": {
			probes:  []Probe{seen("n1", AnswerOK, AnswerBlackhole), seen("n2", AnswerRefused, AnswerRefused)},
			results: map[string]ProbeResult{"n1": ProbeContradict, "n2": ProbeAgrees},
			summary: ProbeSummary{Ports: 2, Counted: 2, Disagree: 1},
			finding: []string{"n1", "a probe saw BLACKHOLE", "firewall"},
		},
		"the health check alone answers: the port is a contradiction": {
			probes:  []Probe{seen("n1", AnswerHealthy, AnswerHealthy), seen("n1", AnswerOK, AnswerBlackhole), seen("n2", AnswerOK, AnswerBlackhole)},
			results: map[string]ProbeResult{"n1": ProbeContradict, "n2": ProbeContradict},
			summary: ProbeSummary{Ports: 3, Counted: 3, Disagree: 2},
			finding: []string{"n1,n2", "http/TCP 30080: the rules say ok", "firewall"},
		},
		"one family is silent": {
			probes:  []Probe{seen("n1", AnswerOK, AnswerOK), over6(seen("n1", AnswerOK, AnswerUnreachable))},
			results: map[string]ProbeResult{"n1": ProbeAgrees},
			summary: ProbeSummary{Ports: 2, Counted: 1, NoProof: []string{"no node answers on any port over IPv6 from here"}},
		},
		"what is not counted is no contradiction": {
			probes:  []Probe{seen("n1", AnswerOK, AnswerOK), notCounted(seen("n2", AnswerBlackhole, AnswerOK), "we run on this node")},
			results: map[string]ProbeResult{"n1": ProbeAgrees, "n2": ProbeNotCounted},
			summary: ProbeSummary{Ports: 2, Counted: 1},
		},
		"what is not counted breaks no silence": {
			probes:  []Probe{seen("n1", AnswerOK, AnswerBlackhole), notCounted(seen("n2", AnswerBlackhole, AnswerOK), "we run on this node")},
			results: map[string]ProbeResult{"n1": ProbeNotCounted, "n2": ProbeNotCounted},
			summary: ProbeSummary{Ports: 2, NoProof: []string{"no node answers on any port over IPv4 from here"}},
		},
		"nothing was observed": {
			probes:  []Probe{notCounted(seen("n1", AnswerOK, ""), "UDP")},
			results: map[string]ProbeResult{"n1": ProbeNotCounted},
			summary: ProbeSummary{Ports: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			report := &CoverageReport{Services: []ServicePlan{{Namespace: "w", Name: "lb", Nodes: []NodeRow{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}}}}
			JudgeProbes(report, test.probes, []string{"192.0.2.9"}, "outside the nodes")
			results := map[string]ProbeResult{}
			for _, row := range report.Services[0].Nodes {
				if row.Probe != nil {
					results[row.Name] = row.Probe.Result
				}
			}
			if diff := cmp.Diff(test.results, results); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			test.summary.From, test.summary.Place = []string{"192.0.2.9"}, "outside the nodes"
			if test.summary.NoProof == nil {
				test.summary.NoProof = []string{}
			}
			if diff := cmp.Diff(&test.summary, report.Probe); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
			findings := report.Services[0].Findings
			if test.finding == nil {
				if len(findings) > 0 {
					t.Errorf("findings %+v, want none", findings)
				}
				return
			}
			if len(findings) != 1 || findings[0].Code != ProbeDisagrees || findings[0].Severity != Warn {
				t.Fatalf("findings %+v, want one ProbeDisagrees of severity Warn", findings)
			}
			f := findings[0]
			if got := strings.Join(f.Nodes, ","); got != test.finding[0] {
				t.Errorf("nodes %s, want %s", got, test.finding[0])
			}
			if !strings.Contains(f.Message, test.finding[1]) || !strings.Contains(f.Advice, test.finding[2]) {
				t.Errorf("message %q\nadvice %q\nwant %q", f.Message, f.Advice, test.finding[1:])
			}
		})
	}
}

// TestProbeAdvice: whatever contradicts what, there is a hint where to look.
func TestProbeAdvice(t *testing.T) {
	predicted := []Answer{AnswerOK, AnswerBlackhole, AnswerRefused, AnswerHealthy, AnswerUnhealthy}
	observed := slices.Concat(predicted, []Answer{AnswerUnreachable, AnswerStrange})
	for _, p := range predicted {
		for _, o := range observed {
			if !strings.HasPrefix(adviceOn(p, o), "look ") {
				t.Errorf("%s, %s: %q", p, o, adviceOn(p, o))
			}
		}
	}
}

package guard

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Answer is what a port of a node answers to a client outside: as the rules predict it, or as a probe saw it.
type Answer string

// A node port accepts, is silent, refuses, or cannot be reached at all; a health check port says 200 or 503. Strange is
// an answer that no kube-proxy gives for this Service. The rules predict neither Unreachable nor Strange.
const (
	AnswerOK          Answer = "OK"
	AnswerBlackhole   Answer = "Blackhole" // no answer until the timeout
	AnswerRefused     Answer = "Refused"
	AnswerUnreachable Answer = "Unreachable" // no route from here, or a router on the way says so
	AnswerHealthy     Answer = "200"
	AnswerUnhealthy   Answer = "503"
	AnswerStrange     Answer = "Strange"
)

// PortHealthCheck is the name of healthCheckNodePort among the ports of a probe.
const PortHealthCheck = "healthCheck"

// PortProbe is one port of one node in one family: what the rules predict of it, and what a probe saw.
type PortProbe struct {
	Port      string          `json:"port"` // "name/protocol", or "healthCheck"
	Family    corev1.IPFamily `json:"family"`
	Number    int32           `json:"number"`            // nodePort or healthCheckNodePort
	Address   string          `json:"address,omitempty"` // "address:port" that was probed; empty when none was
	Predicted Answer          `json:"predicted"`
	Observed  Answer          `json:"observed,omitempty"` // empty when nothing was seen
	Times     int             `json:"times,omitempty"`    // how often in a row it was seen so
	Detail    string          `json:"detail,omitempty"`   // one line on what was seen
	// NotCounted says why the observation proves nothing; empty when it counts.
	NotCounted string `json:"notCounted,omitempty"`
}

// Counts reports whether the port was seen and the observation proves something.
func (p *PortProbe) Counts() bool { return p.NotCounted == "" && p.Observed != "" }

// Disagrees reports whether the observation counts and is another than the rules predict.
func (p *PortProbe) Disagrees() bool { return p.Counts() && p.Observed != p.Predicted }

// Protocol is what the port speaks: its own protocol, and TCP for a health check port.
func (p *PortProbe) Protocol() corev1.Protocol {
	if p.Port == PortHealthCheck {
		return corev1.ProtocolTCP
	}
	return corev1.Protocol(p.Port[strings.LastIndexByte(p.Port, '/')+1:])
}

// Answered reports whether anything came back: from a silent port one cannot tell a rule from a firewall.
func (p *PortProbe) Answered() bool {
	switch p.Observed {
	case AnswerOK, AnswerRefused, AnswerHealthy, AnswerUnhealthy, AnswerStrange:
		return true
	}
	return false
}

// Predictor predicts what the ports of one Service answer to a client outside, by kube-proxy's rules.
type Predictor struct {
	ports   []portCoverage // those with a node port
	healthy map[corev1.IPFamily]map[string]bool
	number  int32 // healthCheckNodePort
}

// Predict prepares the predictions for a Service of policy Local, in time of its endpoints.
func Predict(svc *ServiceFacts) *Predictor {
	p := &Predictor{number: svc.HealthCheckPort, healthy: map[corev1.IPFamily]map[string]bool{}}
	for i := range svc.Ports {
		port := &svc.Ports[i]
		pc := coverPort(port)
		ready := p.healthy[port.Family]
		if ready == nil {
			ready = map[string]bool{}
			p.healthy[port.Family] = ready
		}
		for node, l := range pc.local {
			ready[node] = ready[node] || len(l.ready) > 0
		}
		if port.NodePort != 0 {
			p.ports = append(p.ports, pc)
		}
	}
	return p
}

// Ports predicts each node port of the Service, and its health check port, in each family on that node; sorted by
// number and family, the health check port last.
//
// kube-proxy accepts for a usable local endpoint, drops where there are only others, and rejects where there is none at
// all (CategorizeEndpoints, and the proxiers that follow it). healthCheckNodePort counts Ready local endpoints alone.
func (p *Predictor) Ports(node string) []PortProbe {
	var out []PortProbe
	for i := range p.ports {
		pc := &p.ports[i]
		probe := PortProbe{Port: pc.port.title(), Family: pc.port.Family, Number: pc.port.NodePort, Predicted: AnswerBlackhole}
		switch {
		case pc.local[node].state() != StateEmpty:
			probe.Predicted = AnswerOK
		case !pc.anywhere():
			probe.Predicted = AnswerRefused
		}
		out = append(out, probe)
	}
	if p.number != 0 {
		for family, ready := range p.healthy {
			probe := PortProbe{Port: PortHealthCheck, Family: family, Number: p.number, Predicted: AnswerUnhealthy}
			if ready[node] {
				probe.Predicted = AnswerHealthy
			}
			out = append(out, probe)
		}
	}
	slices.SortFunc(out, comparePorts)
	return out
}

// comparePorts puts the health check port last.
func comparePorts(a, b PortProbe) int {
	check := func(p *PortProbe) int {
		if p.Port == PortHealthCheck {
			return 1
		}
		return 0
	}
	return cmp.Or(check(&a)-check(&b), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Family, b.Family))
}

// anywhere reports whether the port has an endpoint that some node would use. One that names no node counts here, as
// kube-proxy counts it, though no node sends to it.
func (pc *portCoverage) anywhere() bool {
	if len(pc.local) > 0 {
		return true
	}
	return slices.ContainsFunc(onePerAddress(pc.port.Endpoints, kubeProxyPrefers), func(e Endpoint) bool {
		return e.Ready || e.Serving && e.Terminating
	})
}

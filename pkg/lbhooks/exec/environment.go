package execcmd

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

const prefix = "SAFEDRAIN_"

// environment is the request as variables, for commands that read no JSON. Lists are separated by blanks.
func environment(r *protocol.Request, timeout time.Duration) []string {
	var internal, all, ports, nodePorts []string
	for _, a := range r.Node.Addresses {
		all = append(all, a.Address)
		if a.Type == "InternalIP" {
			internal = append(internal, a.Address)
		}
	}
	for _, p := range r.Service.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		if p.NodePort != 0 {
			nodePorts = append(nodePorts, fmt.Sprintf("%d/%s", p.NodePort, p.Protocol))
		}
	}
	check := ""
	if r.Service.HealthCheckNodePort != 0 {
		check = strconv.Itoa(int(r.Service.HealthCheckNodePort))
	}
	var out []string
	for _, v := range []struct{ name, value string }{
		{"ACTION", string(r.Action)},
		{"HOOK", r.Hook},
		{"RUN", r.Run},
		{"KEY", r.Key},
		{"TIMEOUT", strconv.FormatFloat(timeout.Seconds(), 'f', -1, 64)},
		{"NODE", r.Node.Name},
		{"NODE_UID", string(r.Node.UID)},
		{"NODE_PROVIDER_ID", r.Node.ProviderID},
		{"NODE_ADDRESSES", strings.Join(all, " ")},
		{"NODE_INTERNAL_IPS", strings.Join(internal, " ")},
		{"SERVICE", r.Service.Namespace + "/" + r.Service.Name},
		{"SERVICE_NAMESPACE", r.Service.Namespace},
		{"SERVICE_NAME", r.Service.Name},
		{"SERVICE_UID", string(r.Service.UID)},
		{"SERVICE_TYPE", r.Service.Type},
		{"SERVICE_INGRESS", strings.Join(r.Service.Ingress, " ")},
		{"PORTS", strings.Join(ports, " ")},
		{"NODE_PORTS", strings.Join(nodePorts, " ")},
		{"HEALTH_CHECK_NODE_PORT", check},
	} {
		out = append(out, prefix+v.name+"="+v.value)
	}
	return out
}

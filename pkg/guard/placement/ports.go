package placement

import corev1 "k8s.io/api/core/v1"

// anyAddress is the address of a port that is taken on every address of the host.
const anyAddress = "0.0.0.0"

// portsOf lists the ports that a pod takes of its host, those of sidecars included.
//
// Source: GetHostPorts in k8s.io/kubernetes/pkg/scheduler/util/utils.go.
func portsOf(spec *corev1.PodSpec) []Port {
	var out []Port
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			port := Port{p.HostIP, p.Protocol, p.HostPort}
			if port.IP == "" {
				port.IP = anyAddress
			}
			if port.Protocol == "" {
				port.Protocol = corev1.ProtocolTCP
			}
			out = append(out, port)
		}
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range spec.Containers {
		add(&spec.Containers[i])
	}
	return out
}

// collides reports whether two pods cannot have their ports on one host.
//
// Source: HostPortInfo.CheckConflict in k8s.io/kube-scheduler/framework/types.go.
func (p Port) collides(o Port) bool {
	return p.Number == o.Number && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyAddress || o.IP == anyAddress)
}

// hostPorts is the rule of ports on the host.
//
// Source: Filter in nodeports/node_ports.go.
func hostPorts(_ *State, in *incoming) check {
	if len(in.ports) == 0 {
		return nil
	}
	return func(n *node) string {
		for _, taken := range n.ports {
			for _, want := range in.ports {
				if want.collides(taken) {
					return "host port taken"
				}
			}
		}
		return ""
	}
}

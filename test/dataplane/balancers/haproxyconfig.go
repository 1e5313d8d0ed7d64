package balancers

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"text/template"

	corev1 "k8s.io/api/core/v1"
)

// haproxyConfig is HAProxy as many run it: everything that is not said here is HAProxy's own default, such as three
// attempts to reach the same server and no other one.
var haproxyConfig = template.Must(template.New("haproxy.cfg").Parse(`global
  stats socket {{.Socket}} mode 600 level admin
  maxconn 5000

defaults
  mode tcp
  balance roundrobin
  timeout connect 5s
  timeout client 1m
  timeout server 1m
  default-server inter {{.Interval}} fall {{.Fall}} rise {{.Rise}}
{{range $p := .Proxies}}
frontend {{.Name}}
  bind {{.Bind}}
  default_backend {{.Name}}

backend {{.Name}}
{{- if $.HTTP}}
  option httpchk GET /
  http-check expect status 200
{{- end}}
{{- range .Servers}}
  server {{.Name}} {{.Address}}{{if $.HTTP}} check port {{$p.Check}}{{else if $.TCP}} check{{end}}
{{- end}}
{{end}}`))

type haproxyProxy struct {
	Name, Bind string
	Check      int32 // healthCheckNodePort
	Servers    []haproxyServer
}

type haproxyServer struct{ Name, Address string }

// config is the configuration for these Services: a frontend and a backend for each port, every node a server.
func (h *HAProxy) config(services []*corev1.Service) (string, error) {
	var proxies []haproxyProxy
	for _, svc := range services {
		if h.name == HAProxyHealthCheck && svc.Spec.HealthCheckNodePort == 0 {
			return "", fmt.Errorf("%s: service %s/%s has no healthCheckNodePort", h.name, svc.Namespace, svc.Name)
		}
		for i := range svc.Spec.Ports {
			port := &svc.Spec.Ports[i]
			if port.NodePort == 0 {
				return "", fmt.Errorf("%s: service %s/%s has no nodePort", h.name, svc.Namespace, svc.Name)
			}
			p := haproxyProxy{
				Name: proxyName(svc, port), Bind: fmt.Sprintf("%s:%d", h.host.Addr, port.NodePort), Check: svc.Spec.HealthCheckNodePort,
			}
			for _, node := range h.lab.Nodes {
				p.Servers = append(p.Servers, haproxyServer{node.Name, fmt.Sprintf("%s:%d", node.Addr, port.NodePort)})
			}
			proxies = append(proxies, p)
		}
	}
	var b bytes.Buffer
	err := haproxyConfig.Execute(&b, map[string]any{
		"Socket": h.file("real.sock"), "Interval": CheckInterval, "Fall": CheckFall, "Rise": CheckRise,
		"HTTP": h.name == HAProxyHealthCheck, "TCP": h.name == HAProxyTCP, "Proxies": proxies,
	})
	return b.String(), err
}

// proxyName names the frontend and the backend of one port, as the worked example of a hook looks for it.
func proxyName(svc *corev1.Service, port *corev1.ServicePort) string {
	return fmt.Sprintf("%s_%s_%d", svc.Namespace, svc.Name, port.Port)
}

// program returns the path of a program, which Debian may keep out of PATH.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return filepath.Join("/usr/sbin", name)
}

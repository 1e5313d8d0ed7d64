package deploy_test

import (
	"strings"

	"github.com/safedrain/safedrain/test/deploy"
)

// variant is one way to install, by the kustomizations and by the chart; both make the same objects.
type variant struct {
	kustomize deploy.Composition
	helm      []string // values
}

// modes are the components that name the modes.
func modes(mode, scale string, further ...string) []string {
	return append([]string{"mode-" + mode, "scale-" + scale}, further...)
}

func values(mode, scale string, further ...string) []string {
	return append([]string{"mode=" + mode, "scale=" + scale}, further...)
}

var variants = map[string]variant{
	"self-signed, warn": {
		deploy.Composition{Overlay: "self-signed", Components: modes("warn", "warn")},
		values("warn", "warn"),
	},
	"self-signed, enforce, clamp": {
		deploy.Composition{Overlay: "self-signed", Components: modes("enforce", "clamp")},
		values("enforce", "clamp"),
	},
	"self-signed, off": {
		deploy.Composition{Overlay: "self-signed", Components: modes("off", "off")},
		values("off", "off"),
	},
	"cert-manager, enforce, deny": {
		deploy.Composition{Overlay: "cert-manager", Components: modes("enforce", "deny")},
		values("enforce", "deny", "certificate.source=cert-manager"),
	},
	"strict": {
		deploy.Composition{Overlay: "strict", Components: modes("enforce", "clamp")},
		values("enforce", "clamp", "strict=true"),
	},
	"host network": {
		deploy.Composition{Overlay: "host-network", Components: modes("enforce", "clamp")},
		values("enforce", "clamp", "hostNetwork=true"),
	},
	"port 10250": {
		deploy.Composition{Overlay: "port-10250", Components: modes("enforce", "clamp")},
		values("enforce", "clamp", "ports.webhook=10250"),
	},
	"cert-manager, strict, host network": {
		deploy.Composition{Overlay: "cert-manager", Components: modes("enforce", "deny", "strict", "host-network")},
		values("enforce", "deny", "certificate.source=cert-manager", "strict=true", "hostNetwork=true"),
	},
	"monitoring, Cluster API": {
		deploy.Composition{Overlay: "self-signed", Components: modes("warn", "warn", "monitoring", "cluster-api")},
		values("warn", "warn", "monitoring.serviceMonitor=true", "monitoring.prometheusRule=true", "monitoring.dashboard=true", "rbac.clusterAPI=true"),
	},
}

func (v variant) hostNetwork() bool {
	return v.kustomize.Overlay == "host-network" || strings.Contains(strings.Join(v.kustomize.Components, " "), "host-network")
}

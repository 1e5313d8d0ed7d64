package kubevip

import (
	"cmp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// config is how kube-vip is set up, from the arguments and variables of one of its pods: pkg/kubevip/config_envvar.go,
// cmd/kube-vip.go. A variable wins over an argument.
type config struct {
	services  bool // it announces Services at all, and not the control plane alone
	arp, bgp  bool
	table     bool // it writes routes into a routing table, which somebody else announces
	wireguard bool
	election  bool // one Lease a Service
	onDemand  bool // one Lease for a Service that asks for it
	etcd      bool // elections are held in etcd, where no Lease shows them
	preserve  bool // the address stays on the node that lost the election
	endpoints bool // it reads Endpoints, whose addresses are ready ones only
	labels    bool // it labels the node that has the address
	file      bool // settings are in a file that nobody here can read
	lease     types.NamespacedName
	class     string // Services of this class
	classOnly bool   // and of no other
	namespace string // Services of this namespace only; "" for all
}

// defaultConfig is kube-vip's, but for what it announces: it stands for a kube-vip whose pods are not at hand.
func defaultConfig() config {
	return config{services: true, arp: true, election: true, class: defaultClass, lease: types.NamespacedName{Namespace: "kube-system", Name: "plndr-svcs-lock"}}
}

func configOf(pod *corev1.Pod) config {
	c := config{class: defaultClass}
	leaseName, legacy := "plndr-svcs-lock", true
	for i := range pod.Spec.Containers {
		s := settingsOf(&pod.Spec.Containers[i])
		c.services = c.services || s.on("svc_enable", "services")
		c.arp = c.arp || s.on("vip_arp", "arp")
		c.bgp = c.bgp || s.on("bgp_enable", "bgp")
		c.table = c.table || s.on("vip_routingtable", "table")
		c.wireguard = c.wireguard || s.on("vip_wireguard", "wireguard")
		c.election = c.election || s.on("svc_election", "servicesElection")
		c.onDemand = c.onDemand || s.on("per_service_election_on_demand", "perServiceElectionOnDemand")
		c.etcd = c.etcd || s["leaderElectionType"] == "etcd"
		c.preserve = c.preserve || s.on("vip_preserve_on_leadership_loss", "preserveVipOnLeadershipLoss")
		c.endpoints = c.endpoints || s.on("enable_endpoints", "enableEndpoints")
		c.labels = c.labels || s.on("enable_node_labeling", "enableNodeLabeling")
		c.file = c.file || s["config_file"] != "" || s["config"] != ""
		c.classOnly = c.classOnly || s.on("lb_class_only", "lbClassOnly")
		c.class = s.text(c.class, "lb_class_name", "lbClassName")
		legacy = s.text(strconv.FormatBool(legacy), "lb_class_legacy_handling", "lbClassNameLegacyHandling") != "false"
		c.namespace = cmp.Or(s["svc_namespace"], c.namespace)
		leaseName = cmp.Or(s["svc_leasename"], s["servicesLeaseName"], leaseName)
	}
	c.services = c.services || c.file
	c.classOnly = c.classOnly || (!legacy && c.class != "")
	c.lease = leaseKey(leaseName, pod.Namespace)
	return c
}

// leaseKey reads the name of a Lease, "name" or "namespace/name".
func leaseKey(name, namespace string) types.NamespacedName {
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		rest, _, _ = strings.Cut(rest, "/")
		return types.NamespacedName{Namespace: ns, Name: rest}
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// settings are the variables and flags of a container by name.
type settings map[string]string

func settingsOf(c *corev1.Container) settings {
	s := settings{}
	all := append(append([]string{}, c.Command...), c.Args...)
	for i, arg := range all {
		if !strings.HasPrefix(arg, "--") {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		switch {
		case ok:
		case i+1 < len(all) && !strings.HasPrefix(all[i+1], "-"):
			value = all[i+1]
		default:
			value = "true"
		}
		s[name] = value
	}
	for _, e := range c.Env {
		if e.Value != "" {
			s[e.Name] = e.Value
		}
	}
	return s
}

// text is the value of a setting that is given, else what it was.
func (s settings) text(was, variable, flag string) string {
	for _, name := range []string{variable, flag} {
		if value, ok := s[name]; ok {
			return value
		}
	}
	return was
}

func (s settings) on(variable, flag string) bool {
	for _, name := range []string{variable, flag} {
		if value, ok := s[name]; ok {
			on, err := strconv.ParseBool(value)
			return on && err == nil
		}
	}
	return false
}

// mode is how a Service is announced.
type mode string

const (
	modeService mode = "one Lease a Service"
	modeGlobal  mode = "one Lease for all Services"
	modeNodes   mode = "BGP from every node with an endpoint"
	modeUnknown mode = "" // see config.unreadable
)

// mode follows pkg/manager/worker: arp.go and bgp.go, StartServices.
func (c *config) mode(svc *corev1.Service) mode {
	if c.unreadable() != "" {
		return modeUnknown
	}
	switch {
	case c.election, c.onDemand && svc.Annotations[annotationForce] == "true":
		return modeService
	case c.arp:
		return modeGlobal
	}
	return modeNodes
}

// unreadable says why nothing in the API shows who announces; "" when it does.
func (c *config) unreadable() string {
	switch {
	case c.file:
		return "kube-vip's settings are in a file"
	case c.wireguard:
		return "kube-vip announces through WireGuard"
	case c.table && !c.arp && !c.bgp:
		return "kube-vip only writes a routing table, another daemon announces it"
	case c.etcd:
		return "kube-vip elects in etcd"
	case !c.arp && !c.bgp:
		return "kube-vip announces neither by ARP nor by BGP"
	}
	return ""
}

// leaseOf names the Lease by which a Service is announced: pkg/lease/lease.go, ServiceName.
func (c *config) leaseOf(svc *corev1.Service) types.NamespacedName {
	if c.mode(svc) == modeGlobal {
		return c.lease
	}
	return leaseKey(cmp.Or(svc.Annotations[annotationLease], "kubevip-"+svc.Name), svc.Namespace)
}

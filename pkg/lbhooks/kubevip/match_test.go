package kubevip_test

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/kubevip"
	"github.com/safedrain/safedrain/pkg/lbhooks/kubevip/kubeviptest"
)

// daemonSet is kube-vip's, kept off nodes that bear a label when there is one.
func daemonSet(avoids string) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-vip", Name: "kube-vip-ds"}}
	if avoids != "" {
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: avoids, Operator: corev1.NodeSelectorOpDoesNotExist}},
			}}},
		}}
	}
	return d
}

func leaseObject(namespace, name, holder string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": map[string]any{"holderIdentity": holder},
	}}
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// env changes a variable of kube-vip on every node.
func env(name, value string) func(*hooktest.Objects) {
	return func(o *hooktest.Objects) {
		for _, pod := range o.Pods[kubevip.Name] {
			c := &pod.Spec.Containers[0]
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
		}
	}
}

func agents(kind kubeviptest.Kind, on ...string) func(*hooktest.Objects) {
	return func(o *hooktest.Objects) {
		for _, node := range on {
			o.Pods[kubevip.Name] = append(o.Pods[kubevip.Name], kubeviptest.Agent(kind, "kube-vip", node))
		}
	}
}

func held(namespace, name, holder string) func(*hooktest.Objects) {
	return func(o *hooktest.Objects) { o.Customs = append(o.Customs, leaseObject(namespace, name, holder)) }
}

// obeys makes the DaemonSet of kube-vip keep off nodes that bear the exclude label.
func obeys(o *hooktest.Objects) { o.Daemons = []*appsv1.DaemonSet{daemonSet(lbhooks.ExcludeLabel)} }

// serving gives nodes an endpoint each, in a slice of its own family.
func serving(nodes ...string) func(*hooktest.Objects) {
	yes := true
	return conditions(discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}, nodes...)
}

func conditions(c discoveryv1.EndpointConditions, nodes ...string) func(*hooktest.Objects) {
	return func(o *hooktest.Objects) {
		s := hooktest.Slice(service(), c, nodes...)
		s.AddressType = discoveryv1.AddressTypeIPv4
		o.AllSlices = append(o.AllSlices, s)
	}
}

// seats writes the seat of each node: Y, N or ? for in rotation, + for eligible.
func seats(r *lbhooks.Rotation, nodes []*corev1.Node) string {
	var out []string
	for _, n := range nodes {
		s := r.Seat(n.Name)
		letter := map[string]string{"Yes": "Y", "No": "N", "Unknown": "?"}[string(s.In)]
		if s.Eligible {
			letter += "+"
		}
		out = append(out, letter)
	}
	return strings.Join(out, " ")
}

type change = func(*hooktest.Objects)

// Sources: kube-vip v1.2.3 pkg/services/processor.go (classes, the annotation), pkg/manager/worker (modes),
// pkg/lease/lease.go (names), pkg/endpoints (who counts as local), pkg/election (holder is the node's name).
func TestMatch(t *testing.T) {
	on := agents(kubeviptest.PerService, "n1", "n2", "n3")
	global := agents(kubeviptest.Global, "n1", "n2", "n3")
	bgp := agents(kubeviptest.BGP, "n1", "n2", "n3")
	holds := held("t", "kubevip-lb", "n1")
	leads := held("kube-vip", "plndr-svcs-lock", "n1")
	yes, no := true, false
	class := func(name string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = &name }
	}
	annotated := func(key, value string) func(*corev1.Service) {
		return func(svc *corev1.Service) { svc.Annotations[key] = value }
	}
	cluster := func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster }
	for name, test := range map[string]struct {
		svc     func(*corev1.Service)
		objects []change
		seats   string // "" when it does not match
		label   bool   // removal by label
		proof   bool
		says    string // of the evidence, or why there is no proof
	}{
		"one lease a Service":        {objects: []change{on, holds, obeys, serving("n1", "n2")}, seats: "Y+ N+ N+", label: true, proof: true, says: "t/kubevip-lb is held by n1"},
		"a DaemonSet without a rule": {objects: []change{on, holds, serving("n1", "n2"), func(o *hooktest.Objects) { o.Daemons = []*appsv1.DaemonSet{daemonSet("")} }}, seats: "Y+ N+ N+", says: "kube-vip/kube-vip-ds runs on nodes whatever the label"},
		"a rule on another label":    {objects: []change{on, holds, serving("n1", "n2"), func(o *hooktest.Objects) { o.Daemons = []*appsv1.DaemonSet{daemonSet("x")} }}, seats: "Y+ N+ N+", says: "whatever the label"},
		"no DaemonSet at hand":       {objects: []change{on, holds, serving("n1", "n2")}, seats: "Y+ N+ N+", says: "is not at hand"},
		"static pods":                {objects: []change{on, holds, obeys, serving("n1", "n2"), func(o *hooktest.Objects) { o.Pods[kubevip.Name][1].OwnerReferences = nil }}, seats: "Y+ N+ N+", says: "is of no DaemonSet"},
		"not on every node":          {objects: []change{agents(kubeviptest.PerService, "n1", "n2"), holds, obeys, serving("n1", "n2")}, seats: "Y+ N+ N", label: true, proof: true},
		"not Ready":                  {objects: []change{on, holds, obeys, serving("n1", "n2"), func(o *hooktest.Objects) { o.Pods[kubevip.Name][1].Status.Conditions[0].Status = "False" }}, seats: "Y+ N N+", label: true, proof: true},
		"nobody holds it":            {objects: []change{on, held("t", "kubevip-x", "n1"), obeys, serving("n1", "n2")}, seats: "N+ N+ N+", label: true, proof: true, says: "nobody holds Lease t/kubevip-lb"},
		"no lease at hand":           {objects: []change{on, obeys, serving("n1", "n2")}, svc: annotated("kube-vip.io/vipHost", "n2"), seats: "?+ Y+ ?+", label: true, proof: true, says: "may be stale"},
		"a holder by its host name": {objects: []change{on, held("t", "kubevip-lb", "host-2"), obeys, serving("n1", "n2"), func(o *hooktest.Objects) {
			o.AllNodes[1].Labels[corev1.LabelHostname] = "host-2"
		}}, seats: "N+ Y+ N+", label: true, proof: true},
		"two slices of a family":    {objects: []change{on, holds, obeys, serving("n1"), serving("n2")}, seats: "Y+ N+ N+", label: true, says: "more than one EndpointSlice of family IPv4"},
		"two slices, Endpoints":     {objects: []change{on, env("enable_endpoints", "true"), holds, obeys, serving("n1"), serving("n2")}, seats: "Y+ N+ N+", label: true, proof: true},
		"the address stays":         {objects: []change{on, env("vip_preserve_on_leadership_loss", "true"), holds, obeys, serving("n1", "n2")}, seats: "Y+ N+ N+", label: true, says: "leaves the address on a node"},
		"etcd":                      {objects: []change{on, env("leaderElectionType", "etcd"), obeys, serving("n1", "n2")}, seats: "?+ ?+ ?+", label: true, says: "elects in etcd"},
		"settings in a file":        {objects: []change{on, env("config_file", "/etc/kube-vip.yaml"), obeys, serving("n1", "n2")}, seats: "?+ ?+ ?+", label: true, says: "in a file"},
		"routing table":             {objects: []change{on, env("vip_arp", "false"), env("vip_routingtable", "true"), obeys, serving("n1", "n2")}, seats: "?+ ?+ ?+", label: true, says: "another daemon announces"},
		"wireguard":                 {objects: []change{on, env("vip_wireguard", "true"), obeys, serving("n1", "n2")}, seats: "?+ ?+ ?+", label: true, says: "WireGuard"},
		"set up in two ways":        {objects: []change{agents(kubeviptest.PerService, "n1"), agents(kubeviptest.Global, "n2"), holds, obeys, serving("n1", "n2")}, seats: "?+ ?+ ?+", label: true, says: "different ways"},
		"one lease for all":         {objects: []change{global, leads, obeys, serving("n1", "n2", "n3")}, seats: "Y+ N+ N+", label: true, proof: true, says: "kube-vip/plndr-svcs-lock is held by n1"},
		"a leader without endpoint": {objects: []change{global, leads, obeys, serving("n2", "n3")}, seats: "N+ N+ N+", label: true, says: "n1 could win without an endpoint"},
		"a future one without": {
			objects: []change{global, leads, obeys, serving("n1", "n2"), func(o *hooktest.Objects) { o.Going = []string{"n1"} }},
			seats:   "Y+ N+ N+", label: true, says: "n3 could win without an endpoint",
		},
		"all that stay have one": {
			objects: []change{agents(kubeviptest.Global, "n1", "n2"), leads, obeys, serving("n1", "n2"), func(o *hooktest.Objects) { o.Going = []string{"n1"} }},
			seats:   "Y+ N+ N", label: true, proof: true,
		},
		"a lease by another name": {objects: []change{global, env("svc_leasename", "x/y"), held("x", "y", "n2"), obeys, serving("n1", "n2", "n3")}, seats: "N+ Y+ N+", label: true, proof: true, says: "Lease x/y"},
		"forced to its own":       {objects: []change{global, env("per_service_election_on_demand", "true"), holds, obeys, serving("n1", "n2")}, svc: annotated("kube-vip.io/forcePerServiceElection", "true"), seats: "Y+ N+ N+", label: true, proof: true},
		"bgp":                     {objects: []change{bgp, obeys, serving("n1", "n2")}, seats: "Y+ Y+ N+", label: true, proof: true, says: "by BGP from every node with an endpoint"},
		"bgp, terminating":        {objects: []change{bgp, obeys, conditions(discoveryv1.EndpointConditions{Ready: &no, Serving: &yes}, "n1")}, seats: "Y+ N+ N+", label: true, proof: true},
		"bgp, nil is not serving": {objects: []change{bgp, obeys, conditions(discoveryv1.EndpointConditions{Ready: &yes}, "n1")}, seats: "N+ N+ N+", label: true, proof: true},
		"bgp, Endpoints":          {objects: []change{bgp, env("enable_endpoints", "true"), obeys, conditions(discoveryv1.EndpointConditions{Ready: &no, Serving: &yes}, "n1")}, seats: "N+ N+ N+", label: true, proof: true},
		"bgp, policy Cluster":     {svc: cluster, objects: []change{bgp, obeys, serving("n1")}, seats: "Y+ Y+ Y+", label: true, proof: true},
		"policy Cluster":          {svc: cluster, objects: []change{on, held("t", "kubevip-lb", "n3"), obeys, serving("n1")}, seats: "N+ N+ Y+", label: true, proof: true},
		"shared lease, Cluster":   {svc: func(s *corev1.Service) { cluster(s); annotated("kube-vip.io/leaseName", "u/common")(s) }, objects: []change{on, held("u", "common", "n2"), obeys, serving("n1")}, seats: "N+ Y+ N+", label: true, proof: true},
		"two, for namespaces of their own": {objects: []change{on, env("svc_namespace", "t"), holds, obeys, serving("n1", "n2"), func(o *hooktest.Objects) {
			for _, node := range []string{"n1", "n2", "n3"} {
				pod := kubeviptest.Agent(kubeviptest.Global, "other", node)
				pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "svc_namespace", Value: "u"})
				o.Pods[kubevip.Name] = append(o.Pods[kubevip.Name], pod)
			}
		}}, seats: "Y+ N+ N+", label: true, proof: true},
		"control plane only":      {objects: []change{on, env("svc_enable", "false"), obeys, serving("n1")}, seats: ""},
		"its class":               {svc: class("kube-vip.io/kube-vip-class"), objects: []change{on, holds, obeys, serving("n1")}, seats: "Y+ N+ N+", label: true, proof: true},
		"another class":           {svc: class("x/y"), objects: []change{on, holds, obeys}, seats: ""},
		"only its class":          {objects: []change{on, env("lb_class_only", "true"), holds, obeys}, seats: ""},
		"no legacy handling":      {objects: []change{on, env("lb_class_legacy_handling", "false"), holds, obeys}, seats: ""},
		"a class by another name": {svc: class("x/y"), objects: []change{on, env("lb_class_name", "x/y"), holds, obeys, serving("n1")}, seats: "Y+ N+ N+", label: true, proof: true},
		"another namespace":       {objects: []change{on, env("svc_namespace", "other"), holds, obeys}, seats: ""},
		"ignored":                 {svc: annotated("kube-vip.io/ignore", "true"), objects: []change{on, holds, obeys}, seats: ""},
		"no pods, a lease":        {objects: []change{holds, serving("n1", "n2")}, seats: "Y+ N+ N+", says: "no DaemonSet of kube-vip is seen"},
		"no pods, an annotation":  {svc: annotated("kube-vip.io/vipHost", "n1"), objects: []change{serving("n1", "n2")}, seats: "Y+ ?+ ?+", says: "no DaemonSet"},
		"no pods, its class":      {svc: class("kube-vip.io/kube-vip-class"), objects: []change{serving("n1", "n2")}, seats: "?+ ?+ ?+", says: "no DaemonSet"},
		"no pods, no sign":        {objects: []change{serving("n1", "n2")}, seats: ""},
		"no load balancer at all": {svc: func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }, objects: []change{on, holds, obeys}, seats: ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := &hooktest.Objects{AllNodes: nodes("n1", "n2", "n3"), Pods: map[string][]*corev1.Pod{}}
			for _, c := range test.objects {
				c(o)
			}
			svc := service()
			if test.svc != nil {
				test.svc(svc)
			}
			r, ok := kubevip.New(nil, clock.RealClock{}).Match(svc, o)
			if !ok {
				if test.seats != "" {
					t.Fatal("does not match")
				}
				return
			}
			removal := lbhooks.RemovalNone
			if test.label {
				removal = lbhooks.RemovalLabel
			}
			if got := seats(&r, o.AllNodes); got != test.seats {
				t.Errorf("seats %q, want %q", got, test.seats)
			}
			if r.Removal != removal || r.Provable != test.proof {
				t.Errorf("removal %s, provable %t (%s); want %s, %t", r.Removal, r.Provable, r.NoProof, removal, test.proof)
			}
			if all := fmt.Sprint(r.Evidence, "; ", r.NoProof); !strings.Contains(all, test.says) {
				t.Errorf("%q, want %q in it", all, test.says)
			}
			if r.Reason == "" || r.Evidence == "" {
				t.Errorf("reason %q, evidence %q", r.Reason, r.Evidence)
			}
		})
	}
}

// Source: kube-vip v1.2.3 pkg/services/processor.go AddOrModify: an error for a policy other than Cluster, since v1.0.3.
func TestSharedLeaseOfPolicyLocal(t *testing.T) {
	o := &hooktest.Objects{AllNodes: nodes("n1", "n2"), Pods: map[string][]*corev1.Pod{}}
	agents(kubeviptest.PerService, "n1", "n2")(o)
	svc := service(func(s *corev1.Service) { s.Annotations["kube-vip.io/leaseName"] = "common" })
	r, ok := kubevip.New(nil, clock.RealClock{}).Match(svc, o)
	if !ok || r.Unsupported == "" {
		t.Errorf("matches %t, unsupported %q", ok, r.Unsupported)
	}
}

package kuberouter

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/pool"
)

// world is kube-router on the nodes, the same for all Services.
type world struct {
	*installation

	nodes []*corev1.Node
	out   func() map[string]lbhooks.Seat // nodes that advertise nothing
}

// installation is what its pods tell, which change less often than nodes.
type installation struct {
	agents              map[string]bool // nodes with a Ready kube-router
	known               bool
	balancers, external bool // flags: such addresses of every Service are advertised
}

func newWorld(objects lbhooks.Objects, in *installation) *world {
	w := &world{installation: in, nodes: objects.Nodes()}
	w.out = pool.LeftOut(w.nodes, w.barred)
	return w
}

func newInstallation(objects lbhooks.Objects) *installation {
	w := &installation{agents: map[string]bool{}}
	for _, pod := range objects.Agents(Name) {
		if pod.Spec.NodeName == "" {
			continue
		}
		w.known = true
		w.agents[pod.Spec.NodeName] = w.agents[pod.Spec.NodeName] || lbhooks.PodReady(pod)
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			for _, arg := range append(append([]string{}, c.Command...), c.Args...) {
				name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
				on, err := strconv.ParseBool(value)
				on = !given || on && err == nil
				switch name {
				case "advertise-loadbalancer-ip":
					w.balancers = on
				case "advertise-external-ip":
					w.external = on
				}
			}
		}
	}
	return w
}

// advertises says why an outside address of the Service is advertised; "" when none is: pkg/controllers/routing/ecmp_vip.go,
// getAllVIPsForService and shouldAdvertiseService. An annotation wins over a flag.
func (w *installation) advertises(svc *corev1.Service) string {
	_, skip := svc.Annotations[annotationSkip]
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(lbhooks.Addresses(svc)) > 0 && !skip {
		if why := said(svc, annotationBalancer, w.balancers, "--advertise-loadbalancer-ip"); why != "" {
			return why
		}
	}
	if len(svc.Spec.ExternalIPs) > 0 {
		return said(svc, annotationExternal, w.external, "--advertise-external-ip")
	}
	return ""
}

func said(svc *corev1.Service, annotation string, flag bool, name string) string {
	if value, ok := svc.Annotations[annotation]; ok {
		if on, err := strconv.ParseBool(value); on && err == nil {
			return fmt.Sprintf("annotation %s=%s", annotation, value)
		}
		return ""
	}
	if flag {
		return "kube-router runs with " + name
	}
	return ""
}

// barred returns the seat of a node that advertises nothing, false for one that may.
func (w *world) barred(n *corev1.Node) (lbhooks.Seat, bool) {
	switch {
	case lbhooks.Virtual(n):
		return pool.Out("a virtual node")
	case w.known && !w.agents[n.Name]:
		return pool.Out("no Ready kube-router on it")
	}
	return lbhooks.Seat{}, false
}

func (w *world) rotation(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	local := svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal || svc.Annotations[annotationLocal] == "true"
	advertising := lbhooks.Seat{In: lbhooks.Yes, Eligible: true, Why: "advertises it"}
	r := lbhooks.Rotation{
		Hook: Name, Removal: lbhooks.RemovalNone, Follows: local, FollowsServing: true, ZoneBlind: true, NoProof: noLever,
		Shared: w.out(), Rest: advertising, Evidence: "kube-router's rule: every node it runs on",
	}
	if !local {
		return r
	}
	r.Evidence = "kube-router's rule: every node with an endpoint in the slices, ready or not"
	r.Rest, r.Seats = lbhooks.Seat{In: lbhooks.No, Eligible: true, Why: "no endpoint"}, map[string]lbhooks.Seat{}
	for node := range lbhooks.NodesWith(objects.Slices(svc.Namespace, svc.Name), func(discoveryv1.EndpointConditions) bool { return true }) {
		if _, barred := r.Shared[node]; !barred && lbhooks.NodeOf(w.nodes, node) != nil {
			r.Seats[node] = advertising
		}
	}
	return r
}

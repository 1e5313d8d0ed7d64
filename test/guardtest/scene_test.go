package guardtest

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	sceneNamespace = "shop"
	sceneService   = "api"
	labelProxyName = "service.kubernetes.io/service-proxy-name"
)

var sceneNodes = []string{"node-1", "node-2", "node-3", "elsewhere"}

// scene is one Service with its EndpointSlices, of every shape that the API lets through and some that it does not.
type scene struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

func (s *scene) objects() []runtime.Object {
	objects := []runtime.Object{s.service}
	for _, sl := range s.slices {
		objects = append(objects, sl)
	}
	return objects
}

func randomScene(r *rand.Rand) *scene {
	s := &scene{service: randomService(r)}
	for i := range r.IntN(5) {
		s.slices = append(s.slices, randomSlice(r, fmt.Sprintf("%s-%d", sceneService, i)))
	}
	return s
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// randomService is Local three times of four, since nothing else is asked about there.
func randomService(r *rand.Rand) *corev1.Service {
	svc := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: sceneNamespace, Name: sceneService},
	}
	spec := &svc.Spec
	spec.Type = pick(r, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
	if spec.Type == corev1.ServiceTypeClusterIP && oneIn(r, 2) {
		spec.ExternalIPs = []string{"192.0.2.1", "2001:db8::1"}
	}
	if spec.Type != corev1.ServiceTypeClusterIP || len(spec.ExternalIPs) > 0 {
		spec.ExternalTrafficPolicy = pick(r, corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyLocal,
			corev1.ServiceExternalTrafficPolicyCluster)
	}
	local, whole := corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster
	spec.InternalTrafficPolicy = pick(r, nil, &local, &whole)
	switch r.IntN(4) {
	case 0:
		spec.IPFamilies, spec.ClusterIPs = []corev1.IPFamily{corev1.IPv6Protocol}, []string{"fd00::1"}
	case 1:
		spec.IPFamilies, spec.ClusterIPs = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}, []string{"fd00::1", "10.96.0.7"}
	case 2:
		spec.IPFamilies, spec.ClusterIPs = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, []string{"10.96.0.7", "fd00::1"}
	default:
		spec.IPFamilies, spec.ClusterIPs = []corev1.IPFamily{corev1.IPv4Protocol}, []string{"10.96.0.7"}
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	spec.PublishNotReadyAddresses = oneIn(r, 4)
	spec.Ports = randomServicePorts(r)
	expose(r, svc)
	switch r.IntN(40) {
	case 0:
		spec.ClusterIP, spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	case 1:
		spec.Type, spec.ClusterIP, spec.ClusterIPs, spec.ExternalName = corev1.ServiceTypeExternalName, "", nil, "example.com"
	case 2:
		svc.Labels = map[string]string{labelProxyName: pick(r, "", "other")}
	}
	return svc
}

// expose gives the Service what makes it reachable from outside, without which kube-proxy has nothing to do for it there.
func expose(r *rand.Rand, svc *corev1.Service) {
	spec := &svc.Spec
	nodePorts := spec.Type == corev1.ServiceTypeNodePort
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		nodePorts = !oneIn(r, 5) // allocateLoadBalancerNodePorts
		spec.AllocateLoadBalancerNodePorts = &nodePorts
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}, {IP: "2001:db8::7"}}
	}
	for i := range spec.Ports {
		if nodePorts {
			spec.Ports[i].NodePort = int32(30000 + i)
		}
	}
}

func randomServicePorts(r *rand.Rand) []corev1.ServicePort {
	if oneIn(r, 3) {
		return []corev1.ServicePort{{Port: 80, Protocol: pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP)}}
	}
	var ports []corev1.ServicePort
	for i, name := range []string{"http", "dns", "admin"}[:1+r.IntN(3)] {
		ports = append(ports, corev1.ServicePort{
			Name: name, Port: int32(80 + i), Protocol: pick(r, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
		})
	}
	return ports
}

func randomSlice(r *rand.Rand, name string) *discoveryv1.EndpointSlice {
	sl := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: sceneNamespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: sceneService},
		},
		AddressType: pick(r, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6),
		Ports:       randomSlicePorts(r),
	}
	switch r.IntN(40) {
	case 0:
		sl.Labels[discoveryv1.LabelServiceName] = "other"
	case 1:
		sl.Labels[corev1.IsHeadlessService] = ""
	case 2:
		sl.AddressType = discoveryv1.AddressTypeFQDN
	case 3:
		sl.Labels[labelProxyName] = "other"
	case 4:
		sl.Namespace = "other"
	}
	for range 1 + r.IntN(6) {
		sl.Endpoints = append(sl.Endpoints, randomEndpoint(r, sl.AddressType))
	}
	return sl
}

// randomSlicePorts usually offers what a Service of randomService may ask for, with one of two target ports.
func randomSlicePorts(r *rand.Rand) []discoveryv1.EndpointPort {
	var ports []discoveryv1.EndpointPort
	for _, name := range []string{"", "http", "dns", "admin"} {
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
			if oneIn(r, 8) {
				continue
			}
			number := pick[int32](r, 8080, 8080, 8080, 9090)
			port := discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
			switch r.IntN(60) {
			case 0:
				port.Name = nil
			case 1:
				port.Port = nil
			case 2:
				number = 0
			}
			ports = append(ports, port)
		}
	}
	return ports
}

// randomEndpoint takes its address from so few that copies of one are common, within a slice and across slices.
func randomEndpoint(r *rand.Rand, family discoveryv1.AddressType) discoveryv1.Endpoint {
	var address string
	switch family {
	case discoveryv1.AddressTypeIPv4:
		address = pick(r, "10.244.1.1", "10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5", "10.244.1.6", "10.244.1.7", "10.244.01.1")
	case discoveryv1.AddressTypeIPv6:
		address = pick(r, "fd00:244::1", "fd00:244::2", "fd00:244::3", "fd00:244:0::4", "fd00:244::5", "fd00:244::6", "FD00:244::1")
	default:
		address = "pod.example.com"
	}
	ep := discoveryv1.Endpoint{Addresses: []string{address}}
	switch r.IntN(40) {
	case 0:
		ep.Addresses = nil // the API refuses it, and kube-proxy passes over it
	case 1:
		ep.Addresses = append(ep.Addresses, "10.244.1.9") // kube-proxy reads the first alone
	}
	yes, no := true, false
	ep.Conditions = discoveryv1.EndpointConditions{
		Ready: pick(r, nil, &yes, &yes, &no), Serving: pick(r, nil, &yes, &yes, &no), Terminating: pick(r, nil, &yes, &no, &no),
	}
	if !oneIn(r, 6) {
		node := pick(r, sceneNodes[0], sceneNodes[0], sceneNodes[1], sceneNodes[1], sceneNodes[2], "")
		ep.NodeName = &node
	}
	if oneIn(r, 5) {
		ep.Hints = &discoveryv1.EndpointHints{
			ForZones: []discoveryv1.ForZone{{Name: "zone-a"}}, ForNodes: []discoveryv1.ForNode{{Name: sceneNodes[r.IntN(4)]}},
		}
	}
	if oneIn(r, 2) {
		ep.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: sceneNamespace, Name: "p", UID: "u"}
	}
	return ep
}

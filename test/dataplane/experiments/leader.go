package experiments

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/dataplane/balancers"
)

// annotationAddress asks MetalLB for an address.
const annotationAddress = "metallb.io/loadBalancerIPs"

// ask lets a Service that one node carries at a time have an address that is carried by the node to be drained while every
// node has an endpoint: with another, nothing would be seen of the drain. Each call takes another address.
func (s *scene) ask(svc *corev1.Service) error {
	first, last := s.lab.Balancers()
	for addr := last; addr != first.Prev(); addr = addr.Prev() {
		if !s.addresses[addr] && balancers.Leader(s.lab.Nodes, addr) == s.node {
			s.addresses[addr] = true
			metav1.SetMetaDataAnnotation(&svc.ObjectMeta, annotationAddress, addr.String())
			return nil
		}
	}
	return fmt.Errorf("no address between %s and %s is left that %s carries", first, last, s.node)
}

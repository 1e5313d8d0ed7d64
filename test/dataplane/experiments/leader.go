package experiments

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/dataplane"
)

// annotationAddress asks MetalLB for an address.
const annotationAddress = "metallb.io/loadBalancerIPs"

// ask lets a Service that one node carries at a time have an address that is carried by the node to be drained while every
// node has an endpoint: with another, nothing would be seen of the drain. Each call takes another address.
func (s *scene) ask(svc *corev1.Service) error {
	first, last := s.lab.Balancers()
	for addr := last; addr != first.Prev(); addr = addr.Prev() {
		if !s.addresses[addr] && leader(s.lab.Nodes, addr) == s.node {
			s.addresses[addr] = true
			metav1.SetMetaDataAnnotation(&svc.ObjectMeta, annotationAddress, addr.String())
			return nil
		}
	}
	return fmt.Errorf("no address between %s and %s is left that %s carries", first, last, s.node)
}

// leader is the node that MetalLB elects for an address: that with the lowest digest of both names.
func leader(nodes []*dataplane.Node, addr netip.Addr) string {
	var name string
	var lowest []byte
	for _, n := range nodes {
		sum := sha256.Sum256([]byte(n.Name + "#" + addr.String()))
		if lowest == nil || bytes.Compare(sum[:], lowest) < 0 {
			name, lowest = n.Name, sum[:]
		}
	}
	return name
}

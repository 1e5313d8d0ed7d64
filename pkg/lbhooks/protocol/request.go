// Package protocol is what the hooks exec and http say to whoever works a balancer for them, and what they are told: one
// versioned JSON document each way. docs/hooks/protocol.md is its reference.
package protocol

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Names of the documents.
const (
	APIVersion  = "safedrain.dev/v1alpha1"
	KindRequest = "HookRequest"
	KindAnswer  = "HookAnswer"
)

// Action is what is asked for.
type Action string

// The actions.
const (
	Withdraw Action = "withdraw" // take the node out of the Service's rotation
	Prove    Action = "prove"    // look whether it is out
	Restore  Action = "restore"  // put it back
)

// Request is one call: an action for one Service on one node.
type Request struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Action     Action `json:"action"`
	Hook       string `json:"hook"` // the name it is configured under
	// Run is the identity of the run; "" outside a run.
	Run string `json:"run,omitempty"`
	// Key is the same for every repetition of one withdrawal or restoration by one run, and of one observation.
	Key     string  `json:"key"`
	Node    Node    `json:"node"`
	Service Service `json:"service"`
}

// Node is the node that is to leave or to come back.
type Node struct {
	Name       string            `json:"name"`
	UID        types.UID         `json:"uid,omitempty"`
	ProviderID string            `json:"providerID,omitempty"`
	Addresses  []Address         `json:"addresses"` // as in the Node's status
	Labels     map[string]string `json:"labels,omitempty"`
}

// Address is one address of a node.
type Address struct {
	Type    string `json:"type"` // InternalIP, ExternalIP, Hostname, ...
	Address string `json:"address"`
}

// Service is the Service whose rotation it is about.
type Service struct {
	Namespace             string            `json:"namespace"`
	Name                  string            `json:"name"`
	UID                   types.UID         `json:"uid,omitempty"`
	Type                  string            `json:"type"`
	ExternalTrafficPolicy string            `json:"externalTrafficPolicy,omitempty"`
	LoadBalancerClass     string            `json:"loadBalancerClass,omitempty"`
	HealthCheckNodePort   int32             `json:"healthCheckNodePort,omitempty"`
	ClusterIPs            []string          `json:"clusterIPs,omitempty"`
	ExternalIPs           []string          `json:"externalIPs,omitempty"`
	Ingress               []string          `json:"ingress,omitempty"` // addresses and host names of its load balancer
	Ports                 []Port            `json:"ports"`
	Labels                map[string]string `json:"labels,omitempty"`
	Annotations           map[string]string `json:"annotations,omitempty"`
}

// Port is one port of the Service.
type Port struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"`
	Port     int32  `json:"port"`
	NodePort int32  `json:"nodePort,omitempty"`
}

// NewRequest describes an action on a target.
func NewRequest(hook string, action Action, t lbhooks.Target) *Request {
	r := &Request{
		APIVersion: APIVersion, Kind: KindRequest, Action: action, Hook: hook,
		Run: runOf(t.Node), Node: node(t.Node), Service: service(t.Service),
	}
	r.Key = r.key()
	return r
}

// runOf is the run that holds the claim on the node.
func runOf(n *corev1.Node) string {
	var claim struct {
		Run string `json:"run"`
	}
	if err := json.Unmarshal([]byte(n.Annotations[lbhooks.AnnotationDrain]), &claim); err != nil {
		return ""
	}
	return claim.Run
}

// key tells repetitions of one action by one run from anything new. Two observations are never repetitions: a receiver
// that answered the second from its memory of the first would never say that the node left.
func (r *Request) key() string {
	if r.Action == Prove || r.Run == "" {
		return rand.Text()
	}
	sum := sha256.Sum256([]byte(fmt.Sprintf("%s\n%s\n%s\n%s\n%s\n%s/%s\n%s",
		r.Hook, r.Run, r.Action, r.Node.Name, r.Node.UID, r.Service.Namespace, r.Service.Name, r.Service.UID)))
	return hex.EncodeToString(sum[:16])
}

func node(n *corev1.Node) Node {
	out := Node{Name: n.Name, UID: n.UID, ProviderID: n.Spec.ProviderID, Labels: n.Labels, Addresses: []Address{}}
	for _, a := range n.Status.Addresses {
		out.Addresses = append(out.Addresses, Address{Type: string(a.Type), Address: a.Address})
	}
	return out
}

func service(svc *corev1.Service) Service {
	out := Service{
		Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, Type: string(svc.Spec.Type),
		ExternalTrafficPolicy: string(svc.Spec.ExternalTrafficPolicy), HealthCheckNodePort: svc.Spec.HealthCheckNodePort,
		ClusterIPs: slices.Clone(svc.Spec.ClusterIPs), ExternalIPs: slices.Clone(svc.Spec.ExternalIPs),
		Labels: svc.Labels, Annotations: svc.Annotations, Ports: []Port{},
	}
	if svc.Spec.LoadBalancerClass != nil {
		out.LoadBalancerClass = *svc.Spec.LoadBalancerClass
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		for _, address := range []string{in.IP, in.Hostname} {
			if address != "" {
				out.Ingress = append(out.Ingress, address)
			}
		}
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		out.Ports = append(out.Ports, Port{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port, NodePort: p.NodePort})
	}
	return out
}

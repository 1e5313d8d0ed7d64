package drain

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func typed(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return p
}

func (s *apiServer) getNode(name string) (any, error) {
	n, ok := s.nodes[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	return typedNode(n), nil
}

func typedNode(n *corev1.Node) *corev1.Node {
	n = n.DeepCopy()
	n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	return n
}

func (s *apiServer) listNodes(q url.Values) (any, error) {
	state := s.nodes
	if q.Get("resourceVersionMatch") == "Exact" {
		rv, _ := strconv.Atoi(q.Get("resourceVersion"))
		for state = nil; state == nil && rv > 0; rv-- {
			state = s.history[rv]
		}
	}
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	list.ResourceVersion = strconv.Itoa(s.rv)
	for _, name := range slices.Sorted(maps.Keys(state)) {
		list.Items = append(list.Items, *state[name])
	}
	return list, nil
}

func (s *apiServer) patchNode(name string, body []byte, dryRun bool) (any, error) {
	n, ok := s.nodes[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	var change map[string]any
	if err := json.Unmarshal(body, &change); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if meta, ok := change["metadata"].(map[string]any); ok && meta["resourceVersion"] != nil && meta["resourceVersion"] != n.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, errors.New("stale"))
	}
	old, _ := json.Marshal(n)
	var doc map[string]any
	_ = json.Unmarshal(old, &doc)
	merged, _ := json.Marshal(mergeJSON(doc, change))
	next := &corev1.Node{}
	if err := json.Unmarshal(merged, next); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if !dryRun {
		s.commitNode(next)
	}
	return typedNode(next), nil
}

// mergeJSON is RFC 7396.
func mergeJSON(doc, patch map[string]any) map[string]any {
	if doc == nil {
		doc = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(doc, k)
		case map[string]any:
			child, _ := doc[k].(map[string]any)
			doc[k] = mergeJSON(child, v)
		default:
			doc[k] = v
		}
	}
	return doc
}

func (s *apiServer) listPods(q url.Values) corev1.PodList {
	node := strings.TrimPrefix(q.Get("fieldSelector"), "spec.nodeName=")
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	list.ResourceVersion = strconv.Itoa(s.rv)
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		if p := s.pods[name]; q.Get("fieldSelector") == "" || p.Spec.NodeName == node {
			list.Items = append(list.Items, *p.DeepCopy())
		}
	}
	return list
}

func (s *apiServer) listOther(kind string) (any, error) {
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(s.rv)}
	switch kind {
	case "services":
		l := corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: meta}
		for _, svc := range s.services {
			l.Items = append(l.Items, *svc)
		}
		return l, nil
	case "endpointslices":
		l := discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}, ListMeta: meta}
		for _, svc := range s.services {
			l.Items = append(l.Items, s.sliceOf(svc))
		}
		l.Items = append(l.Items, s.ownSlices()...)
		return l, nil
	case "poddisruptionbudgets":
		l := policyv1.PodDisruptionBudgetList{TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudgetList"}, ListMeta: meta}
		for _, b := range s.budgets {
			l.Items = append(l.Items, *b)
		}
		return l, nil
	case "networkpolicies":
		return networkingv1.NetworkPolicyList{
			TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicyList"}, ListMeta: meta, Items: s.held.policies,
		}, nil
	case "daemonsets":
		return appsv1.DaemonSetList{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSetList"}, ListMeta: meta, Items: s.daemons}, nil
	}
	return nil, fmt.Errorf("the test has no %s", kind)
}

// sliceOf is what the EndpointSlice controller makes of the pods. The lock is held.
func (s *apiServer) sliceOf(svc *corev1.Service) discoveryv1.EndpointSlice {
	port, name, protocol := int32(8080), "", corev1.ProtocolTCP
	slice := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: &port, Name: &name, Protocol: &protocol}},
	}
	for i, key := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[key]
		if p.Namespace != svc.Namespace || !labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels)) {
			continue
		}
		ready := p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		yes, gone, node := true, p.DeletionTimestamp != nil, p.Spec.NodeName
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{cmp.Or(p.Status.PodIP, fmt.Sprintf("10.0.%d.%d", i/250, i%250+1))}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &yes, Terminating: &gone},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		})
	}
	return slice
}

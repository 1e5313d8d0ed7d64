package drain

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// holdObjects is what the server has beyond a drain: slices that somebody wrote, ReplicaSets, NetworkPolicies.
type holdObjects struct {
	slices   map[string]*discoveryv1.EndpointSlice // by namespace/name
	sets     map[string]*appsv1.ReplicaSet
	policies []networkingv1.NetworkPolicy
	denied   map[string]bool // "verb resource" that the access review says no to
	patched  func(*corev1.Pod)
	log      []string // "slice+ name", "slice- name", "label pod", "unlabel pod" in order
}

var sliceResource = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}

// patchPod is a merge patch of metadata. The lock is held.
func (s *apiServer) patchPod(name string, body []byte) (any, error) {
	p := s.pods[name]
	if p == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	var change map[string]any
	if err := json.Unmarshal(body, &change); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	meta := change["metadata"].(map[string]any)
	if meta["uid"] != string(p.UID) || meta["resourceVersion"] != p.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, errors.New("stale"))
	}
	old, _ := json.Marshal(p)
	var doc map[string]any
	_ = json.Unmarshal(old, &doc)
	merged, _ := json.Marshal(mergeJSON(doc, change))
	next := &corev1.Pod{}
	if err := json.Unmarshal(merged, next); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	next.ResourceVersion = s.next()
	s.pods[name] = next
	s.notify("MODIFIED", next)
	if next.Annotations["safedrain.dev/held"] != "" {
		s.held.log = append(s.held.log, "label "+next.Name)
	} else {
		s.held.log = append(s.held.log, "unlabel "+next.Name)
	}
	if s.held.patched != nil {
		go s.held.patched(next.DeepCopy())
	}
	return typed(next), nil
}

// holdRequest carries out what only a hold asks for. The lock is held.
func (s *apiServer) holdRequest(kind, name string, c call, q url.Values, body []byte) (any, error) {
	switch kind {
	case "endpointslices":
		return s.sliceRequest(name, c, q, body)
	case "replicasets":
		if set := s.held.sets[name]; set != nil {
			return set, nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "replicasets"}, name)
	case "selfsubjectaccessreviews":
		var r authorizationv1.SelfSubjectAccessReview
		_ = json.Unmarshal(body, &r)
		a := r.Spec.ResourceAttributes
		r.Status.Allowed = !s.held.denied[a.Verb+" "+a.Resource]
		r.TypeMeta = metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
		return r, nil
	}
	return s.listOther(kind)
}

func (s *apiServer) sliceRequest(name string, c call, q url.Values, body []byte) (any, error) {
	switch c.verb {
	case "create", "update":
		obj := &discoveryv1.EndpointSlice{}
		if err := json.Unmarshal(body, obj); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		name = obj.Namespace + "/" + obj.Name
		have := s.held.slices[name]
		switch {
		case c.verb == "create" && have != nil:
			return nil, apierrors.NewAlreadyExists(sliceResource, name)
		case c.verb == "update" && have == nil:
			return nil, apierrors.NewNotFound(sliceResource, name)
		case c.verb == "update" && obj.ResourceVersion != have.ResourceVersion:
			return nil, apierrors.NewConflict(sliceResource, name, errors.New("stale"))
		}
		obj.ResourceVersion = s.next()
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
		if s.held.slices == nil {
			s.held.slices = map[string]*discoveryv1.EndpointSlice{}
		}
		s.held.slices[name] = obj
		if c.verb == "create" {
			s.held.log = append(s.held.log, "slice+ "+obj.OwnerReferences[0].Name)
		}
		return obj, nil
	case "get":
		if have := s.held.slices[name]; have != nil {
			return have, nil
		}
		return nil, apierrors.NewNotFound(sliceResource, name)
	case "delete":
		have := s.held.slices[name]
		if have == nil {
			return nil, apierrors.NewNotFound(sliceResource, name)
		}
		delete(s.held.slices, name)
		s.held.log = append(s.held.log, "slice- "+have.OwnerReferences[0].Name)
		return metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}, nil
	}
	selector, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	all, err := s.listOther("endpointslices")
	if err != nil {
		return nil, err
	}
	l := all.(discoveryv1.EndpointSliceList)
	l.Items = slices.DeleteFunc(l.Items, func(e discoveryv1.EndpointSlice) bool {
		return !selector.Matches(labels.Set(e.Labels)) || c.namespace != "" && e.Namespace != c.namespace
	})
	return l, nil
}

// ownSlices are those that somebody wrote. The lock is held.
func (s *apiServer) ownSlices() []discoveryv1.EndpointSlice {
	var out []discoveryv1.EndpointSlice
	for _, name := range slices.Sorted(maps.Keys(s.held.slices)) {
		out = append(out, *s.held.slices[name].DeepCopy())
	}
	return out
}

// collect removes the slices that a pod owns, as the garbage collector does. The lock is held.
func (s *apiServer) collect(p *corev1.Pod) {
	for name, e := range s.held.slices {
		if slices.ContainsFunc(e.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == p.UID }) {
			delete(s.held.slices, name)
			s.held.log = append(s.held.log, "slice- "+p.Name)
		}
	}
}

// replicaSet adds a ReplicaSet of namespace web that selects these labels; the pods of the world are owned by "rs".
func (s *apiServer) replicaSet(name string, selector map[string]string) {
	if s.held.sets == nil {
		s.held.sets = map[string]*appsv1.ReplicaSet{}
	}
	s.held.sets["web/"+name] = &appsv1.ReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, UID: "rs"},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: selector}},
	}
}

func (s *apiServer) holdLog() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.held.log)
}

func (s *apiServer) holdSlices() []discoveryv1.EndpointSlice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ownSlices()
}

// setPod changes a pod as somebody else would.
func (s *apiServer) setPod(name string, change func(*corev1.Pod)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[name]
	if p == nil {
		panic(fmt.Sprintf("no pod %s", name))
	}
	p = p.DeepCopy()
	change(p)
	p.ResourceVersion = s.next()
	s.pods[name] = p
	s.notify("MODIFIED", p)
}

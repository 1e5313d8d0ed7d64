package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Server is an API server that answers LISTs, in pages, and discovery. It counts what it is asked.
type Server struct {
	*httptest.Server

	mu        sync.Mutex
	objects   map[string][]map[string]any // by path
	served    []apidiscoveryv2.APIGroupDiscovery
	requests  []string
	forbidden map[string]string // path to user
	expire    map[string]int    // path to how many further pages are to expire
	plain     bool              // discovery is not aggregated
}

// NewServer starts a server. Close it when done.
func NewServer() *Server {
	s := &Server{objects: map[string][]map[string]any{}, forbidden: map[string]string{}, expire: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.handle))
	return s
}

// Serve lets the server answer LISTs of the path, such as /api/v1/nodes, with these objects.
func (s *Server) Serve(path string, objects ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		raw, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("encode an object of %s: %w", path, err)
		}
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			return fmt.Errorf("decode an object of %s: %w", path, err)
		}
		s.objects[path] = append(s.objects[path], m)
	}
	return nil
}

// ServeCluster serves the objects of a generated cluster.
func (s *Server) ServeCluster(c *Cluster) error {
	paths := map[string]string{
		"Node": "/api/v1/nodes", "Service": "/api/v1/services", "Pod": "/api/v1/pods",
		"EndpointSlice": "/apis/discovery.k8s.io/v1/endpointslices", "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
	}
	for _, o := range c.Objects() {
		if err := s.Serve(paths[o.GetObjectKind().GroupVersionKind().Kind], o); err != nil {
			return err
		}
	}
	return nil
}

// ServeKind announces a custom kind and serves its objects.
func (s *Server) ServeKind(gvk metav1.GroupVersionKind, resource string, objects ...any) error {
	s.mu.Lock()
	s.served = append(s.served, apidiscoveryv2.APIGroupDiscovery{
		ObjectMeta: metav1.ObjectMeta{Name: gvk.Group},
		Versions: []apidiscoveryv2.APIVersionDiscovery{{Version: gvk.Version, Resources: []apidiscoveryv2.APIResourceDiscovery{
			{Resource: resource, ResponseKind: &gvk, Scope: apidiscoveryv2.ScopeNamespace, Verbs: []string{"list"}},
		}}},
	})
	s.mu.Unlock()
	return s.Serve("/apis/"+gvk.Group+"/"+gvk.Version+"/"+resource, objects...)
}

// Forbid lets LISTs of the path be denied to the user of that name.
func (s *Server) Forbid(path, user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forbidden[path] = user
}

// Plain lets discovery be answered as servers do that do not aggregate it.
func (s *Server) Plain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain = true
}

// resources answers discovery that is not aggregated; false when the path is another.
func (s *Server) resources(w http.ResponseWriter, path string) bool {
	if path == "/apis" {
		w.Header().Set("Content-Type", "application/json")
		write(w, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}})
		return true
	}
	parts := strings.Split(path, "/")
	if len(parts) != 4 || parts[1] != "apis" {
		return false
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
	for _, g := range s.served {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				if g.Name == parts[2] && v.Version == parts[3] {
					list.APIResources = append(list.APIResources, metav1.APIResource{Name: r.Resource, Kind: r.ResponseKind.Kind})
				}
			}
		}
	}
	if len(list.APIResources) == 0 {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	write(w, list)
	return true
}

// Expire lets the next n further pages of the path be answered 410.
func (s *Server) Expire(path string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire[path] = n
}

// Requests returns "METHOD path" of every request so far, further pages marked with " +", sorted; and forgets them.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.requests
	s.requests = nil
	slices.Sort(out)
	return out
}

func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	query := r.URL.Query()
	entry := r.Method + " " + r.URL.Path
	if query.Get("continue") != "" {
		entry += " +"
	}
	s.requests = append(s.requests, entry)
	objects := s.objects[r.URL.Path]
	switch user, denied := s.forbidden[r.URL.Path]; {
	case denied:
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("User %q cannot list resource at the cluster scope", user))
	case s.plain && s.resources(w, r.URL.Path):
	case r.URL.Path == "/apis":
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		write(w, apidiscoveryv2.APIGroupDiscoveryList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}, Items: s.served,
		})
	case query.Get("continue") != "" && s.expire[r.URL.Path] > 0:
		s.expire[r.URL.Path]--
		fail(w, http.StatusGone, metav1.StatusReasonExpired, "The provided continue parameter is too old")
	default:
		s.list(w, r, objects)
	}
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, objects []map[string]any) {
	query := r.URL.Query()
	kept := objects[:0:0]
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	node, byNode := strings.CutPrefix(query.Get("fieldSelector"), "spec.nodeName=")
	for _, o := range objects {
		if (!byNode || nested(o, "spec", "nodeName") == node) && selector.Matches(labelsOf(o)) {
			kept = append(kept, o)
		}
	}
	from, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	meta := map[string]any{"resourceVersion": "7"}
	from = min(from, len(kept))
	kept = kept[from:]
	if limit > 0 && len(kept) > limit {
		kept = kept[:limit]
		meta["continue"] = strconv.Itoa(from + limit)
	}
	w.Header().Set("Content-Type", "application/json")
	kind, version := listKind(r.URL.Path)
	write(w, map[string]any{"kind": kind, "apiVersion": version, "metadata": meta, "items": kept})
}

// listKind returns the kind and apiVersion of the list at a path.
func listKind(path string) (kind, version string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	resource := parts[len(parts)-1]
	if i := slices.Index(parts, "namespaces"); i > 0 && i+1 < len(parts) {
		parts = append(parts[:i:i], resource)
	}
	version = strings.Join(parts[1:len(parts)-1], "/")
	kinds := map[string]string{
		"nodes": "NodeList", "services": "ServiceList", "pods": "PodList", "endpointslices": "EndpointSliceList",
		"poddisruptionbudgets": "PodDisruptionBudgetList", "daemonsets": "DaemonSetList",
		"deployments": "DeploymentList", "statefulsets": "StatefulSetList", "namespaces": "NamespaceList", "horizontalpodautoscalers": "HorizontalPodAutoscalerList",
		"persistentvolumeclaims": "PersistentVolumeClaimList", "persistentvolumes": "PersistentVolumeList",
		"storageclasses": "StorageClassList", "csinodes": "CSINodeList", "csidrivers": "CSIDriverList",
		"volumeattachments": "VolumeAttachmentList", "csistoragecapacities": "CSIStorageCapacityList",
	}
	if kind, ok := kinds[resource]; ok {
		return kind, version
	}
	return "UnknownList", version
}

func nested(o map[string]any, outer, inner string) string {
	m, _ := o[outer].(map[string]any)
	v, _ := m[inner].(string)
	return v
}

func labelsOf(o map[string]any) labels.Set {
	m, _ := o["metadata"].(map[string]any)
	set := labels.Set{}
	l, _ := m["labels"].(map[string]any)
	for k, v := range l {
		set[k], _ = v.(string)
	}
	return set
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	write(w, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Message: message, Reason: reason, Code: int32(code), //nolint:gosec // an HTTP status
	})
}

// write encodes the answer; a client that went away is no matter of the server's.
func write(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

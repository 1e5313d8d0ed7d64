package cluster

import (
	"bytes"
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
)

// maxListDepth is how deep Lists may be nested in Lists.
const maxListDepth = 8

// reader collects the objects of files.
type reader struct {
	objects map[objectKey]*entry
	others  map[string]int
	kinds   map[schema.GroupKind]bool // seen, be it as an empty typed list
	in      interner
	seed    maphash.Seed
	left    int64 // bytes that may still be read
}

// objectKey names an object of any kind.
type objectKey struct {
	gk              schema.GroupKind
	namespace, name string
}

// entry is an object that was read, and what tells its copies apart.
type entry struct {
	object  any
	version string
	sum     uint64
}

func newReader() *reader {
	return &reader{
		objects: map[objectKey]*entry{}, others: map[string]int{}, kinds: map[schema.GroupKind]bool{},
		in: interner{}, seed: maphash.MakeSeed(), left: MaxInput,
	}
}

// head is what every object has.
type head struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Metadata   headMeta           `json:"metadata"`
	Items      stdjson.RawMessage `json:"items"`
}

type headMeta struct {
	Namespace       string `json:"namespace"`
	Name            string `json:"name"`
	ResourceVersion string `json:"resourceVersion"`
}

// document takes in all objects of a document.
func (r *reader) document(ctx context.Context, doc document) error {
	return doc.values(func(json []byte) error { return r.value(ctx, json, schema.GroupVersionKind{}, 0) })
}

// value takes in an object or a List; of is the kind of an item that does not name its own, which typed lists leave out.
func (r *reader) value(ctx context.Context, json []byte, of schema.GroupVersionKind, depth int) error {
	if string(bytes.TrimSpace(json)) == "null" {
		return errors.New("null where an object is expected")
	}
	var h head
	if err := decodeStrict(json, &h); err != nil {
		return fmt.Errorf("not a Kubernetes object: %w", err)
	}
	gvk := of
	if h.Kind != "" {
		gv, err := schema.ParseGroupVersion(h.APIVersion)
		if err != nil || gv.Version == "" {
			return fmt.Errorf("%s: apiVersion %q is not valid", h.Kind, h.APIVersion)
		}
		gvk = gv.WithKind(h.Kind)
	}
	switch {
	case gvk.Kind == "":
		return errors.New("not a Kubernetes object: it has no kind")
	case strings.HasSuffix(gvk.Kind, "List") && bytes.HasPrefix(bytes.TrimSpace(h.Items), []byte("[")),
		gvk.Kind == "List":
		return r.list(ctx, h.Items, gvk, depth)
	default:
		return r.object(json, h, gvk)
	}
}

// list takes in the items of a List or of a typed list such as PodList.
func (r *reader) list(ctx context.Context, raw stdjson.RawMessage, gvk schema.GroupVersionKind, depth int) error {
	if depth >= maxListDepth {
		return fmt.Errorf("lists nested more than %d deep", maxListDepth)
	}
	var items []stdjson.RawMessage
	if len(raw) == 0 || string(raw) == "null" {
		raw = []byte("[]")
	}
	if err := decodeStrict(raw, &items); err != nil {
		return fmt.Errorf("%s: items: %w", gvk.Kind, err)
	}
	var of schema.GroupVersionKind
	if gvk.Kind != "List" {
		of = gvk.GroupVersion().WithKind(strings.TrimSuffix(gvk.Kind, "List"))
		r.kinds[of.GroupKind()] = true
	}
	for i, item := range items {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.value(ctx, item, of, depth+1); err != nil {
			return fmt.Errorf("items[%d]: %w", i, err)
		}
	}
	return nil
}

// object takes in one object.
func (r *reader) object(json []byte, h head, gvk schema.GroupVersionKind) error {
	gk := gvk.GroupKind()
	read, known := decoders[gk]
	switch {
	case known && gvk.Version != "v1" && gk != kindAutoscaler:
		return fmt.Errorf("%s: version %s is not read, only v1: dump with a newer kubectl", gvk.Kind, gvk.GroupVersion())
	case !known && builtIn(gk.Group) && gk != kindLease:
		r.others[gvk.Kind]++
		return nil
	case !known:
		read = decodeCustom
	}
	if h.Metadata.Name == "" {
		return fmt.Errorf("%s has no metadata.name", gvk.Kind)
	}
	object, err := read(json, r.in)
	if err != nil {
		return objectError(gvk.Kind, h.Metadata.Namespace, h.Metadata.Name, err)
	}
	r.kinds[gk] = true
	key := objectKey{gk, h.Metadata.Namespace, h.Metadata.Name}
	if known {
		at := metav1.ObjectMeta{Namespace: key.namespace}
		place(&at, !clusterScoped[gk.Kind])
		key.namespace = at.Namespace
	}
	fresh := &entry{object, h.Metadata.ResourceVersion, maphash.Bytes(r.seed, json)}
	old, again := r.objects[key]
	if !again {
		r.objects[key] = fresh
		return nil
	}
	newer, err := fresh.newer(old)
	if err != nil {
		return objectError(gvk.Kind, key.namespace, key.name, err)
	}
	if newer {
		r.objects[key] = fresh
	}
	return nil
}

// newer reports whether e replaces an older copy of the same object.
func (e *entry) newer(old *entry) (bool, error) {
	if e.sum == old.sum || (e.version != "" && e.version == old.version) {
		return false, nil
	}
	a, errA := strconv.ParseUint(e.version, 10, 64)
	b, errB := strconv.ParseUint(old.version, 10, 64)
	if errA != nil || errB != nil {
		return false, errors.New("is there twice with different content, and no resourceVersion tells which is newer")
	}
	return a > b, nil
}

// objectError names the object that an error is about.
func objectError(kind, namespace, name string, err error) error {
	if namespace != "" {
		name = namespace + "/" + name
	}
	return fmt.Errorf("%s %s: %w", kind, name, err)
}

// decodeStrict decodes JSON as the API server does, and takes a duplicate key for an error.
func decodeStrict(json []byte, into any) error {
	duplicates, err := kjson.UnmarshalStrict(json, into, kjson.DisallowDuplicateFields)
	if err != nil {
		return err
	}
	return errors.Join(duplicates...)
}

// clusterScoped are the kinds of decoders that have no namespace.
var clusterScoped = map[string]bool{
	"Node": true, "Namespace": true, "PersistentVolume": true, "StorageClass": true, "CSINode": true, "CSIDriver": true, "VolumeAttachment": true,
}

// kindAutoscaler is read in any version: what the rules read of it is the same in all.
var kindAutoscaler = schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}

// decoders are the kinds that the rules read, all others of version v1.
var decoders = map[schema.GroupKind]func([]byte, interner) (any, error){
	{Kind: "Node"}:    typed(func(n *corev1.Node) *metav1.ObjectMeta { return &n.ObjectMeta }, trimNode, false),
	{Kind: "Service"}: typed(func(s *corev1.Service) *metav1.ObjectMeta { return &s.ObjectMeta }, trimService, true),
	{Kind: "Pod"}:     typed(func(p *corev1.Pod) *metav1.ObjectMeta { return &p.ObjectMeta }, trimPod, true),
	{Group: "policy", Kind: "PodDisruptionBudget"}: typed(
		func(b *policyv1.PodDisruptionBudget) *metav1.ObjectMeta { return &b.ObjectMeta }, trimBudget, true),
	{Group: "apps", Kind: "DaemonSet"}: typed(
		func(d *appsv1.DaemonSet) *metav1.ObjectMeta { return &d.ObjectMeta }, trimDaemonSet, true),
	{Group: "apps", Kind: "Deployment"}: typed(
		func(d *appsv1.Deployment) *metav1.ObjectMeta { return &d.ObjectMeta }, trimDeployment, true),
	{Group: "apps", Kind: "StatefulSet"}: typed(
		func(d *appsv1.StatefulSet) *metav1.ObjectMeta { return &d.ObjectMeta }, trimStatefulSet, true),
	{Group: "apps", Kind: "ReplicaSet"}: typed(
		func(r *appsv1.ReplicaSet) *metav1.ObjectMeta { return &r.ObjectMeta }, trimReplicaSet, true),
	kindAutoscaler: typed(func(a *autoscalingv2.HorizontalPodAutoscaler) *metav1.ObjectMeta { return &a.ObjectMeta }, trimAutoscaler, true),
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"}: typed(
		func(p *networkingv1.NetworkPolicy) *metav1.ObjectMeta { return &p.ObjectMeta }, trimPolicy, true),
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"}: decodeSlice,
	{Kind: "Namespace"}: typed(func(n *corev1.Namespace) *metav1.ObjectMeta { return &n.ObjectMeta }, trimNamespace, false),
	{Kind: "PersistentVolumeClaim"}: typed(
		func(c *corev1.PersistentVolumeClaim) *metav1.ObjectMeta { return &c.ObjectMeta }, trimClaim, true),
	{Kind: "PersistentVolume"}: typed(
		func(v *corev1.PersistentVolume) *metav1.ObjectMeta { return &v.ObjectMeta }, trimVolumeObject, false),
	{Group: "storage.k8s.io", Kind: "StorageClass"}: typed(
		func(c *storagev1.StorageClass) *metav1.ObjectMeta { return &c.ObjectMeta }, trimAny[storagev1.StorageClass], false),
	{Group: "storage.k8s.io", Kind: "CSINode"}: typed(
		func(n *storagev1.CSINode) *metav1.ObjectMeta { return &n.ObjectMeta }, trimAny[storagev1.CSINode], false),
	{Group: "storage.k8s.io", Kind: "CSIDriver"}: typed(
		func(d *storagev1.CSIDriver) *metav1.ObjectMeta { return &d.ObjectMeta }, trimAny[storagev1.CSIDriver], false),
	{Group: "storage.k8s.io", Kind: "VolumeAttachment"}: typed(
		func(a *storagev1.VolumeAttachment) *metav1.ObjectMeta { return &a.ObjectMeta }, trimAny[storagev1.VolumeAttachment], false),
	{Group: "storage.k8s.io", Kind: "CSIStorageCapacity"}: typed(
		func(c *storagev1.CSIStorageCapacity) *metav1.ObjectMeta { return &c.ObjectMeta }, trimAny[storagev1.CSIStorageCapacity], true),
}

// typed returns a decoder of one kind that trims what it decoded.
func typed[T any](meta func(*T) *metav1.ObjectMeta, trim func(*T, interner) *T, namespaced bool) func([]byte, interner) (any, error) {
	return func(json []byte, in interner) (any, error) {
		object := new(T)
		if err := decodeStrict(json, object); err != nil {
			return nil, err
		}
		place(meta(object), namespaced)
		return trim(object, in), nil
	}
}

// place gives an object of a manifest without a namespace the one that kubectl would.
func place(m *metav1.ObjectMeta, namespaced bool) {
	switch {
	case !namespaced:
		m.Namespace = ""
	case m.Namespace == "":
		m.Namespace = metav1.NamespaceDefault
	}
}

func decodeSlice(json []byte, in interner) (any, error) {
	var s discoveryv1.EndpointSlice
	if err := decodeStrict(json, &s); err != nil {
		return nil, err
	}
	place(&s.ObjectMeta, true)
	return compactSlice(&s, in)
}

func decodeCustom(json []byte, _ interner) (any, error) {
	var object map[string]any
	if err := decodeStrict(json, &object); err != nil {
		return nil, err
	}
	return trimCustom(&unstructured.Unstructured{Object: object}), nil
}

package cluster

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// The permissions that placement alone needs; without them nothing is said of the pods concerned.
var (
	listNamespaces  = Verb{Verb: "list", Resource: "namespaces", Why: "without it pod affinity between namespaces is not judged"}
	listClaims      = Verb{Verb: "list", Resource: "persistentvolumeclaims", Why: "without it pods with volumes are not placed"}
	listVolumes     = Verb{Verb: "list", Resource: "persistentvolumes", Why: "without it pods with volumes are not placed"}
	listClasses     = Verb{Verb: "list", Resource: "storageclasses", Group: "storage.k8s.io", Why: "without it pods with volumes are not placed"}
	listCSINodes    = Verb{Verb: "list", Resource: "csinodes", Group: "storage.k8s.io", Why: "without it pods with volumes are not placed"}
	listDrivers     = Verb{Verb: "list", Resource: "csidrivers", Group: "storage.k8s.io", Why: "without it pods with volumes are not placed"}
	listAttachments = Verb{Verb: "list", Resource: "volumeattachments", Group: "storage.k8s.io", Why: "without it pods with volumes are not placed"}
	listCapacities  = Verb{Verb: "list", Resource: "csistoragecapacities", Group: "storage.k8s.io", Why: "without it pods with volumes are not placed"}
)

// around reads what the constraints of the pods in question are about: the pods that they select, the labels of the
// namespaces, and where volumes are.
func (p *placing) around(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	selections := placement.Selections(p.question)
	if p.scope.AllPods { // they are at hand
		selections = nil
	}
	for _, sel := range selections {
		if sel.Everything() {
			p.note = "every pod of the cluster was listed: " + sel.Of + " keeps to or from pods of any kind"
			group.Go(func() error { return p.everything(gctx) })
			continue
		}
		group.Go(func() error { return p.list(gctx, sel.Namespace, metav1.ListOptions{LabelSelector: sel.Labels}) })
	}
	var found places
	group.Go(func() error { return p.namespaces(gctx, &found) })
	volumes := slices.ContainsFunc(p.question, placement.HasClaims)
	var complete bool
	if volumes {
		group.Go(func() (err error) { complete, err = p.volumes(gctx, &found); return err })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	p.cluster.Namespaces = found.spaces()
	switch {
	case !volumes:
		p.cluster.Volumes = found.volumesOf() // none is asked for
	case complete:
		p.cluster.Volumes = found.volumesOf()
	}
	return nil
}

// namespaces lists the labels of namespaces.
func (p *placing) namespaces(ctx context.Context, into *places) error {
	in := interner{}
	return p.pages(ctx, listNamespaces, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := p.clients.Kubernetes.CoreV1().Namespaces().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			into.namespaces = append(into.namespaces, trimNamespace(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { into.namespaces = nil })
}

// volumes reads where volumes are; false when a permission is missing. Claims are read in the namespaces of the pods in
// question: what other pods have attached is told by the attachments.
func (p *placing) volumes(ctx context.Context, into *places) (bool, error) {
	before := p.denials()
	for _, list := range []func(context.Context, *places) error{p.claims, p.persistentVolumes, p.classes, p.csi} {
		if err := list(ctx, into); err != nil {
			return false, err
		}
	}
	return p.denials() == before, nil
}

// denials is how many permissions were found missing.
func (p *placing) denials() int {
	p.loader.mu.Lock()
	defer p.loader.mu.Unlock()
	n := 0
	for _, v := range p.into.missing {
		if v.Why == listClaims.Why {
			n++
		}
	}
	return n
}

func (p *placing) claims(ctx context.Context, into *places) error {
	in := interner{}
	spaces := map[string]bool{}
	for _, pod := range p.question {
		if placement.HasClaims(pod) {
			spaces[pod.Namespace] = true
		}
	}
	for _, namespace := range sortedSet(spaces) {
		start := len(into.claims)
		err := p.pages(ctx, listClaims, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
			page, err := p.clients.Kubernetes.CoreV1().PersistentVolumeClaims(namespace).List(ctx, o)
			if err != nil {
				return "", err
			}
			for i := range page.Items {
				into.claims = append(into.claims, trimClaim(&page.Items[i], in))
			}
			return page.Continue, nil
		}, func() { into.claims = into.claims[:start] })
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *placing) persistentVolumes(ctx context.Context, into *places) error {
	in := interner{}
	return p.pages(ctx, listVolumes, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := p.clients.Kubernetes.CoreV1().PersistentVolumes().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			into.volumes = append(into.volumes, trimVolumeObject(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { into.volumes = nil })
}

func (p *placing) classes(ctx context.Context, into *places) error {
	return p.pages(ctx, listClasses, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := p.clients.Kubernetes.StorageV1().StorageClasses().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			into.classes = append(into.classes, &page.Items[i])
		}
		return page.Continue, nil
	}, func() { into.classes = nil })
}

// csi reads what CSI drivers say: how many volumes they attach to a node, and where they have room.
func (p *placing) csi(ctx context.Context, into *places) error {
	storage := p.clients.Kubernetes.StorageV1()
	err := p.pages(ctx, listCSINodes, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := storage.CSINodes().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			page.Items[i].ManagedFields = nil
			into.csiNodes = append(into.csiNodes, &page.Items[i])
		}
		return page.Continue, nil
	}, func() { into.csiNodes = nil })
	if err != nil {
		return err
	}
	err = p.pages(ctx, listAttachments, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := storage.VolumeAttachments().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			into.attachments = append(into.attachments, &storagev1.VolumeAttachment{Spec: page.Items[i].Spec})
		}
		return page.Continue, nil
	}, func() { into.attachments = nil })
	if err != nil {
		return err
	}
	return p.drivers(ctx, into)
}

func (p *placing) drivers(ctx context.Context, into *places) error {
	storage := p.clients.Kubernetes.StorageV1()
	tracked := false
	err := p.pages(ctx, listDrivers, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := storage.CSIDrivers().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			d := &page.Items[i]
			tracked = tracked || d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity
			into.drivers = append(into.drivers, d)
		}
		return page.Continue, nil
	}, func() { into.drivers = nil })
	if err != nil || !tracked || !p.waiting(into) {
		return err
	}
	return p.pages(ctx, listCapacities, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := storage.CSIStorageCapacities("").List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			into.capacities = append(into.capacities, &page.Items[i])
		}
		return page.Continue, nil
	}, func() { into.capacities = nil })
}

// waiting reports whether a volume is yet to be made for a pod in question.
func (p *placing) waiting(in *places) bool {
	ephemeral := func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Ephemeral != nil })
	}
	return slices.ContainsFunc(p.question, ephemeral) ||
		slices.ContainsFunc(in.claims, func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" })
}

package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// The permissions that the rules themselves need.
var (
	listNodes        = Verb{Verb: "list", Resource: "nodes", Needed: true, Why: "which nodes stay"}
	listServices     = Verb{Verb: "list", Resource: "services", Needed: true, Why: "which Services are Local"}
	listSlices       = Verb{Verb: "list", Resource: "endpointslices", Group: "discovery.k8s.io", Needed: true, Why: "where endpoints are"}
	listPods         = Verb{Verb: "list", Resource: "pods", Needed: true, Why: "what runs on the node"}
	listBudgets      = Verb{Verb: "list", Resource: "poddisruptionbudgets", Group: "policy", Needed: true, Why: "what may be evicted"}
	listDaemonSets   = Verb{Verb: "list", Resource: "daemonsets", Group: "apps", Why: "without it a pod is not found to have lost its DaemonSet"}
	listDeployments  = Verb{Verb: "list", Resource: "deployments", Group: "apps", Why: "without it placement is not audited"}
	listStatefulSets = Verb{Verb: "list", Resource: "statefulsets", Group: "apps", Why: "without it placement is not audited"}
	listAutoscalers  = Verb{Verb: "list", Resource: "horizontalpodautoscalers", Group: "autoscaling", Why: "without it their bounds are not audited"}
)

// kinds returns the LISTs that the rules need, the largest first.
func (l *loader) kinds() []func(context.Context) error {
	lists := []func(context.Context) error{l.slices, l.services, l.nodes}
	if l.scope.Namespace == "" {
		lists = append(lists, l.budgets)
	}
	if l.remembered == nil {
		lists = append(lists, l.daemonSets)
	}
	switch {
	case l.scope.AllPods:
		lists = append(lists, func(ctx context.Context) error { return l.pods(ctx, "") })
	default:
		for _, node := range uniqueSorted(l.scope.Nodes) {
			lists = append(lists, func(ctx context.Context) error { return l.pods(ctx, node) })
		}
	}
	if l.scope.Workloads {
		lists = append(lists, l.deployments, l.statefulSets, l.autoscalers)
	}
	return lists
}

func (l *loader) nodes(ctx context.Context) error {
	in, kept := interner{}, &l.into.nodes
	return l.pages(ctx, listNodes, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			*kept = append(*kept, trimNode(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { *kept = nil })
}

func (l *loader) services(ctx context.Context) error {
	in, kept := interner{}, &l.into.services
	return l.pages(ctx, listServices, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.CoreV1().Services(l.scope.Namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			*kept = append(*kept, trimService(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { *kept = nil })
}

func (l *loader) slices(ctx context.Context) error {
	in := interner{}
	return l.pages(ctx, listSlices, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.DiscoveryV1().EndpointSlices(l.scope.Namespace).List(ctx, o)
		if err != nil {
			return "", err
		}
		l.into.sliceCount += len(page.Items)
		for i := range page.Items {
			s := &page.Items[i]
			kept, err := compactSlice(s, in)
			if err != nil {
				return "", objectError("EndpointSlice", s.Namespace, s.Name, err)
			}
			if kept != nil {
				l.into.slices = append(l.into.slices, kept)
			}
		}
		return page.Continue, nil
	}, func() { l.into.slices, l.into.sliceCount = nil, 0 })
}

func (l *loader) budgets(ctx context.Context) error {
	in, kept := interner{}, &l.into.budgets
	return l.pages(ctx, listBudgets, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.PolicyV1().PodDisruptionBudgets("").List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			*kept = append(*kept, trimBudget(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { *kept = nil })
}

func (l *loader) daemonSets(ctx context.Context) error {
	in, kept := interner{}, &l.into.daemonSets
	missing := false
	err := l.pages(ctx, listDaemonSets, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.AppsV1().DaemonSets("").List(ctx, o)
		if err != nil {
			missing = true
			return "", err
		}
		missing = false
		for i := range page.Items {
			*kept = append(*kept, trimDaemonSet(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { *kept = nil })
	l.into.knowsDaemons = !missing
	if err == nil && !missing {
		l.clients.rememberDaemonSets(*kept)
	}
	return err
}

func (l *loader) deployments(ctx context.Context) error {
	in, kept := interner{}, &l.into.deployments
	return l.pages(ctx, listDeployments, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.AppsV1().Deployments("").List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			*kept = append(*kept, trimDeployment(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { *kept = nil })
}

func (l *loader) statefulSets(ctx context.Context) error {
	in, kept := interner{}, &l.into.statefulSets
	return l.pages(ctx, listStatefulSets, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.AppsV1().StatefulSets("").List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			*kept = append(*kept, trimStatefulSet(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { *kept = nil })
}

func (l *loader) autoscalers(ctx context.Context) error {
	in, kept := interner{}, &l.into.autoscalers
	return l.pages(ctx, listAutoscalers, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.AutoscalingV2().HorizontalPodAutoscalers("").List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			*kept = append(*kept, trimAutoscaler(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { *kept = nil })
}

// pods lists the pods of a node, or all with "".
func (l *loader) pods(ctx context.Context, node string) error {
	opts := metav1.ListOptions{}
	if node != "" {
		opts.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	kept, err := l.podPages(ctx, listPods, opts)
	l.mu.Lock()
	l.into.pods = append(l.into.pods, kept...)
	l.mu.Unlock()
	if err != nil || l.remembered == nil {
		return err
	}
	return l.newDaemonSets(ctx, kept)
}

func (l *loader) podPages(ctx context.Context, v Verb, opts metav1.ListOptions) ([]*corev1.Pod, error) {
	in := interner{}
	var kept []*corev1.Pod
	err := l.pages(ctx, v, opts, func(ctx context.Context, o metav1.ListOptions) (string, error) {
		page, err := l.clients.Kubernetes.CoreV1().Pods("").List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			kept = append(kept, trimPod(&page.Items[i], in))
		}
		return page.Continue, nil
	}, func() { kept = nil })
	return kept, err
}

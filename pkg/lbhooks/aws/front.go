package aws

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks/timing"
)

// owner is who registers nodes with a Service's balancer.
type owner string

// The load balancer controller; the cloud provider's service controller; nobody in the cluster.
const (
	controller owner = "aws-load-balancer-controller"
	provider   owner = "cloud provider"
	nobody     owner = ""
)

// front is what the objects tell of the balancer in front of a Service.
type front struct {
	owner    owner
	reason   string
	pods     bool // it sends to pods alone, past nodes and kube-proxy
	bindings []binding
}

// Annotations of AWS's controllers.
const (
	annotationPrefix     = "service.beta.kubernetes.io/aws-load-balancer-"
	annotationType       = annotationPrefix + "type"
	annotationNodeLabels = annotationPrefix + "target-node-labels"
)

// front tells who fronts a Service: an AWS class or address, a TargetGroupBinding, or target groups that it names.
func (w *world) front(svc *corev1.Service) (front, bool) {
	f := front{bindings: w.bindings[keyOf(svc)]}
	switch {
	case w.classed(svc, &f):
	case len(f.bindings) > 0:
		f.owner, f.reason = controller, "TargetGroupBinding "+f.bindings[0].name+" names the Service"
	case len(named(svc)) > 0:
		f.reason = "annotation " + AnnotationGroups
		return f, true
	default:
		return front{}, false
	}
	f.pods = w.podsOnly(svc)
	return f, true
}

// classed reports whether the Service is of type LoadBalancer and AWS's, and by whom and why.
func (w *world) classed(svc *corev1.Service, f *front) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	host := hostname(svc)
	if class := svc.Spec.LoadBalancerClass; class != nil {
		if *class != timing.LBCClass {
			return false
		}
		f.owner, f.reason = controller, "load balancer class "+*class
		return true
	}
	if elsewhere(svc) || host == "" && (len(w.sample) == 0 || len(svc.Status.LoadBalancer.Ingress) > 0) {
		return false
	}
	kind := svc.Annotations[annotationType]
	switch {
	case kind == "external", kind == "nlb-ip":
		f.owner, f.reason = controller, "annotation "+annotationType+"="+kind
	case kind == "nlb":
		f.owner, f.reason = provider, "annotation "+annotationType+"="+kind
	case host != "":
		f.owner, f.reason = provider, "its address "+host+" is AWS's"
	default:
		return false
	}
	return true
}

// elsewhere reports whether annotations say that something else announces the Service.
func elsewhere(svc *corev1.Service) bool {
	for key := range svc.Annotations {
		if strings.HasPrefix(key, "kube-vip.io/") {
			return true
		}
	}
	return false
}

// podsOnly reports whether every target of the Service is a pod: by its bindings, else by its annotations.
func (w *world) podsOnly(svc *corev1.Service) bool {
	bindings := w.bindings[keyOf(svc)]
	if len(bindings) == 0 {
		return timing.TargetsPods(svc)
	}
	return !slices.ContainsFunc(bindings, func(b binding) bool { return !b.pods })
}

// named lists the target groups that a Service names by annotation, sorted.
func named(svc *corev1.Service) []string {
	var arns []string
	for arn := range strings.SplitSeq(svc.Annotations[AnnotationGroups], ",") {
		if arn = strings.TrimSpace(arn); arn != "" {
			arns = append(arns, arn)
		}
	}
	slices.Sort(arns)
	return slices.Compact(arns)
}

// hostname returns the first address of a Service that AWS gives to its load balancers, "" without one: NAME-ID.elb.REGION.
// before the domain for a Network Load Balancer, NAME-ID.REGION.elb. for the others.
func hostname(svc *corev1.Service) string {
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if _, ok := readHostname(in.Hostname); ok {
			return in.Hostname
		}
	}
	return ""
}

// address is what a load balancer's hostname tells.
type address struct {
	region  string
	network bool
	label   string // the first label, NAME-ID
}

// domains are those of AWS's partitions.
var domains = []string{".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu"}

func readHostname(host string) (address, bool) {
	for _, domain := range domains {
		rest, ok := strings.CutSuffix(strings.ToLower(host), domain)
		if !ok {
			continue
		}
		parts := strings.Split(rest, ".")
		switch {
		case len(parts) != 3:
		case parts[1] == "elb":
			return address{region: parts[2], network: true, label: parts[0]}, true
		case parts[2] == "elb":
			return address{region: parts[1], label: parts[0]}, true
		}
	}
	return address{}, false
}

// classicName is the name of a Classic Load Balancer by its hostname: NAME-NUMBER, "internal-" before it where it is so.
func (a address) classicName() string {
	name := strings.TrimPrefix(a.label, "internal-")
	if i := strings.LastIndex(name, "-"); i > 0 {
		name = name[:i]
	}
	return name
}

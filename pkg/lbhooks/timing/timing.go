// Package timing tells how a balancer probes healthCheckNodePort: from the annotation safedrain.dev/health-check, else
// from a cloud provider's annotations, else from its defaults, else 90 seconds in all.
package timing

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Provider is the cloud whose balancer fronts a Service, as far as objects tell.
type Provider string

// The providers whose probes are known. Other means that nothing is.
const (
	AWSClassic Provider = "aws classic" // Classic Load Balancer of the cloud provider
	AWSNetwork Provider = "aws nlb"     // Network Load Balancer of the cloud provider
	AWSLBC     Provider = "aws-load-balancer-controller"
	Azure      Provider = "azure"
	GCE        Provider = "gce"
	Other      Provider = ""
)

// LBCClass is the load balancer class of the AWS load balancer controller.
const LBCClass = "service.k8s.aws/nlb"

// GKEClassPrefix begins the load balancer classes of GKE: -external, -internal, and both with -legacy.
const GKEClassPrefix = "networking.gke.io/l4-regional-"

const (
	awsPrefix   = "service.beta.kubernetes.io/aws-load-balancer-"
	azurePrefix = "service.beta.kubernetes.io/azure-load-balancer-"
)

// defaults of the providers for Services of policy Local. Sources: cloud-provider-aws pkg/providers/v1/aws.go (NLB) and
// aws_loadbalancer.go (classic), aws-load-balancer-controller pkg/service/model_builder.go, cloud-provider-azure
// pkg/consts/consts.go, ingress-gce pkg/healthchecksl4.
var defaults = map[Provider]lbhooks.HealthCheck{
	AWSClassic: {Interval: 10 * time.Second, Timeout: 5 * time.Second, Unhealthy: 6},
	AWSNetwork: {Interval: 10 * time.Second, Timeout: 10 * time.Second, Unhealthy: 2},
	AWSLBC:     {Interval: 10 * time.Second, Timeout: 6 * time.Second, Unhealthy: 2},
	Azure:      {Interval: 5 * time.Second, Unhealthy: 2},
	GCE:        {Interval: 8 * time.Second, Timeout: time.Second, Unhealthy: 3},
}

// ProviderOf tells the provider from the Service's annotations, class and address and from the nodes' providerID.
func ProviderOf(svc *corev1.Service, nodes []*corev1.Node) Provider {
	if class := svc.Spec.LoadBalancerClass; class != nil {
		switch {
		case *class == LBCClass:
			return AWSLBC
		case strings.HasPrefix(*class, GKEClassPrefix):
			return GCE
		}
		return Other
	}
	switch cloud(svc, nodes) {
	case "aws":
		return awsKind(svc)
	case "azure":
		return Azure
	case "gce":
		return GCE
	}
	return Other
}

// cloud returns the scheme of the first providerID, or what the hostname of the balancer gives away.
func cloud(svc *corev1.Service, nodes []*corev1.Node) string {
	for _, n := range nodes {
		if scheme, _, ok := strings.Cut(n.Spec.ProviderID, "://"); ok && !lbhooks.Virtual(n) {
			return scheme
		}
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if strings.HasSuffix(in.Hostname, ".amazonaws.com") {
			return "aws"
		}
	}
	return ""
}

func awsKind(svc *corev1.Service) Provider {
	switch svc.Annotations[awsPrefix+"type"] {
	case "external", "nlb-ip":
		return AWSLBC
	case "nlb":
		return AWSNetwork
	}
	return AWSClassic
}

// TargetsPods reports whether the balancer sends to pods, past nodes and kube-proxy: ip targets on AWS.
func TargetsPods(svc *corev1.Service) bool {
	return svc.Annotations[awsPrefix+"type"] == "nlb-ip" || svc.Annotations[awsPrefix+"nlb-target-type"] == "ip"
}

// Known returns the check of a balancer that is known to honour healthCheckNodePort: by the annotation
// safedrain.dev/health-check or by its provider. Nil without an error means that none is known.
func Known(svc *corev1.Service, nodes []*corev1.Node) (*lbhooks.HealthCheck, error) {
	if text, ok := svc.Annotations[lbhooks.AnnotationHealthCheck]; ok {
		hc, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", lbhooks.AnnotationHealthCheck, err)
		}
		hc.Resets = resets(svc, ProviderOf(svc, nodes))
		return &hc, nil
	}
	provider := ProviderOf(svc, nodes)
	if provider == Other || svc.Spec.HealthCheckNodePort == 0 || TargetsPods(svc) || probesElsewhere(svc) {
		return nil, nil
	}
	hc := defaults[provider]
	hc.Source = "defaults of " + string(provider)
	hc.Resets = resets(svc, provider)
	var err error
	switch provider {
	case AWSClassic, AWSNetwork, AWSLBC:
		err = overrideAWS(svc, &hc)
	case Azure:
		err = overrideAzure(svc, &hc)
	}
	if err != nil {
		return nil, err
	}
	return &hc, nil
}

// Of is [Known], and 90 seconds in all where nothing is known: for a Service whose user says that its balancer honours
// the port.
func Of(svc *corev1.Service, nodes []*corev1.Node) (*lbhooks.HealthCheck, error) {
	hc, err := Known(svc, nodes)
	if hc == nil && err == nil {
		hc = Assumed()
	}
	return hc, err
}

// Assumed is what is taken for granted of a balancer that honours the port and says nothing else: 90 seconds in all.
func Assumed() *lbhooks.HealthCheck {
	return &lbhooks.HealthCheck{Interval: 30 * time.Second, Unhealthy: 3, Source: "assumed: 30s x 3"}
}

// probesElsewhere reports whether annotations send the probe to another port than healthCheckNodePort.
func probesElsewhere(svc *corev1.Service) bool {
	port, ok := svc.Annotations[awsPrefix+"healthcheck-port"]
	return ok && port != strconv.Itoa(int(svc.Spec.HealthCheckNodePort))
}

// resets says that a balancer breaks the open connections of a node whose check fails, "" where it keeps them. A network
// load balancer does unless its target group says otherwise.
func resets(svc *corev1.Service, provider Provider) string {
	keeps := strings.Contains(svc.Annotations[awsPrefix+"target-group-attributes"], "target_health_state.unhealthy.connection_termination.enabled=false")
	if provider != AWSNetwork && (provider != AWSLBC || keeps) {
		return ""
	}
	return "a network load balancer of AWS resets the open connections of a node whose health check fails"
}

package aws

import (
	"context"
	"regexp"
	"strings"
	"sync"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancing"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// api builds the SDK's clients when they are first needed, one a region. Retries, rate limits and endpoints are the SDK's.
type api struct {
	load []func(*config.LoadOptions) error

	mu      sync.Mutex
	config  *awssdk.Config
	v2      map[string]*elasticloadbalancingv2.Client
	classic map[string]*elasticloadbalancing.Client
}

func newAPI(load []func(*config.LoadOptions) error) *api {
	return &api{load: load, v2: map[string]*elasticloadbalancingv2.Client{}, classic: map[string]*elasticloadbalancing.Client{}}
}

// ready returns the SDK's configuration once it has credentials that are valid now. The SDK keeps them until they expire.
func (a *api) ready(ctx context.Context) (awssdk.Config, error) {
	a.mu.Lock()
	have := a.config
	a.mu.Unlock()
	if have == nil {
		loaded, err := config.LoadDefaultConfig(ctx, a.load...)
		if err != nil {
			return awssdk.Config{}, lbhooks.Unavailable(Name, "the SDK's configuration cannot be read: mend ~/.aws or AWS_PROFILE", err)
		}
		a.mu.Lock()
		if a.config == nil {
			a.config = &loaded
		}
		have = a.config
		a.mu.Unlock()
	}
	if _, err := have.Credentials.Retrieve(ctx); err != nil {
		if ctx.Err() != nil {
			return awssdk.Config{}, ctx.Err()
		}
		return awssdk.Config{}, lbhooks.Unavailable(Name, "no credentials: set AWS_PROFILE, log in, or give this pod a role", err)
	}
	return *have, nil
}

// targets returns the client for target groups in a region.
func (a *api) targets(ctx context.Context, region string) (*elasticloadbalancingv2.Client, error) {
	cfg, err := a.ready(ctx)
	if err != nil {
		return nil, err
	}
	if region, err = pick(region, cfg.Region); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	client := a.v2[region]
	if client == nil {
		client = elasticloadbalancingv2.NewFromConfig(cfg, func(o *elasticloadbalancingv2.Options) { o.Region = region })
		a.v2[region] = client
	}
	return client, nil
}

// instances returns the client for Classic Load Balancers in a region.
func (a *api) instances(ctx context.Context, region string) (*elasticloadbalancing.Client, error) {
	cfg, err := a.ready(ctx)
	if err != nil {
		return nil, err
	}
	if region, err = pick(region, cfg.Region); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	client := a.classic[region]
	if client == nil {
		client = elasticloadbalancing.NewFromConfig(cfg, func(o *elasticloadbalancing.Options) { o.Region = region })
		a.classic[region] = client
	}
	return client, nil
}

func pick(region, configured string) (string, error) {
	if region == "" {
		region = configured
	}
	if region == "" {
		return "", lbhooks.Unavailable(Name, "no region: set AWS_REGION, or --hook-option aws.region=REGION", nil)
	}
	return region, nil
}

// regionName is the region at the start of the name of an availability, local or wavelength zone.
var regionName = regexp.MustCompile(`^[a-z]+(?:-[a-z]+){1,3}-[0-9]+`)

// regionOf tells a node's region by its label, else by the zone in its providerID; "" when neither tells.
func regionOf(n *corev1.Node) string {
	if region := n.Labels[corev1.LabelTopologyRegion]; region != "" {
		return region
	}
	zone := strings.Trim(strings.TrimPrefix(n.Spec.ProviderID, "aws://"), "/")
	zone, _, _ = strings.Cut(zone, "/")
	return regionName.FindString(zone)
}

// region tells where to look for the balancer of a Service, "" for the SDK's own configuration.
func (h *Hook) region(t lbhooks.Target) string {
	if region := h.options.Text(optionRegion); region != "" {
		return region
	}
	if host, ok := readHostname(hostname(t.Service)); ok {
		return host.region
	}
	return regionOf(t.Node)
}

// regionOfARN is the region in a target group's ARN.
func regionOfARN(text string) string {
	parsed, err := arn.Parse(text)
	if err != nil {
		return ""
	}
	return parsed.Region
}

package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// group is one target group of a Service.
type group struct {
	arn, name, region string
	protocol          string
	network           bool // of a Network Load Balancer
	connectionless    bool // UDP: its health says little, for it is probed by something else
	pods              bool // its targets are pods, not nodes
}

// fleet is the balancer of a Service as AWS has it: target groups, or a Classic Load Balancer.
type fleet struct {
	groups  []group // sorted by name
	classic string  // name of a Classic Load Balancer, "" for none
	region  string
	until   time.Time
	uid     string
}

// memory is how long a balancer that was found is not looked for again.
const memory = time.Minute

// fleet finds the balancer of a Service, and remembers it for a minute.
func (h *Hook) fleet(ctx context.Context, t lbhooks.Target) (*fleet, error) {
	key := keyOf(t.Service).String()
	h.mu.Lock()
	f := h.found[key]
	h.mu.Unlock()
	if f != nil && f.uid == string(t.Service.UID) && time.Now().Before(f.until) {
		return f, nil
	}
	f, err := h.find(ctx, t)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(f.groups, func(a, b group) int { return strings.Compare(a.name+a.arn, b.name+b.arn) })
	f.until, f.uid = time.Now().Add(memory), string(t.Service.UID)
	h.mu.Lock()
	h.found[key] = f
	h.mu.Unlock()
	return f, nil
}

// forget makes the next call look for a Service's balancer again.
func (h *Hook) forget(t lbhooks.Target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.found, keyOf(t.Service).String())
}

// find looks for the balancer: named by annotation, by the controller's bindings, by the hostname, by the controllers' tags.
func (h *Hook) find(ctx context.Context, t lbhooks.Target) (*fleet, error) {
	if arns := named(t.Service); len(arns) > 0 {
		groups, err := h.describe(ctx, arns)
		for i := range groups {
			groups[i].pods = false // whoever registers them by hand registers nodes, by instance or by address
		}
		return &fleet{groups: groups}, err
	}
	arns, err := h.bound(ctx, t)
	if err != nil {
		return nil, err
	}
	if len(arns) > 0 {
		groups, err := h.describe(ctx, slices.Sorted(maps.Keys(arns)))
		for i := range groups {
			groups[i].pods = arns[groups[i].arn]
		}
		return &fleet{groups: groups}, err
	}
	host, hosted := readHostname(hostname(t.Service))
	if hosted && !host.network {
		return &fleet{classic: host.classicName(), region: h.region(t)}, nil
	}
	all, err := h.all(ctx, h.region(t))
	if err != nil {
		return nil, err
	}
	if groups := attached(all, host.label); hosted && len(groups) > 0 {
		return &fleet{groups: h.read(groups)}, nil
	}
	groups, err := h.tagged(ctx, t, all)
	if err == nil && len(groups) == 0 {
		err = fmt.Errorf("%s: no target group of %s in %s: no TargetGroupBinding, balancer or tag names it; name them by annotation %s",
			Name, keyOf(t.Service), regionText(h.region(t)), AnnotationGroups)
	}
	return &fleet{groups: h.read(groups)}, err
}

func regionText(region string) string {
	if region == "" {
		return "the configured region"
	}
	return region
}

// bound lists the target groups that bindings give the Service; true means that pods are their targets. Without the kind,
// or without permission to list it, there are none.
func (h *Hook) bound(ctx context.Context, t lbhooks.Target) (map[string]bool, error) {
	if h.dynamic == nil {
		return nil, offline()
	}
	resource := schema.GroupVersionResource{Group: bindingKind.Group, Version: "v1beta1", Resource: "targetgroupbindings"}
	arns, page := map[string]bool{}, metav1.ListOptions{Limit: 500}
	for {
		list, err := h.dynamic.Resource(resource).Namespace(t.Service.Namespace).List(ctx, page)
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err), meta.IsNoMatchError(err):
			return nil, nil
		case err != nil:
			return nil, lbhooks.ReadFailed(Name, "list", "targetgroupbindings.elbv2.k8s.aws", err)
		}
		for i := range list.Items {
			if key, b := readBinding(&list.Items[i]); key == keyOf(t.Service) && b.arn != "" {
				arns[b.arn] = b.pods
			}
		}
		if page.Continue = list.GetContinue(); page.Continue == "" {
			return arns, nil
		}
	}
}

// batch is how many target groups one call may name.
const batch = 20

// describe reads target groups by their ARNs, each in its own region.
func (h *Hook) describe(ctx context.Context, arns []string) ([]group, error) {
	regions := map[string][]string{}
	for _, arn := range arns {
		region := regionOfARN(arn)
		if region == "" {
			return nil, lbhooks.Unavailable(Name, fmt.Sprintf("%q is no ARN of a target group", arn), nil)
		}
		regions[region] = append(regions[region], arn)
	}
	var out []group
	for _, region := range slices.Sorted(maps.Keys(regions)) {
		client, err := h.api.targets(ctx, region)
		if err != nil {
			return nil, err
		}
		for some := range slices.Chunk(regions[region], batch) {
			answer, err := client.DescribeTargetGroups(ctx, &elasticloadbalancingv2.DescribeTargetGroupsInput{TargetGroupArns: some})
			if err != nil {
				return nil, failed(actionGroups, anything, err)
			}
			out = append(out, h.read(answer.TargetGroups)...)
		}
	}
	if len(out) < len(arns) {
		return nil, fmt.Errorf("%s: %d of the target groups %s are there", Name, len(out), strings.Join(arns, ", "))
	}
	return out, nil
}

// all reads every target group of a region, page by page.
func (h *Hook) all(ctx context.Context, region string) ([]types.TargetGroup, error) {
	client, err := h.api.targets(ctx, region)
	if err != nil {
		return nil, err
	}
	var out []types.TargetGroup
	pages := elasticloadbalancingv2.NewDescribeTargetGroupsPaginator(client, &elasticloadbalancingv2.DescribeTargetGroupsInput{})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, failed(actionGroups, anything, err)
		}
		out = append(out, page.TargetGroups...)
	}
	return out, nil
}

// attached returns the groups of the Network Load Balancer whose hostname begins with NAME-ID: the end of its ARN is NAME/ID.
func attached(all []types.TargetGroup, label string) []types.TargetGroup {
	return slices.DeleteFunc(slices.Clone(all), func(g types.TargetGroup) bool {
		return !slices.ContainsFunc(g.LoadBalancerArns, func(arn string) bool {
			_, path, _ := strings.Cut(arn, ":loadbalancer/net/")
			return path != "" && strings.ReplaceAll(path, "/", "-") == label
		})
	})
}

// read turns the SDK's groups into ours.
func (h *Hook) read(all []types.TargetGroup) []group {
	var out []group
	for i := range all {
		g := &all[i]
		read := group{arn: value(g.TargetGroupArn), name: value(g.TargetGroupName), protocol: string(g.Protocol), pods: g.TargetType == types.TargetTypeEnumIp}
		read.region = regionOfARN(read.arn)
		switch g.Protocol { //nolint:exhaustive // the rest are an Application or Gateway Load Balancer's
		case types.ProtocolEnumUdp, types.ProtocolEnumTcpUdp, types.ProtocolEnumQuic, types.ProtocolEnumTcpQuic:
			read.network, read.connectionless = true, true
		case types.ProtocolEnumTcp, types.ProtocolEnumTls:
			read.network = true
		}
		out = append(out, read)
	}
	return out
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Tags that the controllers set. Sources: aws-load-balancer-controller docs/guide/service/annotations.md (stack, cluster),
// cloud-provider-aws pkg/providers/v1/aws.go and aws_loadbalancer.go (service-name, cluster).
const (
	tagStack           = "service.k8s.aws/stack"
	tagCluster         = "elbv2.k8s.aws/cluster"
	tagService         = "kubernetes.io/service-name"
	tagProviderCluster = "kubernetes.io/cluster/" // and the cluster's name; the value is "owned"
)

// tagged returns the groups whose tags name the Service. Tags of more than one cluster are refused: the groups of another
// cluster would prove nothing.
func (h *Hook) tagged(ctx context.Context, t lbhooks.Target, all []types.TargetGroup) ([]types.TargetGroup, error) {
	client, err := h.api.targets(ctx, h.region(t))
	if err != nil {
		return nil, err
	}
	wanted := h.options.Text(optionCluster)
	var out []types.TargetGroup
	clusters := map[string]bool{}
	for some := range slices.Chunk(all, batch) {
		var arns []string
		for i := range some {
			arns = append(arns, value(some[i].TargetGroupArn))
		}
		answer, err := client.DescribeTags(ctx, &elasticloadbalancingv2.DescribeTagsInput{ResourceArns: arns})
		if err != nil {
			return nil, failed(actionTags, anything, err)
		}
		for i := range answer.TagDescriptions {
			d := &answer.TagDescriptions[i]
			cluster, ours := tagsName(d.Tags, keyOf(t.Service).String())
			if !ours || wanted != "" && cluster != wanted {
				continue
			}
			clusters[cluster] = true
			out = append(out, some[slices.Index(arns, value(d.ResourceArn))])
		}
	}
	if len(clusters) > 1 {
		return nil, lbhooks.Unavailable(Name, fmt.Sprintf("target groups of %s are tagged for clusters %s: say which by --hook-option aws.cluster=NAME",
			keyOf(t.Service), strings.Join(slices.Sorted(maps.Keys(clusters)), ", ")), nil)
	}
	return out, nil
}

// tagsName reports whether tags name a Service, "namespace/name", and of which cluster.
func tagsName(tags []types.Tag, service string) (cluster string, ours bool) {
	for i := range tags {
		key, text := value(tags[i].Key), value(tags[i].Value)
		switch {
		case (key == tagStack || key == tagService) && text == service:
			ours = true
		case key == tagCluster:
			cluster = text
		case strings.HasPrefix(key, tagProviderCluster) && cluster == "":
			cluster = strings.TrimPrefix(key, tagProviderCluster)
		}
	}
	return cluster, ours
}

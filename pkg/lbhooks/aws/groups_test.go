package aws_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/aws"
)

func newOffline(t *testing.T) *aws.Hook {
	t.Helper()
	return aws.New(nil, nil, lbhooks.Options{})
}

// Where the target groups of a Service are found. In every row the right group has the node draining and another target
// healthy, and every wrong one has it healthy: so the answer tells which one was asked.
func TestFind(t *testing.T) {
	right := func(name string, change ...func(*tg)) *tg {
		g := nlb(name, onNode("draining"), other("healthy"))
		g.balancers = nil
		for _, c := range change {
			c(g)
		}
		return g
	}
	wrong := func(name string, change ...func(*tg)) *tg {
		return right(name, append([]func(*tg){func(g *tg) { g.targets[0].state = "healthy" }}, change...)...)
	}
	tags := func(pairs ...string) func(*tg) {
		return func(g *tg) {
			for i := 0; i < len(pairs); i += 2 {
				g.tags[pairs[i]] = pairs[i+1]
			}
		}
	}
	behind := func(g *tg) { g.balancers = []string{nlbARN} }
	elsewhere := func(g *tg) { g.balancers = []string{balancerARN(region, "k8s-e-a-0a1b2c3d4f", "0f1e2d3c4b5a6978")} }
	many := func(n int, last ...*tg) []*tg {
		var all []*tg
		for i := range n {
			all = append(all, wrong(fmt.Sprintf("w%04d", i), elsewhere))
		}
		return append(all, last...)
	}
	plain := service(class(nlbClass))
	for name, test := range map[string]struct {
		svc      *corev1.Service
		groups   []*tg
		bindings func(groups []*tg) []*unstructured.Unstructured
		options  map[string]string
		seen     string // groups in the evidence
		calls    map[string]int
		broken   string // ErrUnavailable that says this
		fails    string // another error that says this
	}{
		"by binding": {
			svc: plain, groups: []*tg{right("g1"), wrong("g2", tags("service.k8s.aws/stack", "e/a"))}, seen: "g1",
			bindings: func(g []*tg) []*unstructured.Unstructured {
				return []*unstructured.Unstructured{binding("b1", "a", g[0].arn, "instance"), binding("b2", "other", g[1].arn, "instance")}
			},
			calls: map[string]int{"DescribeTags": 0, "DescribeTargetGroups": 1},
		},
		"by binding, pods are passed over": {
			svc: plain, groups: []*tg{right("g1"), wrong("g2")}, seen: "g1",
			bindings: func(g []*tg) []*unstructured.Unstructured {
				return []*unstructured.Unstructured{binding("b1", "a", g[0].arn, "instance"), binding("b2", "a", g[1].arn, "ip")}
			},
		},
		"by address": {
			svc: service(class(nlbClass), hosted(nlbHost)), groups: []*tg{right("g1", behind), right("g2", behind), wrong("g3", elsewhere, tags("service.k8s.aws/stack", "e/a"))},
			seen: "g1 g2", calls: map[string]int{"DescribeTags": 0},
		},
		"by address, past the first page": {
			svc: service(class(nlbClass), hosted(nlbHost)), groups: many(1000, right("g1", behind)), seen: "g1", calls: map[string]int{"DescribeTargetGroups": 3},
		},
		"by tag of the controller":    {svc: plain, groups: []*tg{wrong("g0", tags("service.k8s.aws/stack", "e/b")), right("g1", tags("service.k8s.aws/stack", "e/a", "elbv2.k8s.aws/cluster", "x"))}, seen: "g1"},
		"by tag of the provider":      {svc: plain, groups: []*tg{right("g1", tags("kubernetes.io/service-name", "e/a", "kubernetes.io/cluster/x", "owned"))}, seen: "g1"},
		"by tag, past twenty":         {svc: plain, groups: many(45, right("g1", tags("service.k8s.aws/stack", "e/a"))), seen: "g1", calls: map[string]int{"DescribeTags": 3}},
		"by tag, of several clusters": {svc: plain, groups: []*tg{right("g1", tags("service.k8s.aws/stack", "e/a", "elbv2.k8s.aws/cluster", "x")), wrong("g2", tags("kubernetes.io/service-name", "e/a", "kubernetes.io/cluster/y", "owned"))}, broken: "clusters x, y"},
		"by tag, one cluster is ours": {svc: plain, groups: []*tg{right("g1", tags("service.k8s.aws/stack", "e/a", "elbv2.k8s.aws/cluster", "x")), wrong("g2", tags("service.k8s.aws/stack", "e/a", "elbv2.k8s.aws/cluster", "y"))}, options: map[string]string{"cluster": "x"}, seen: "g1"},
		"by annotation":               {svc: service(annotated(aws.AnnotationGroups, arnOf("us-gov-west-1", "g1")), kind(corev1.ServiceTypeNodePort)), groups: []*tg{right("g1", func(g *tg) { g.arn = arnOf("us-gov-west-1", "g1") }), wrong("g2")}, seen: "g1"},
		"by annotation, not there":    {svc: service(annotated(aws.AnnotationGroups, arnOf(region, "g9"))), groups: []*tg{right("g1")}, fails: "TargetGroupNotFound"},
		"by annotation, no ARN":       {svc: service(annotated(aws.AnnotationGroups, "g9")), broken: `"g9" is no ARN`},
		"nowhere":                     {svc: plain, groups: []*tg{right("g1")}, fails: "no target group of e/a in eu-west-1"},
		"a classic that is gone":      {svc: service(hosted(clbHost)), fails: "LoadBalancerNotFound"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			cloud.groups = test.groups
			var bindings []*unstructured.Unstructured
			if test.bindings != nil {
				bindings = test.bindings(test.groups)
			}
			hook, _ := newHook(t, cloud.serve(t), test.options, bindings...)
			p, err := hook.Prove(t.Context(), lbhooks.Target{Service: test.svc, Node: node("n1")})
			switch {
			case test.broken != "":
				if !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), test.broken) {
					t.Errorf("%v, want ErrUnavailable and %q", err, test.broken)
				}
				return
			case test.fails != "":
				if err == nil || errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("%v, want %q", err, test.fails)
				}
				return
			}
			var seen []string
			for part := range strings.SplitSeq(p.Evidence, "; ") {
				group, _, _ := strings.Cut(part, ":")
				seen = append(seen, group)
			}
			if err != nil || !p.Out || strings.Join(seen, " ") != test.seen {
				t.Errorf("%+v, %v; want %s", p, err, test.seen)
			}
			for action, want := range test.calls {
				// a busy machine may make the SDK repeat one
				if got := cloud.count(action); got < want || got > want+want/2 {
					t.Errorf("%d calls of %s, want %d", got, action, want)
				}
			}
		})
	}
}

// What was found is not looked for again at once; a group that is gone is.
func TestFindIsRemembered(t *testing.T) {
	cloud := newCloud()
	cloud.groups = []*tg{nlb("g1", onNode("draining"), other("healthy"))}
	hook, _ := newHook(t, cloud.serve(t), nil)
	at := lbhooks.Target{Service: service(class(nlbClass), hosted(nlbHost)), Node: node("n1")}
	for range 5 {
		if _, err := hook.Prove(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if n := cloud.count("DescribeTargetGroups"); n != 1 {
		t.Errorf("looked %d times for the same groups", n)
	}
	cloud.groups = []*tg{nlb("g2", onNode("healthy"), other("healthy"))}
	if _, err := hook.Prove(t.Context(), at); err == nil || errors.Is(err, lbhooks.ErrUnavailable) {
		t.Errorf("%v, want an error that may pass", err)
	}
	if p, err := hook.Prove(t.Context(), at); err != nil || p.Out || !strings.HasPrefix(p.Evidence, "g2") {
		t.Errorf("%+v, %v; want the new group", p, err)
	}
}

// The region comes from the ARN, the address, the node, or the SDK's configuration, and an option wins.
func TestRegion(t *testing.T) {
	for name, test := range map[string]struct {
		svc     *corev1.Service
		node    func(*corev1.Node)
		options map[string]string
		want    string
	}{
		"address":            {svc: service(hosted("a-1.ap-southeast-2.elb.amazonaws.com")), want: "ap-southeast-2"},
		"address, network":   {svc: service(hosted("a-1.elb.us-gov-west-1.amazonaws.com")), want: "us-gov-west-1"},
		"node's label":       {svc: service(class(nlbClass)), node: label(corev1.LabelTopologyRegion, "ca-central-1"), want: "ca-central-1"},
		"node's zone":        {svc: service(class(nlbClass)), node: func(n *corev1.Node) { n.Spec.ProviderID = "aws:///us-gov-east-1b/i-n1" }, want: "us-gov-east-1"},
		"node's local zone":  {svc: service(class(nlbClass)), node: func(n *corev1.Node) { n.Spec.ProviderID = "aws:///us-west-2-lax-1a/i-n1" }, want: "us-west-2"},
		"node's wavelength":  {svc: service(class(nlbClass)), node: func(n *corev1.Node) { n.Spec.ProviderID = "aws:///us-east-1-wl1-bos-wlz-1/i-n1" }, want: "us-east-1"},
		"no zone: the SDK's": {svc: service(class(nlbClass)), node: func(n *corev1.Node) { n.Spec.ProviderID = "aws:///i-n1" }, want: "eu-west-1"},
		"the option":         {svc: service(hosted(nlbHost)), options: map[string]string{"region": "sa-east-1"}, want: "sa-east-1"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			hook, _ := newHook(t, cloud.serve(t), test.options)
			change := test.node
			if change == nil {
				change = func(*corev1.Node) {}
			}
			if _, err := hook.Prove(t.Context(), lbhooks.Target{Service: test.svc, Node: node("n1", change)}); err == nil {
				t.Error("an empty cloud has the group")
			}
			if len(cloud.calls) == 0 || !slices.ContainsFunc(cloud.calls, func(c string) bool { return strings.HasSuffix(c, " "+test.want) }) {
				t.Errorf("calls %q, want region %s", cloud.calls, test.want)
			}
		})
	}
}

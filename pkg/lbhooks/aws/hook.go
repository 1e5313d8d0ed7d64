// Package aws is the hook aws: Network and Application Load Balancers by their target groups, and Classic Load Balancers.
//
// A controller in the cluster owns most target groups and takes a node out of them when it bears the exclude label; the
// hook then only watches. A group that nobody in the cluster owns is named by an annotation, and the hook takes the node
// out of it itself when it is told to. What AWS shows of a target is the proof; new connections may still come for about
// two minutes after a Network Load Balancer says that it deregisters one, so a settle time follows.
package aws

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Name of the hook.
const Name = "aws"

// AnnotationGroups on a Service names target groups, by ARN, separated by commas.
const AnnotationGroups = "safedrain.dev/aws-target-groups"

// Settle times after the proof. A Network Load Balancer was seen by several teams to send new connections for about two
// minutes after DeregisterTargets, whatever the deregistration delay; AWS documents no number. An Application and a Classic
// Load Balancer are documented to send no new requests to a target that is being deregistered: a margin for them.
const (
	SettleNetwork = 120 * time.Second
	SettleOther   = 10 * time.Second
)

// poll is the pace of observation: often enough for a proof to be noticed within a second, and one call a group.
const poll = time.Second

// Names and values of the options.
const (
	optionDeregister = "deregister"
	optionRegion     = "region"
	optionCluster    = "cluster"
	optionSettle     = "settle"
	optionProof      = "proof"

	proofDraining = "draining"
	proofAbsent   = "absent"
)

// Options are the options that the hook knows.
func Options() []lbhooks.Option {
	return []lbhooks.Option{
		{Name: optionDeregister, Kind: lbhooks.OptionBool, Usage: "deregister nodes from groups that no controller owns, and register them again on uncordon (default false)"},
		{Name: optionRegion, Kind: lbhooks.OptionText, Usage: "the region, where neither the target group, the node nor the SDK's configuration tells"},
		{Name: optionCluster, Kind: lbhooks.OptionText, Usage: "the cluster's name in the controllers' tags, where groups of several clusters bear the same Service"},
		{Name: optionSettle, Kind: lbhooks.OptionDuration, Usage: "time to wait after the proof (default 120s for network, 10s for other balancers); with 0s draining is no proof"},
		{Name: optionProof, Kind: lbhooks.OptionText, Usage: "what proves: draining (default), then the settle time; or absent, at the end of the deregistration delay", Check: checkProof},
	}
}

// Deregisters reports whether options let the hook deregister and register targets itself, which takes rights of its own.
func Deregisters(o lbhooks.Options) bool { return o.Bool(optionDeregister) }

func checkProof(value string) error {
	if value != proofDraining && value != proofAbsent {
		return errors.New("write " + proofDraining + " or " + proofAbsent)
	}
	return nil
}

// Hook is the hook aws.
type Hook struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	options lbhooks.Options
	api     *api
	memo    lbhooks.Memo[*world]

	mu    sync.Mutex
	found map[string]*fleet // by namespace/name: what was looked up lately
	lived map[string]bool   // target groups, by ARN, of which a target was seen healthy
	turns map[string]chan struct{}
}

var (
	_ lbhooks.Hook       = (*Hook)(nil)
	_ lbhooks.Assertable = (*Hook)(nil)
	_ lbhooks.Paced      = (*Hook)(nil)
	_ lbhooks.Checker    = (*Hook)(nil)
)

// New returns the hook; offline the clients are nil. Nothing is looked up before the first call: load adds to the SDK's own
// configuration, which is read then.
func New(kube kubernetes.Interface, dyn dynamic.Interface, options lbhooks.Options, load ...func(*config.LoadOptions) error) *Hook {
	return &Hook{
		kube: kube, dynamic: dyn, options: options, api: newAPI(load),
		found: map[string]*fleet{}, lived: map[string]bool{}, turns: map[string]chan struct{}{},
	}
}

// Describe names the hook and what it needs. The settle time is that of a Network Load Balancer; each proof tells its own.
func (h *Hook) Describe() lbhooks.Description {
	return lbhooks.Description{
		Name: Name, Witness: "target health", Settle: h.options.Duration(optionSettle, SettleNetwork),
		Needs: []lbhooks.Need{{
			Group: bindingKind.Group, Version: "v1beta1", Resource: "targetgroupbindings", Kind: bindingKind.Kind, Namespaced: true,
			Verbs: []string{"list"}, Optional: true, Why: "without it target groups are found by the balancer's name or by tags",
		}},
	}
}

// Pace is one observation a second: each is a call to AWS for every target group.
func (h *Hook) Pace(lbhooks.Target) (time.Duration, int) { return poll, 1 }

// Match takes a Service that the load balancer controller, the cloud provider or an annotation ties to AWS.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	w := h.memo.Get(objects, newWorld)
	f, ok := w.front(svc)
	if !ok {
		return lbhooks.Rotation{}, false
	}
	return h.rotation(w, f, svc, objects), true
}

// Assert returns the rotation of a Service that a user says is behind AWS. Its groups are found by tags.
func (h *Hook) Assert(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	w := h.memo.Get(objects, newWorld)
	return h.rotation(w, front{owner: provider, pods: w.podsOnly(svc)}, svc, objects)
}

// offline is the error of a hook without an API server.
func offline() error {
	return lbhooks.Unavailable(Name, "there is no API server to ask", nil)
}

// instanceOf returns the EC2 instance that a node runs on, by its providerID "aws:///ZONE/i-ID"; "" when it tells none.
func instanceOf(n *corev1.Node) string {
	rest, ok := strings.CutPrefix(n.Spec.ProviderID, "aws://")
	if !ok {
		return ""
	}
	if id := rest[strings.LastIndex(rest, "/")+1:]; strings.HasPrefix(id, "i-") {
		return id
	}
	return ""
}

// Withdraw takes the node out of target groups that nobody in the cluster owns, when the option says so. Elsewhere it does
// nothing: the exclude label, which the drain sets once, makes the controller deregister the node.
func (h *Hook) Withdraw(ctx context.Context, t lbhooks.Target) error {
	if !h.deregisters(t.Service) {
		return ctx.Err()
	}
	return h.deregister(ctx, t)
}

// Restore registers again exactly what Withdraw deregistered, by the record on the node, and nothing else.
func (h *Hook) Restore(ctx context.Context, t lbhooks.Target) error {
	if h.kube == nil {
		return ctx.Err()
	}
	return h.register(ctx, t)
}

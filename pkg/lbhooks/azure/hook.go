// Package azure is the hook azure: Azure's Load Balancer as AKS and the cloud provider make it.
//
// The cloud provider takes a node out of the backend pools when it bears the exclude label; the hook only watches, and
// changes nothing at Azure. Proof is that the node is in no backend pool of the Service's rules any more, or that every
// rule's probe finds it down, while another backend is up.
package azure

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Name of the hook.
const Name = "azure"

// Settle is the time after the proof: a margin, for Microsoft documents no number for how soon a backend that was removed
// gets no new flows.
const Settle = 15 * time.Second

// poll is the pace of observation: the health of a rule is an operation of its own at Azure, which counts against the
// subscription's limits.
const poll = 5 * time.Second

// patience is how long a proof may take: the cloud provider has to see the label, and Azure to update a scale set.
const patience = 5 * time.Minute

// Names of the options.
const (
	optionSubscription = "subscription"
	optionGroup        = "resource-group"
	optionCloud        = "cloud"
	optionSettle       = "settle"
)

// Options are the options that the hook knows.
func Options() []lbhooks.Option {
	return []lbhooks.Option{
		{Name: optionSubscription, Kind: lbhooks.OptionText, Usage: "the subscription of the load balancers (default: the node's, by its providerID)"},
		{Name: optionGroup, Kind: lbhooks.OptionText, Usage: "the resource group of the load balancers (default: the node's, by its providerID)"},
		{Name: optionCloud, Kind: lbhooks.OptionText, Usage: "public (default), usgovernment or china", Check: checkCloud},
		{Name: optionSettle, Kind: lbhooks.OptionDuration, Usage: "time to wait after the proof (default 15s)"},
	}
}

// Hook is the hook azure.
type Hook struct {
	kube    kubernetes.Interface
	options lbhooks.Options
	api     *api
	memo    lbhooks.Memo[*world]

	mu    sync.Mutex
	found map[string]*balancer // by namespace/name: what was looked up lately
}

var (
	_ lbhooks.Hook       = (*Hook)(nil)
	_ lbhooks.Assertable = (*Hook)(nil)
	_ lbhooks.Paced      = (*Hook)(nil)
	_ lbhooks.Checker    = (*Hook)(nil)
)

// SDK replaces what the Azure SDK would find by itself; the zero value replaces nothing.
type SDK struct {
	Credential azcore.TokenCredential // nil: the SDK's default credential
	Options    *arm.ClientOptions     // nil: the SDK's defaults for the cloud that the option names
}

// New returns the hook; offline the client is nil. Credentials are looked up at the first call.
func New(kube kubernetes.Interface, options lbhooks.Options, sdk SDK) *Hook {
	return &Hook{kube: kube, options: options, api: newAPI(sdk, options.Text(optionCloud)), found: map[string]*balancer{}}
}

// Describe names the hook. It needs nothing of the cluster.
func (h *Hook) Describe() lbhooks.Description {
	return lbhooks.Description{Name: Name, Witness: "backend pool and health of the rules", Settle: h.settle()}
}

func (h *Hook) settle() time.Duration { return h.options.Duration(optionSettle, Settle) }

// Pace is one observation in five seconds.
func (h *Hook) Pace(lbhooks.Target) (time.Duration, int) { return poll, 1 }

// Withdraw does nothing: the exclude label, which the drain sets once, makes the cloud provider drop the node.
func (h *Hook) Withdraw(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Restore does nothing: the cloud provider takes the node back once the label is gone.
func (h *Hook) Restore(ctx context.Context, _ lbhooks.Target) error { return ctx.Err() }

// Match takes a Service that the cloud provider has tied to Azure's load balancer.
func (h *Hook) Match(svc *corev1.Service, objects lbhooks.Objects) (lbhooks.Rotation, bool) {
	w := h.memo.Get(objects, newWorld)
	reason := w.reason(svc)
	if reason == "" {
		return lbhooks.Rotation{}, false
	}
	return w.rotation(svc, objects, reason), true
}

// Assert returns the rotation of a Service that a user says is behind Azure's load balancer.
func (h *Hook) Assert(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	return h.memo.Get(objects, newWorld).rotation(svc, objects, "")
}

// machine is a virtual machine, as a node's providerID "azure:///subscriptions/..." names it.
type machine struct {
	id                  string // resource ID in lower case: Azure does not tell cases apart
	subscription, group string
	scaleSet            bool
	addresses           []string
}

func machineOf(n *corev1.Node) (machine, bool) {
	id, ok := strings.CutPrefix(n.Spec.ProviderID, "azure://")
	if !ok {
		return machine{}, false
	}
	parsed, err := arm.ParseResourceID(id)
	if err != nil || parsed.SubscriptionID == "" || parsed.ResourceGroupName == "" {
		return machine{}, false
	}
	m := machine{id: strings.ToLower(id), subscription: parsed.SubscriptionID, group: parsed.ResourceGroupName}
	m.scaleSet = strings.Contains(m.id, "/virtualmachinescalesets/")
	for _, a := range lbhooks.NodeAddresses(n) {
		m.addresses = append(m.addresses, a.String())
	}
	return m, true
}

package azure

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/ptr"
)

// pollRule is the time between two looks at an operation that asks for a rule's health. The pause that Azure proposes suits
// changes, which take minutes, and may be longer than an observation.
const pollRule = time.Second

// rulesAtOnce is how many rules are asked about at a time.
const rulesAtOnce = 4

// What Azure says of a backend: states, and the reason of an Up that only means that all are down.
const (
	up      = "Up"
	down    = "Down"
	allDown = "AllDownIsUp"
)

// row is the health of one backend of a rule.
type row struct {
	entry
	up, down bool
}

// health asks for the health of the backends of rules, in their order. Each is an operation that Azure answers a moment
// later.
func (h *Hook) health(ctx context.Context, b *balancer) ([][]row, error) {
	clients, err := h.api.in(b.subscription)
	if err != nil {
		return nil, err
	}
	rules := clients.NewLoadBalancerLoadBalancingRulesClient()
	out := make([][]row, len(b.rules))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(rulesAtOnce)
	for i, rule := range b.rules {
		group.Go(func() error {
			operation, err := rules.BeginHealth(ctx, rule.group, rule.balancer, rule.name, nil)
			if err != nil {
				return failed(ctx, actionHealth, rule.id, err)
			}
			answer, err := outcome(ctx, operation)
			if err != nil {
				return failed(ctx, actionResults, rule.id, err)
			}
			out[i] = rowsOf(answer.LoadBalancerBackendAddresses)
			return nil
		})
	}
	return out, group.Wait()
}

// outcome looks at an operation until it has ended.
func outcome[T any](ctx context.Context, operation *runtime.Poller[T]) (T, error) {
	var none T
	for {
		answer, err := operation.Poll(ctx) //nolint:bodyclose // the SDK has read and closed it
		switch {
		case err != nil:
			return none, err
		case operation.Done():
			return operation.Result(ctx)
		case answer.StatusCode >= http.StatusBadRequest: // the SDK takes a look that failed for an operation that goes on
			return none, runtime.NewResponseError(answer)
		}
		timer := time.NewTimer(pollRule)
		select {
		case <-ctx.Done():
			timer.Stop()
			return none, ctx.Err()
		case <-timer.C:
		}
	}
}

func rowsOf(all []*armnetwork.LoadBalancerHealthPerRulePerBackendAddress) []row {
	var out []row
	for _, a := range all {
		if a == nil {
			continue
		}
		state, reason := ptr.Deref(a.State, ""), ptr.Deref(a.Reason, "")
		out = append(out, row{
			entry: entry{strings.ToLower(ptr.Deref(a.NetworkInterfaceIPConfigurationID, "")), ptr.Deref(a.IPAddress, "")},
			up:    state == up && !strings.Contains(reason, allDown), down: state == down,
		})
	}
	return out
}

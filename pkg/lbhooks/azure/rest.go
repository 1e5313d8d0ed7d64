package azure

import (
	"context"
	"net/http"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
)

// version of the API: rules tell the health of their backends since 2024-05-01.
const version = "2025-05-01"

// pollRule is the time between two looks at an operation that asks for a rule's health.
const pollRule = time.Second

// The answers of Azure Resource Manager, as far as the hook reads them, in place of the generated client of its network API:
// docs/adr/0004.
type (
	reference struct {
		ID string `json:"id"`
	}
	loadBalancerPage struct {
		Value    []loadBalancer `json:"value"`
		NextLink string         `json:"nextLink"`
	}
	loadBalancer struct {
		Properties struct {
			LoadBalancingRules []loadBalancingRule `json:"loadBalancingRules"`
		} `json:"properties"`
	}
	loadBalancingRule struct {
		ID         string `json:"id"`
		Name       string `json:"name"`
		Properties struct {
			BackendAddressPool  reference   `json:"backendAddressPool"`
			BackendAddressPools []reference `json:"backendAddressPools"`
		} `json:"properties"`
	}
	backendPool struct {
		Properties struct {
			LoadBalancerBackendAddresses []struct {
				Properties struct {
					IPAddress                       string    `json:"ipAddress"`
					NetworkInterfaceIPConfiguration reference `json:"networkInterfaceIPConfiguration"`
				} `json:"properties"`
			} `json:"loadBalancerBackendAddresses"`
			BackendIPConfigurations []struct {
				ID         string `json:"id"`
				Properties struct {
					PrivateIPAddress string `json:"privateIPAddress"`
				} `json:"properties"`
			} `json:"backendIPConfigurations"`
		} `json:"properties"`
	}
	ruleHealth struct {
		LoadBalancerBackendAddresses []struct {
			IPAddress                         string `json:"ipAddress"`
			NetworkInterfaceIPConfigurationID string `json:"networkInterfaceIPConfigurationId"`
			State                             string `json:"state"`
			Reason                            string `json:"reason"`
		} `json:"loadBalancerBackendAddresses"`
	}
)

// get reads a resource by its ID, or whatever is at a link that an earlier answer gave.
func get(ctx context.Context, client *arm.Client, where string, link bool, into any) error {
	answer, err := send(ctx, client, http.MethodGet, where, link) //nolint:bodyclose // UnmarshalAsJSON does
	if err != nil {
		return err
	}
	return runtime.UnmarshalAsJSON(answer, into)
}

// send makes a request at a path of Resource Manager, or at a link as it is.
func send(ctx context.Context, client *arm.Client, method, where string, link bool) (*http.Response, error) {
	if !link {
		where = runtime.JoinPaths(client.Endpoint(), where)
	}
	req, err := runtime.NewRequest(ctx, method, where)
	if err != nil {
		return nil, err
	}
	if !link {
		query := req.Raw().URL.Query()
		query.Set("api-version", version)
		req.Raw().URL.RawQuery = query.Encode()
	}
	req.Raw().Header.Set("Accept", "application/json")
	answer, err := client.Pipeline().Do(req)
	if err != nil {
		return nil, err
	}
	if !runtime.HasStatusCode(answer, http.StatusOK, http.StatusAccepted) {
		return nil, runtime.NewResponseError(answer)
	}
	return answer, nil
}

// health asks for the health of a rule's backends: an operation that Azure answers a moment later.
func health(ctx context.Context, client *arm.Client, rule part) (*ruleHealth, error) {
	answer, err := send(ctx, client, http.MethodPost, rule.id+"/health", false) //nolint:bodyclose // the poller does
	if err != nil {
		return nil, failed(ctx, actionHealth, rule.id, err)
	}
	operation, err := runtime.NewPoller(answer, client.Pipeline(), &runtime.NewPollerOptions[ruleHealth]{FinalStateVia: runtime.FinalStateViaLocation})
	if err != nil {
		return nil, failed(ctx, actionHealth, rule.id, err)
	}
	result, err := operation.PollUntilDone(ctx, &runtime.PollUntilDoneOptions{Frequency: pollRule})
	if err != nil {
		return nil, failed(ctx, actionResults, rule.id, err)
	}
	return &result, nil
}

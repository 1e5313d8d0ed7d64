package azure

import (
	"errors"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// clouds are the clouds by the value of the option.
var clouds = map[string]cloud.Configuration{
	"": cloud.AzurePublic, "public": cloud.AzurePublic, "usgovernment": cloud.AzureGovernment, "china": cloud.AzureChina,
}

func checkCloud(value string) error {
	if _, ok := clouds[value]; !ok || value == "" {
		return errors.New("write public, usgovernment or china")
	}
	return nil
}

// retries are those within one observation, which ends before the SDK's own four tries would: what is left is the next
// observation's, and a longer pause that Azure asks for is the throttle's.
var retries = policy.RetryOptions{MaxRetries: 2, MaxRetryDelay: 4 * time.Second}

// api builds the SDK's clients when they are first needed, one set a subscription.
type api struct {
	sdk      SDK
	cloud    cloud.Configuration
	throttle throttle

	mu         sync.Mutex
	credential azcore.TokenCredential
	clients    map[string]*armnetwork.ClientFactory
}

func newAPI(sdk SDK, named string) *api {
	return &api{sdk: sdk, cloud: clouds[named], credential: sdk.Credential, clients: map[string]*armnetwork.ClientFactory{}}
}

// options are the SDK's, for calls that read: a subscription that does not know Azure's network yet is not registered for it.
func (a *api) options() *arm.ClientOptions {
	var o arm.ClientOptions
	if a.sdk.Options != nil {
		o = *a.sdk.Options
	} else {
		o.Cloud, o.Retry, o.Telemetry.ApplicationID = a.cloud, retries, "safedrain"
	}
	o.DisableRPRegistration = true
	o.PerCallPolicies = append([]policy.Policy{&a.throttle}, o.PerCallPolicies...)
	return &o
}

// in returns the clients for a subscription.
func (a *api) in(subscription string) (*armnetwork.ClientFactory, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if have := a.clients[subscription]; have != nil {
		return have, nil
	}
	options := a.options()
	if a.credential == nil {
		credential, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: options.ClientOptions})
		if err != nil {
			return nil, noCredentials(err)
		}
		a.credential = credential
	}
	clients, err := armnetwork.NewClientFactory(subscription, a.credential, options)
	if err != nil {
		return nil, lbhooks.Unavailable(Name, "the SDK cannot be set up", err)
	}
	a.clients[subscription] = clients
	return clients, nil
}

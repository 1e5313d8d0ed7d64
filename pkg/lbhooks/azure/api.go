package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Actions that the hook needs, one for each kind of call.
const (
	actionBalancers = "Microsoft.Network/loadBalancers/read"
	actionPools     = "Microsoft.Network/loadBalancers/backendAddressPools/read"
	actionHealth    = "Microsoft.Network/loadBalancers/loadBalancingRules/health/action"
	actionResults   = "Microsoft.Network/locations/operationResults/read"
)

// Actions lists what the hook needs, sorted: the last is where the answer about a rule's health is fetched.
func Actions() []string { return []string{actionPools, actionHealth, actionBalancers, actionResults} }

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

// api builds the SDK's client when it is first needed. Retries are the SDK's.
type api struct {
	sdk   SDK
	cloud cloud.Configuration

	mu     sync.Mutex
	client *arm.Client
}

func newAPI(sdk SDK, named string) *api { return &api{sdk: sdk, cloud: clouds[named]} }

func (a *api) ready() (*arm.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		return a.client, nil
	}
	options := a.sdk.Options
	if options == nil {
		options = &arm.ClientOptions{}
		options.Cloud = a.cloud
	}
	credential := a.sdk.Credential
	if credential == nil {
		var err error
		if credential, err = azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: options.ClientOptions}); err != nil {
			return nil, noCredentials(err)
		}
	}
	client, err := arm.NewClient("safedrain", "v1.0.0", credential, options)
	if err != nil {
		return nil, lbhooks.Unavailable(Name, "the SDK cannot be set up", err)
	}
	a.client = client
	return client, nil
}

func noCredentials(err error) error {
	return lbhooks.Unavailable(Name, "no credentials: run az login, set AZURE_CLIENT_ID and the like, or give this pod a workload identity: "+firstLine(err.Error()), nil)
}

// Forbidden is the error of a call that Azure denies. It matches lbhooks.ErrUnavailable through what wraps it.
type Forbidden struct {
	Action string // "Microsoft.Network/loadBalancers/read"
	Scope  string // a resource ID
}

// Error names the action and the scope as a role would.
func (e *Forbidden) Error() string { return "not allowed " + e.Action + " on " + e.Scope }

// required is how Azure names what is missing.
var required = regexp.MustCompile(`perform action '([^']+)' over scope '([^']+)'`)

// failed classifies the error of a call: what a person has to mend is permanent, anything else may pass. The SDK has
// retried what is worth it before.
func failed(ctx context.Context, action, scope string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var answer *azcore.ResponseError
	var login *azidentity.AuthenticationFailedError
	switch {
	case errors.As(err, &login), isUnavailable(err):
		return noCredentials(err)
	case !errors.As(err, &answer):
		return fmt.Errorf("%s: %s: %w", Name, action, err)
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized:
		return lbhooks.Unavailable(Name, "the credentials are not valid or expired: log in again ("+answer.ErrorCode+")", nil)
	case http.StatusForbidden:
		denied := &Forbidden{Action: action, Scope: scope}
		if m := required.FindStringSubmatch(answer.Error()); m != nil {
			denied.Action, denied.Scope = m[1], m[2]
		}
		return fmt.Errorf("%s: %w: %w", Name, lbhooks.ErrUnavailable, denied)
	}
	return &callError{action: action, answer: answer}
}

// callError is a refusal of Azure that may pass, on one line: the SDK's own text has many.
type callError struct {
	action string
	answer *azcore.ResponseError
}

func (e *callError) Error() string {
	return fmt.Sprintf("%s: %s: %d %s", Name, e.action, e.answer.StatusCode, e.answer.ErrorCode)
}

func (e *callError) Unwrap() error { return e.answer }

// isUnavailable reports whether no credential of the chain could be used; the SDK's type for that is not exported.
func isUnavailable(err error) bool {
	var permanent interface{ NonRetriable() }
	return errors.As(err, &permanent) && strings.Contains(err.Error(), "redential")
}

func isNotFound(err error) bool {
	var answer *azcore.ResponseError
	return errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

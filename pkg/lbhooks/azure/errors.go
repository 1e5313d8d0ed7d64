package azure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Actions that the hook needs, one for each kind of call. The health of a rule is an operation: Azure answers with where its
// result will be, and sometimes also with where its state is told.
const (
	actionBalancers = "Microsoft.Network/loadBalancers/read"
	actionPools     = "Microsoft.Network/loadBalancers/backendAddressPools/read"
	actionHealth    = "Microsoft.Network/loadBalancers/loadBalancingRules/health/action"
	actionResults   = "Microsoft.Network/locations/operationResults/read"
	actionStates    = "Microsoft.Network/locations/operations/read"
)

// Actions lists what the hook needs, sorted.
func Actions() []string {
	return []string{actionPools, actionHealth, actionBalancers, actionResults, actionStates}
}

// mends are what to do about errors that retrying does not mend, by their code.
var mends = map[string]string{ //nolint:gosec // no credentials: codes of errors
	"ResourceGroupNotFound":            "name the resource group of the load balancers by --hook-option azure.resource-group=NAME",
	"SubscriptionNotFound":             "log in to its tenant, or name another by --hook-option azure.subscription=ID",
	"InvalidSubscriptionId":            "name the subscription by --hook-option azure.subscription=ID",
	"InvalidAuthenticationTokenTenant": "log in to the tenant of the subscription: az login --tenant TENANT",
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
		return fmt.Errorf("%s: %s: no answer in time: %w", Name, action, ctx.Err())
	}
	var login *azidentity.AuthenticationFailedError
	if errors.As(err, &login) {
		return loginFailed(login)
	}
	if isUnavailable(err) {
		return noCredentials(err)
	}
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		return fmt.Errorf("%s: %s: %w", Name, action, err)
	}
	said := &callError{action: action, answer: answer}
	switch mend := mends[answer.ErrorCode]; {
	case mend != "":
		return lbhooks.Unavailable(Name, fmt.Sprintf("%s: %s (%s)", said.message(), mend, answer.ErrorCode), nil)
	case answer.StatusCode == http.StatusUnauthorized:
		return lbhooks.Unavailable(Name, "the credentials are not valid or expired: log in again ("+answer.ErrorCode+")", nil)
	case answer.StatusCode == http.StatusForbidden:
		denied := &Forbidden{Action: action, Scope: scope}
		if m := required.FindStringSubmatch(answer.Error()); m != nil {
			denied.Action, denied.Scope = m[1], m[2]
		}
		return fmt.Errorf("%s: %w: %w", Name, lbhooks.ErrUnavailable, denied)
	}
	return said
}

// callError is a refusal of Azure, on one line: the SDK's own text has many.
type callError struct {
	action string
	answer *azcore.ResponseError
}

func (e *callError) Error() string {
	text := fmt.Sprintf("%s: %s: %d %s", Name, e.action, e.answer.StatusCode, e.answer.ErrorCode)
	if e.answer.StatusCode < http.StatusMultipleChoices {
		text = fmt.Sprintf("%s: %s: the operation failed: %s", Name, e.action, e.answer.ErrorCode)
	}
	if message := e.message(); message != "" {
		text += ": " + message
	}
	if e.answer.RawResponse != nil {
		if pause := retryAfter(e.answer.RawResponse); pause > 0 {
			text += fmt.Sprintf("; Azure asks to wait %s", pause)
		}
	}
	return text
}

func (e *callError) Unwrap() error { return e.answer }

// message is what Azure says for people, without its full stop; "" when it says nothing.
func (e *callError) message() string {
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	readBody(e.answer.RawResponse, &body)
	return strings.TrimSuffix(firstLine(body.Error.Message), ".")
}

func noCredentials(err error) error {
	return lbhooks.Unavailable(Name, "no credentials: run az login, set AZURE_CLIENT_ID and the like, or give this pod a workload identity: "+firstLine(err.Error()), nil)
}

// unreached is how net/http begins the error of a request without an answer.
var unreached = regexp.MustCompile(`(?:Get|Post) "https?://`)

// loginFailed classifies a login that was tried: refused credentials are permanent; a login service that is down or cannot
// be reached may come back.
func loginFailed(err *azidentity.AuthenticationFailedError) error {
	var body struct {
		Description string `json:"error_description"`
	}
	readBody(err.RawResponse, &body)
	why := firstLine(body.Description)
	if why == "" {
		why = lastLine(err.Error())
	}
	status := 0
	if err.RawResponse != nil {
		status = err.RawResponse.StatusCode
	}
	switch {
	case status >= http.StatusInternalServerError, status == http.StatusTooManyRequests:
		return fmt.Errorf("%s: log in: %d from the login service: %s", Name, status, why)
	case status == 0 && unreached.MatchString(err.Error()):
		return fmt.Errorf("%s: log in: the login service cannot be reached: %s", Name, why)
	}
	return lbhooks.Unavailable(Name, "the credentials do not work: mend AZURE_CLIENT_ID and the like, or log in again: "+why, nil)
}

// isUnavailable reports whether no credential of the chain could be used; the SDK's type for that is not exported.
func isUnavailable(err error) bool {
	var permanent interface{ NonRetriable() }
	return errors.As(err, &permanent) && strings.Contains(err.Error(), "redential")
}

func isNotFound(err error) bool {
	var answer *azcore.ResponseError
	return errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound
}

// readBody reads a JSON body of an error that the SDK has kept, as far as it is one.
func readBody(answer *http.Response, into any) {
	if answer == nil || answer.Body == nil {
		return
	}
	if raw, err := runtime.Payload(answer); err == nil {
		_ = json.Unmarshal(raw, into)
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line)
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndex(text, "\n")+1:])
}

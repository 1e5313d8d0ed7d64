package aws

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/smithy-go"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Actions of IAM that the hook uses, one a call.
const (
	actionGroups     = "elasticloadbalancing:DescribeTargetGroups"
	actionTags       = "elasticloadbalancing:DescribeTags"
	actionHealth     = "elasticloadbalancing:DescribeTargetHealth"
	actionInstances  = "elasticloadbalancing:DescribeInstanceHealth"
	actionDeregister = "elasticloadbalancing:DeregisterTargets"
	actionRegister   = "elasticloadbalancing:RegisterTargets"
)

// ReadActions are the actions of IAM that the hook needs to observe, WriteActions those it needs beside them to
// deregister and register targets itself.
func ReadActions() []string { return []string{actionInstances, actionTags, actionGroups, actionHealth} }

// WriteActions are used only with the option deregister.
func WriteActions() []string { return []string{actionDeregister, actionRegister} }

// anything is the resource of actions that IAM cannot narrow to one resource.
const anything = "*"

// codes of errors that retrying does not mend, besides those about permissions.
var credentialCodes = map[string]string{
	"ExpiredToken":                        "the credentials expired: log in again",
	"ExpiredTokenException":               "the credentials expired: log in again",
	"RequestExpired":                      "the credentials expired, or this machine's clock is wrong",
	"InvalidClientTokenId":                "the credentials are not valid: no such access key",
	"UnrecognizedClientException":         "the credentials are not valid: no such access key",
	"AuthFailure":                         "the credentials are not valid",
	"IncompleteSignature":                 "the credentials are not valid",
	"SignatureDoesNotMatch":               "the credentials are not valid: the secret is wrong",
	"MissingAuthenticationToken":          "no credentials were sent",
	"MissingAuthenticationTokenException": "no credentials were sent",
	"OptInRequired":                       "the account is not enabled for this service or region",
}

// codes that say that a permission is missing.
var permissionCodes = map[string]bool{"AccessDenied": true, "AccessDeniedException": true, "UnauthorizedOperation": true}

// gone are the codes that say that what was asked about is not there.
var gone = map[string]bool{"TargetGroupNotFound": true, "LoadBalancerNotFound": true, "AccessPointNotFound": true}

// Forbidden is the error of a call that IAM denies. It matches lbhooks.ErrUnavailable through what wraps it.
type Forbidden struct {
	Action   string // "elasticloadbalancing:DescribeTargetHealth"
	Resource string // an ARN, or "*" where IAM cannot narrow the action
}

// Error names the action and the resource as a policy would.
func (e *Forbidden) Error() string { return "not allowed " + e.Action + " on " + e.Resource }

// failed classifies the error of a call: what a person has to mend is permanent, anything else may pass. The SDK has
// retried what is worth it before.
func failed(action, resource string, err error) error {
	if errors.Is(err, lbhooks.ErrUnavailable) {
		return err
	}
	call := strings.TrimPrefix(action, "elasticloadbalancing:")
	var answer smithy.APIError
	if !errors.As(err, &answer) {
		return fmt.Errorf("%s: %s: %w", Name, call, err)
	}
	code := answer.ErrorCode()
	switch {
	case permissionCodes[code]:
		denied := &Forbidden{Action: action, Resource: resource}
		return fmt.Errorf("%s: %w: %w (%s)", Name, lbhooks.ErrUnavailable, denied, oneLine(answer.ErrorMessage()))
	case credentialCodes[code] != "":
		return lbhooks.Unavailable(Name, credentialCodes[code]+" ("+code+")", nil)
	}
	return fmt.Errorf("%s: %s: %s: %s: %w", Name, call, code, oneLine(answer.ErrorMessage()), err)
}

// isGone reports whether an error says that a group or a balancer is not there.
func isGone(err error) bool {
	var answer smithy.APIError
	return errors.As(err, &answer) && gone[answer.ErrorCode()]
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

package gcp

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"golang.org/x/oauth2"
	"google.golang.org/api/googleapi"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Permissions of IAM that the hook needs, one for each kind of call.
const (
	permissionBackends  = "compute.regionBackendServices.get"
	permissionNEGs      = "compute.networkEndpointGroups.get"
	permissionInstances = "compute.instanceGroups.list"
	permissionPools     = "compute.targetPools.get"
)

// Permissions lists what the hook needs, sorted.
func Permissions() []string {
	return []string{permissionInstances, permissionNEGs, permissionBackends, permissionPools}
}

// Forbidden is the error of a call that IAM denies. It matches lbhooks.ErrUnavailable through what wraps it.
type Forbidden struct {
	Permission string // "compute.regionBackendServices.get", or the call where Google names none
	Resource   string // "projects/p/regions/r/backendServices/x"
}

// Error names the permission and the resource as a role would.
func (e *Forbidden) Error() string { return "not allowed " + e.Permission + " on " + e.Resource }

// required is how Google names what is missing.
var required = regexp.MustCompile(`Required '([^']+)' permission for '([^']+)'`)

// busy are the reasons of a 403 that is no denial.
var busy = map[string]bool{"rateLimitExceeded": true, "userRateLimitExceeded": true, "quotaExceeded": true, "concurrentLimitExceeded": true}

// failed classifies the error of a call on a resource: what a person has to mend is permanent, anything else may pass.
func failed(call, resource string, err error) error {
	var answer *googleapi.Error
	if !errors.As(err, &answer) {
		if unauthenticated(err) {
			return lbhooks.Unavailable(Name, "the credentials do not work: log in again", err)
		}
		return fmt.Errorf("%s: %s: %w", Name, call, err)
	}
	reason := ""
	if len(answer.Errors) > 0 {
		reason = answer.Errors[0].Reason
	}
	switch {
	case answer.Code == http.StatusUnauthorized:
		return lbhooks.Unavailable(Name, "the credentials are not valid or expired: log in again", nil)
	case answer.Code == http.StatusForbidden && reason == "accessNotConfigured":
		return lbhooks.Unavailable(Name, "the Compute Engine API is not enabled in the project: "+oneLine(answer.Message), nil)
	case answer.Code == http.StatusForbidden && !busy[reason]:
		denied := &Forbidden{Permission: call, Resource: resource}
		if m := required.FindStringSubmatch(answer.Message); m != nil {
			denied.Permission, denied.Resource = m[1], m[2]
		}
		return fmt.Errorf("%s: %w: %w", Name, lbhooks.ErrUnavailable, denied)
	}
	return fmt.Errorf("%s: %s: %d %s: %w", Name, call, answer.Code, reason, err)
}

// unauthenticated reports whether no token could be had.
func unauthenticated(err error) bool {
	var refused *oauth2.RetrieveError
	return errors.As(err, &refused) && refused.Response != nil && refused.Response.StatusCode < http.StatusInternalServerError
}

// resourceOf is the resource that a path is about: the path without the verb at its end.
func resourceOf(path string) string {
	for _, verb := range []string{"/getHealth", "/listNetworkEndpoints", "/listInstances"} {
		path = strings.TrimSuffix(path, verb)
	}
	return path
}

func isNotFound(err error) bool {
	var answer *googleapi.Error
	return errors.As(err, &answer) && answer.Code == http.StatusNotFound
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/safedrain/safedrain/internal/cluster"
)

// connectError is an error on the way to the cluster, with what is needed to say what to do about it.
type connectError struct {
	kube *kube
	err  error
}

func (e *connectError) Error() string { return e.err.Error() }
func (e *connectError) Unwrap() error { return e.err }

// explain returns the text of an error: what failed, on what, and what to do, in one line. Only missing permissions take
// more, since each of them is named.
func (a *app) explain(err error) string {
	var forbidden *cluster.Forbidden
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &forbidden):
		return a.forbiddenText(forbidden)
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.As(err, &status):
		return a.statusText(err)
	}
	if text := a.connectText(err); text != "" {
		return text
	}
	return oneLine(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// statusText explains an answer of the API server.
func (a *app) statusText(err error) string {
	contextName, user := a.kube.where()
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Sprintf("the cluster does not accept the credentials of user %q (context %q): they are wrong or have expired; log in again, then repeat", user, contextName)
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("%s; %s rbac prints the permissions it needs", oneLine(err.Error()), a.name)
	case apierrors.IsServiceUnavailable(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err):
		return fmt.Sprintf("the API server (context %q) is not ready: %s; repeat when it is", contextName, oneLine(err.Error()))
	}
	return oneLine(err.Error())
}

// connectText explains why the cluster cannot be reached; "" when that is not what the error is about.
func (a *app) connectText(err error) string {
	contextName, user := a.kube.where()
	text := oneLine(err.Error())
	var urlErr *url.Error
	var netErr net.Error
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "listen": // the gate's own addresses, nothing of the cluster's
		return text + "; end what listens there, or choose another address: --webhook-port, --health-address, --metrics-address"
	case errors.Is(err, genericclioptions.ErrEmptyConfig), clientcmd.IsEmptyConfig(err):
		return "no cluster: no kubeconfig was found (--kubeconfig, $KUBECONFIG or ~/.kube/config); files are read with plan -f and audit -f"
	case clientcmd.IsContextNotFound(err):
		return text + "; kubectl config get-contexts lists those there are"
	case clientcmd.IsConfigurationInvalid(err):
		return "the kubeconfig is not usable: " + text
	case strings.Contains(text, "getting credentials"):
		return fmt.Sprintf("cannot get credentials for user %q (context %q): %s; log in again, then repeat", user, contextName, text)
	case strings.Contains(text, "x509:") || strings.Contains(text, "tls:"):
		return fmt.Sprintf("the cluster (context %q) and this client do not trust each other: %s; check the certificates in the kubeconfig", contextName, text)
	case errors.As(err, &urlErr), errors.As(err, &netErr):
		return fmt.Sprintf("cannot reach the cluster (context %q): %s; check that it is up and that this machine may reach it", contextName, text)
	}
	return ""
}

// forbiddenText names every permission that is missing, and what to ask for.
func (a *app) forbiddenText(f *cluster.Forbidden) string {
	contextName, user := a.kube.where()
	if f.User != "" {
		user = f.User
	}
	t := table{}
	for _, v := range f.Missing {
		where := "all namespaces"
		if v.Namespace != "" {
			where = v.Namespace
		}
		need := "needed"
		if !v.Needed {
			need = "optional"
			if v.Why != "" {
				need = "optional: " + v.Why
			}
		}
		t.row("  "+v.String(), where, need)
	}
	name := "safedrain-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(user))
	return fmt.Sprintf("user %q (context %q) may not\n%sNext: ask an admin for\n  %s rbac --read-only | kubectl apply -f -\n  kubectl create clusterrolebinding %s --clusterrole=%s --user=%s",
		user, contextName, t.String(), a.name, strings.Trim(name, "-"), roleReadOnly, quoted(user))
}

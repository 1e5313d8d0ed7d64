package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/safedrain/safedrain/internal/cluster"
)

// kube is the way to the cluster that kubectl's own flags and kubeconfig name.
type kube struct {
	flags *genericclioptions.ConfigFlags
	// connect makes the clients; nil: those of the kubeconfig.
	connect func() (*cluster.Clients, error)
	// warnings is where those of the API server go.
	warnings io.Writer
}

// kubeconfigShown are the flags of kubectl that the usage lists; the others work and are hidden.
var kubeconfigShown = []string{"kubeconfig", "context", "namespace", "request-timeout", "as", "as-group"}

func (k *kube) bind(fs *pflag.FlagSet) {
	k.flags.AddFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || !slices.Contains(kubeconfigShown, f.Name) })
}

// config reads the kubeconfig.
func (k *kube) config() (*rest.Config, error) {
	c, err := k.flags.ToRESTConfig()
	if err == nil && k.nowhere(c) {
		err = genericclioptions.ErrEmptyConfig
	}
	if err != nil {
		return nil, &connectError{kube: k, err: err}
	}
	c.WarningHandler = rest.NewWarningWriter(k.warnings, rest.WarningWriterOptions{Deduplicate: true})
	return c, nil
}

// nowhere reports whether a config is only what client-go falls back to when nothing names a cluster: port 8080 of this
// machine, where hardly ever one is.
func (k *kube) nowhere(c *rest.Config) bool {
	raw, err := k.flags.ToRawKubeConfigLoader().RawConfig()
	named := k.flags.APIServer != nil && *k.flags.APIServer != ""
	return err == nil && !named && len(raw.Clusters) == 0 && c.Host == clientcmd.ClusterDefaults.Server
}

// clients returns the clients of the cluster.
func (k *kube) clients() (*cluster.Clients, error) {
	if k.connect != nil {
		return k.connect()
	}
	config, err := k.config()
	if err != nil {
		return nil, err
	}
	c, err := cluster.NewClients(config)
	if err != nil {
		return nil, &connectError{kube: k, err: err}
	}
	return c, nil
}

// nodeNames lists the nodes that a selector matches, sorted.
func (k *kube) nodeNames(ctx context.Context, selector labels.Selector) ([]string, error) {
	return k.nodesThat(ctx, selector, func(*corev1.Node) bool { return true })
}

// nodesThat lists the nodes that a selector matches and of which a condition holds, sorted.
func (k *kube) nodesThat(ctx context.Context, selector labels.Selector, holds func(*corev1.Node) bool) ([]string, error) {
	c, err := k.clients()
	if err != nil {
		return nil, err
	}
	var names []string
	options := metav1.ListOptions{LabelSelector: selector.String(), Limit: 500}
	for {
		page, err := c.Kubernetes.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, &connectError{kube: k, err: err}
		}
		for i := range page.Items {
			if holds(&page.Items[i]) {
				names = append(names, page.Items[i].Name)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return sorted(names), nil
		}
	}
}

// where names the context and the user, for messages.
func (k *kube) where() (contextName, userName string) {
	raw, err := k.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return "", ""
	}
	contextName = raw.CurrentContext
	if c := k.flags.Context; c != nil && *c != "" {
		contextName = *c
	}
	if c, ok := raw.Contexts[contextName]; ok {
		userName = c.AuthInfo
	}
	if u := k.flags.AuthInfoName; u != nil && *u != "" {
		userName = *u
	}
	if u := k.flags.Impersonate; u != nil && *u != "" {
		userName = *u
	}
	return contextName, userName
}

// holder is user@host, for the messages of other people's runs.
func holder() string {
	name := "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	} else if env := os.Getenv("USER"); env != "" {
		name = env
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s@%s", name, host)
}

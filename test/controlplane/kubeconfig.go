package controlplane

import (
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	adminUser = "admin"
	masters   = "system:masters"
)

// Config returns a client configuration that may do everything. It is not throttled on the client's side; as a member
// of system:masters it is exempt from priority and fairness too.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.admin) }

// UserConfig returns the client configuration of a user. RBAC holds for it: it may do nothing until a binding says so.
func (c *Cluster) UserConfig(user string, groups ...string) (*rest.Config, error) {
	return c.userConfig(user, groups, c.authority.cert.NotAfter)
}

// ExpiredConfig returns the client configuration of a user whose credentials ran out a minute ago.
func (c *Cluster) ExpiredConfig(user string, groups ...string) (*rest.Config, error) {
	return c.userConfig(user, groups, time.Now().Add(-time.Minute))
}

func (c *Cluster) userConfig(user string, groups []string, notAfter time.Time) (*rest.Config, error) {
	id, err := c.authority.client(user, groups, notAfter)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            "https://" + c.address(APIServer),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.pem, CertData: id.cert, KeyData: id.key},
		QPS:             -1,
	}, nil
}

// Kubeconfig writes a kubeconfig file that may do everything.
func (c *Cluster) Kubeconfig(path string) error { return WriteKubeconfig(c.admin, path) }

// WriteKubeconfig writes a client configuration of this package as a kubeconfig file.
func WriteKubeconfig(config *rest.Config, path string) error {
	const name = "safedrain-test"
	file := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{
			name: {Server: config.Host, CertificateAuthorityData: config.CAData},
		},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			name: {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData},
		},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
	data, err := clientcmd.Write(file)
	if err != nil {
		return fmt.Errorf("encode a kubeconfig: %w", err)
	}
	return os.WriteFile(path, data, 0o600)
}

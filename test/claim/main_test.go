package claim

import (
	"context"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/safedrain/safedrain/test/controlplane"
)

// cluster is an API server and nothing else: nobody but the claimers writes nodes.
var cluster *controlplane.Cluster

func TestMain(m *testing.M) {
	os.Exit(controlplane.Main(m, controlplane.Options{
		WithoutKwok: true, WithoutScheduler: true, WithoutControllerManager: true,
	}, func(c *controlplane.Cluster) { cluster = c }))
}

// clientOf returns a client with connections of its own, as every process has them.
func clientOf(t testing.TB, user string) kubernetes.Interface {
	t.Helper()
	config, err := cluster.UserConfig(user, "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// nodesOf reads nodes by their names, without what every write changes.
func nodesOf(ctx context.Context, client kubernetes.Interface, names []string) (map[string]*corev1.Node, error) {
	all := map[string]*corev1.Node{}
	for _, name := range names {
		n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read node %q: %w", name, err)
		}
		n.ResourceVersion, n.ManagedFields = "", nil
		all[name] = n
	}
	return all, nil
}

// Package controlplane runs a real Kubernetes control plane for tests: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler as child processes on loopback ports, and kwok, which plays the kubelets of any number of nodes.
//
// The programs are built from their Go modules on first use (see [Binaries]). A cluster needs no root, no container
// engine, no network beyond loopback and no terminal; several run side by side.
//
// A package of tests usually shares one cluster and gives each test its own namespace and nodes:
//
//	var cluster *controlplane.Cluster
//
//	func TestMain(m *testing.M) {
//		os.Exit(controlplane.Main(m, controlplane.Options{}, func(c *controlplane.Cluster) { cluster = c }))
//	}
//
//	func TestDrain(t *testing.T) {
//		env := cluster.Env(t)
//		nodes := env.Nodes(3)
//		env.Deployment("web", 3)
//		...
//	}
package controlplane

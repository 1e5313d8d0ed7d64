package controlplane

import (
	"path/filepath"
	"strconv"
	"strings"
)

// argv returns the command line of a program of this cluster.
func (c *Cluster) argv(name string) ([]string, error) {
	path, args, err := c.programs.command(name)
	if err != nil {
		return nil, err
	}
	argv := append([]string{path}, args...)
	switch name {
	case Etcd:
		argv = append(argv, c.etcdFlags()...)
	case APIServer:
		argv = append(argv, c.apiserverFlags()...)
	case ControllerManager:
		argv = append(argv, c.controllerManagerFlags()...)
	case Scheduler:
		argv = append(argv, c.schedulerFlags()...)
	case Kwok:
		argv = append(argv, c.kwokFlags()...)
	}
	return argv, nil
}

func (c *Cluster) etcdFlags() []string {
	client, peer := "http://"+c.ports[Etcd].address(), "http://"+c.ports[etcdPeer].address()
	return []string{
		"--data-dir=" + filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
	}
}

func (c *Cluster) apiserverFlags() []string {
	return append([]string{
		"--etcd-servers=http://" + c.ports[Etcd].address(),
		"--bind-address=" + c.options.Address, "--advertise-address=" + c.options.Address, "--secure-port=" + c.ports[APIServer].String(),
		"--tls-cert-file=" + c.file("server.crt"), "--tls-private-key-file=" + c.file("server.key"),
		"--client-ca-file=" + c.file("ca.crt"),
		"--service-account-key-file=" + c.file("sa.key"), "--service-account-signing-key-file=" + c.file("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--authorization-mode=Node,RBAC", "--allow-privileged", "--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
		// Pods need no token here, and nodes may be used as soon as they are created.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
	}, c.options.APIServerFlags...)
}

func (c *Cluster) controllerManagerFlags() []string {
	controllers := append([]string{"*"}, c.options.Controllers...)
	return []string{
		"--kubeconfig=" + c.file(ControllerManager+".kubeconfig"), "--leader-elect=false",
		"--bind-address=127.0.0.1", "--secure-port=" + c.ports[ControllerManager].String(),
		"--tls-cert-file=" + c.file("server.crt"), "--tls-private-key-file=" + c.file("server.key"),
		"--service-account-private-key-file=" + c.file("sa.key"), "--root-ca-file=" + c.file("ca.crt"),
		"--use-service-account-credentials", "--controllers=" + strings.Join(controllers, ","),
		"--horizontal-pod-autoscaler-sync-period=" + c.options.HPASyncPeriod.String(),
		"--node-monitor-grace-period=24h", // no kubelet renews a lease here
		"--kube-api-qps=1000", "--kube-api-burst=2000",
	}
}

func (c *Cluster) schedulerFlags() []string {
	return []string{
		"--config=" + c.file("scheduler.yaml"), "--bind-address=127.0.0.1", "--secure-port=" + c.ports[Scheduler].String(),
		"--tls-cert-file=" + c.file("server.crt"), "--tls-private-key-file=" + c.file("server.key"),
	}
}

// schedulerConfig holds what the scheduler takes from a file only.
func (c *Cluster) schedulerConfig() string {
	return `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: ` + strconv.Quote(c.file(Scheduler+".kubeconfig")) + `
  qps: 1000
  burst: 2000
`
}

func (c *Cluster) kwokFlags() []string {
	return []string{
		"--kubeconfig=" + c.file(Kwok+".kubeconfig"), "--config=" + c.file("stages.yaml"),
		"--manage-all-nodes=true", "--node-lease-duration-seconds=0",
		"--cidr=10.244.0.0/16", "--node-ip=10.0.0.1",
	}
}

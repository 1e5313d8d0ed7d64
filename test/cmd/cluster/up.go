package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/controlplane"
)

// up starts the cluster and records its processes before anything else can fail.
func up(ctx context.Context, example string) error {
	cache, err := controlplane.CacheDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return err
	}
	before, err := readState(cache)
	if err != nil {
		return err
	}
	if before != nil && len(before.alive()) > 0 {
		return fmt.Errorf("a cluster is up: export KUBECONFIG=%s, or end it with `make cluster-down`", before.Kubeconfig)
	}
	dir, err := os.MkdirTemp("", "safedrain-cluster-")
	if err != nil {
		return err
	}
	started := time.Now()
	c, err := controlplane.Start(ctx, controlplane.Options{Detached: true, Dir: dir})
	if err != nil {
		return err
	}
	state := &state{Dir: dir, Kubeconfig: filepath.Join(dir, "kubeconfig"), PIDs: c.PIDs()}
	err = errors.Join(state.write(cache), c.Kubeconfig(state.Kubeconfig))
	if err == nil {
		err = populate(ctx, c, state, example)
	}
	if err != nil {
		return errors.Join(err, c.Stop(context.WithoutCancel(ctx)), state.remove(cache))
	}
	_, err = fmt.Fprintf(os.Stdout, "cluster up in %s, logs in %s\nexport KUBECONFIG=%s\nkubectl: %s\n",
		time.Since(started).Round(time.Second), dir, state.Kubeconfig, filepath.Join(c.Programs().Dir(), "kubectl"))
	return err
}

// populate makes the nodes and applies the example.
func populate(ctx context.Context, c *controlplane.Cluster, s *state, example string) error {
	nodes := []*corev1.Node{controlplane.Node("cp-1"), controlplane.Node("node-1"), controlplane.Node("node-2"), controlplane.Node("node-3")}
	nodes[0].Labels["node-role.kubernetes.io/control-plane"] = ""
	nodes[0].Labels[corev1.LabelNodeExcludeBalancers] = ""
	nodes[0].Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	for i, node := range nodes {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.0.1%d", i)})
		if _, err := c.Client().CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create node %q: %w", node.Name, err)
		}
	}
	if example == "" {
		return nil
	}
	kubectl, err := c.Programs().Kubectl()
	if err != nil {
		return err
	}
	manifests := filepath.Join(example, "manifests.yaml")
	for _, args := range [][]string{
		{"apply", "-f", manifests},
		{"wait", "--for=condition=Available", "deployment", "--all", "--all-namespaces", "--timeout=60s"},
	} {
		cmd := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig", s.Kubeconfig}, args...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apply the example %q: %w", manifests, err)
		}
	}
	return nil
}

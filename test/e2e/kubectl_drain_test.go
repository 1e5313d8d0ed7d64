package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/controlplane"
)

// situation is what stands on a node and what a drain of it comes to.
type situation struct {
	pods    func(e *controlplane.Env, app, node string)
	args    []string
	refused string // the flag that is missing; "" when the node is drained
	stay    int    // pods that are there afterwards
}

// situations are those of kubectl drain's own tests.
var situations = map[string]situation{
	"pod of a ReplicationController": {pods: replicationController},
	"pod of a DaemonSet": {
		pods: func(e *controlplane.Env, app, node string) { daemonSet(e, app, node) }, refused: "--ignore-daemonsets", stay: 1,
	},
	"finished pod of a DaemonSet": {pods: daemonSetPodFinished},
	"orphan of a DaemonSet":       {pods: daemonSetPodOrphaned, refused: "--force", stay: 1},
	"orphan of a DaemonSet, --force": {
		pods: daemonSetPodOrphaned, args: []string{"--force"},
	},
	"pod of a DaemonSet, --ignore-daemonsets": {
		pods: func(e *controlplane.Env, app, node string) { daemonSet(e, app, node) },
		args: []string{"--ignore-daemonsets"}, stay: 1,
	},
	"pod of a DaemonSet with emptyDir, --ignore-daemonsets": {
		pods: func(e *controlplane.Env, app, node string) { daemonSet(e, app, node, withEmptyDir) },
		args: []string{"--ignore-daemonsets"}, stay: 1,
	},
	"pod of a Job with emptyDir, --force --delete-emptydir-data": {
		pods: func(e *controlplane.Env, app, node string) { job(e, app, node, withEmptyDir) },
		args: []string{"--force", "--delete-emptydir-data=true"},
	},
	"finished pod of a Job with emptyDir": {
		pods: func(e *controlplane.Env, app, node string) {
			pod := job(e, app, node, withEmptyDir)
			finish(e, &pod, corev1.PodSucceeded)
		},
	},
	"pod of a ReplicaSet": {pods: replicaSet},
	"bare pod": {
		pods: func(e *controlplane.Env, app, node string) { e.Pod(app, node) }, refused: "--force", stay: 1,
	},
	"bare pod, --force": {
		pods: func(e *controlplane.Env, app, node string) { e.Pod(app, node) }, args: []string{"--force"},
	},
	"pod with emptyDir, --force": {
		pods: func(e *controlplane.Env, app, node string) { e.Pod(app, node, withEmptyDir) },
		args: []string{"--force"}, refused: "--delete-emptydir-data", stay: 1,
	},
	"failed pod with emptyDir": {
		pods: func(e *controlplane.Env, app, node string) {
			finish(e, e.Pod(app, node, withEmptyDir), corev1.PodFailed)
		},
	},
	"pod with emptyDir, --force --delete-emptydir-data": {
		pods: func(e *controlplane.Env, app, node string) { e.Pod(app, node, withEmptyDir) },
		args: []string{"--force", "--delete-emptydir-data"},
	},
	"empty node": {pods: func(*controlplane.Env, string, string) {}},
	"mirror pod": {
		pods: func(e *controlplane.Env, app, node string) {
			e.Pod(app, node, controlplane.With(map[string]string{corev1.MirrorPodAnnotationKey: "x"}))
		}, stay: 1,
	},
	"terminating bare pod, --force": {
		pods: func(e *controlplane.Env, app, node string) {
			e.Pod(app, node, terminatesAfter(2))
			kubectl(e, "-n", e.Namespace, "delete", "pod", app, "--wait=false")
		},
		args: []string{"--force"},
	},
}

// TestDrainAsKubectl makes each situation on two nodes, drains one with kubectl and one with safedrain, and wants both to
// refuse or both to drain, with the same pods left. The deliberate differences are in docs/kubectl.md: safedrain refuses
// with exit code 3 before it cordons, kubectl with 1 after it.
func TestDrainAsKubectl(t *testing.T) {
	for name, s := range situations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := cluster.Env(t)
			nodes := e.Nodes(2)
			s.pods(e, "ours", nodes[0])
			s.pods(e, "theirs", nodes[1])
			s.kubectl(e, nodes[1])
			s.safedrain(e, nodes[0])
		})
	}
}

func (s *situation) kubectl(e *controlplane.Env, node string) {
	e.Helper()
	args := append([]string{"drain", node, "--timeout=100s"}, s.args...)
	stdout, stderr, code := program{path: kubectlBin, kubeconfig: kubeconfig}.run(e, args...)
	if drained := code == 0; drained != (s.refused == "") || drained != strings.Contains(stdout, "node/"+node+" drained") {
		e.Errorf("kubectl: exit code %d\n%s%s", code, stdout, stderr)
	}
	if !strings.Contains(stderr, s.refused) || !getNode(e, node).Spec.Unschedulable {
		e.Errorf("kubectl: want a cordoned node and %q\n%s", s.refused, stderr)
	}
	if pods := podsOn(e, node); len(pods) != s.stay {
		e.Errorf("kubectl left %d pods, want %d", len(pods), s.stay)
	}
}

func (s *situation) safedrain(e *controlplane.Env, node string) {
	e.Helper()
	before := nodeAtRest(e, node)
	stdout, stderr, code := run(e, append([]string{node, "--timeout=100s"}, s.args...)...)
	if pods := podsOn(e, node); len(pods) != s.stay {
		e.Errorf("safedrain left %d pods, want %d", len(pods), s.stay)
	}
	after := getNode(e, node)
	if s.refused != "" {
		if code != 3 || !strings.Contains(stderr, s.refused) || stdout != "" {
			e.Errorf("safedrain: exit code %d, want 3 and %s\n%s%s", code, s.refused, stdout, stderr)
		}
		wantNodeAsBefore(e, before, after)
		return
	}
	if code != 0 || !after.Spec.Unschedulable {
		e.Errorf("safedrain: exit code %d, want 0\n%s%s", code, stdout, stderr)
	}
	for _, line := range []string{"node/" + node + " cordoned\n", "node/" + node + " drained\n"} {
		if !strings.Contains(stdout, line) {
			e.Errorf("safedrain: stdout lacks %q\n%s", line, stdout)
		}
	}
}

package guard

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// propagation is how long kube-proxy takes to turn its health check after an eviction: the slice's update and the
// proxy's minSyncPeriod of 1 s. Measured at 0.1 s to 1.6 s.
const propagation = 2 * time.Second

// removalTime is how long after the eviction of a node's last pod a balancer that probes healthCheckNodePort goes on
// sending to the node, at worst.
func (h *HealthCheck) removalTime() time.Duration {
	return propagation + h.Time()
}

// Time is how long a check has to fail, at worst, until its balancer has taken the node out.
func (h *HealthCheck) Time() time.Duration { return time.Duration(h.Unhealthy)*h.Interval + h.Timeout }

// String says how the balancer checks, and who said so.
func (h *HealthCheck) String() string {
	return fmt.Sprintf("every %s, out after %d failures, timeout %s (%s)", h.Interval, h.Unhealthy, h.Timeout, h.Source)
}

// servesAfterEviction is how long a pod provably goes on accepting connections after its eviction: the sleep of its
// preStop hooks, cut off by its grace. What the program does after SIGTERM nobody can know from the outside, so it
// counts as nothing; of several containers the shortest counts, since any of them may be the one that serves.
func servesAfterEviction(pod *corev1.Pod, grace time.Duration) time.Duration {
	shortest := grace
	for i := range pod.Spec.Containers {
		shortest = min(shortest, preStopSleep(&pod.Spec.Containers[i]))
	}
	return shortest
}

func preStopSleep(c *corev1.Container) time.Duration {
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Sleep == nil {
		return 0
	}
	return time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
}

package dataplane

import (
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// What the program that serves in the pods reads from its environment; see [SIGTERM] and package server.
const (
	// EnvSIGTERM says what the server does at SIGTERM: "exit", "close:5s" or "keep:5s".
	EnvSIGTERM = "DATAPLANE_SIGTERM"
	// EnvPort is the port that the server listens on when the container names none; 8080 when it is not set.
	EnvPort = "DATAPLANE_PORT"
	// DefaultPort is where the server of a pod listens.
	DefaultPort = 8080
)

// Annotations on a pod that the agent honours.
const (
	// Ready: "false" makes a running pod not Ready; taken away or changed, the pod becomes Ready again.
	Ready = "test.safedrain.dev/ready"
	// ReadyAfter: the seconds from the start of the pod until it is Ready.
	ReadyAfter = "test.safedrain.dev/ready-after"
)

// Answer is what the server in a pod answers to a GET of any path, as JSON. The query "sleep" (a Go duration) delays it.
type Answer struct {
	Pod       string         `json:"pod"`
	Namespace string         `json:"namespace"`
	Node      string         `json:"node"`
	Client    netip.AddrPort `json:"client"` // the other end of the connection as the pod sees it
}

// SIGTERM is what the server in a pod does when it is asked to end.
type SIGTERM string

// AtOnce closes the listener, finishes the answers in flight and exits: what most servers do.
const AtOnce SIGTERM = "exit"

// CloseListener refuses new connections at once, serves the open ones for d, then exits.
func CloseListener(d time.Duration) SIGTERM { return SIGTERM("close:" + d.String()) }

// KeepAccepting goes on as if nothing had happened for d, then exits as AtOnce does.
func KeepAccepting(d time.Duration) SIGTERM { return SIGTERM("keep:" + d.String()) }

// PodOption changes the template of a pod.
type PodOption func(*corev1.PodTemplateSpec)

// WithSIGTERM sets what the server does at SIGTERM.
func WithSIGTERM(s SIGTERM) PodOption { return WithEnv(EnvSIGTERM, string(s)) }

// WithEnv sets an environment variable in the first container.
func WithEnv(name, value string) PodOption {
	return func(t *corev1.PodTemplateSpec) {
		c := &t.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
}

// WithPreStop lets the pod sleep, serving, between its deletion and SIGTERM.
func WithPreStop(d time.Duration) PodOption {
	return func(t *corev1.PodTemplateSpec) {
		t.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: int64(d.Seconds())}},
		}
	}
}

// WithGrace sets the termination grace period, 30 seconds by default.
func WithGrace(d time.Duration) PodOption {
	return func(t *corev1.PodTemplateSpec) {
		seconds := int64(d.Seconds())
		t.Spec.TerminationGracePeriodSeconds = &seconds
	}
}

// WithReadyAfter delays readiness after the start of the pod, in whole seconds.
func WithReadyAfter(d time.Duration) PodOption {
	return WithAnnotation(ReadyAfter, strconv.Itoa(int(d.Seconds())))
}

// WithAnnotation sets an annotation.
func WithAnnotation(key, value string) PodOption {
	return func(t *corev1.PodTemplateSpec) {
		if t.Annotations == nil {
			t.Annotations = map[string]string{}
		}
		t.Annotations[key] = value
	}
}

// WithLabel sets a label.
func WithLabel(key, value string) PodOption {
	return func(t *corev1.PodTemplateSpec) { t.Labels[key] = value }
}

// WithHostNetwork puts the pods into the namespaces of their nodes.
func WithHostNetwork() PodOption {
	return func(t *corev1.PodTemplateSpec) { t.Spec.HostNetwork = true }
}

// WithSpread asks the scheduler for pods on different nodes where it can: a replacement is never left Pending by it.
func WithSpread() PodOption { return spread(corev1.ScheduleAnyway) }

// WithSpec changes the pod's template in any other way.
func WithSpec(change func(*corev1.PodTemplateSpec)) PodOption { return change }

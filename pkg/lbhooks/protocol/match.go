package protocol

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Rotation is that of a Service whose balancer only the hook knows. Which nodes it sends to, the annotation
// safedrain.dev/nodes says; else it may be any, whether or not there is an endpoint. With policy Cluster every node serves,
// so every node is taken to be used; with policy Local the balancer may know by a check of its own where an endpoint is.
func Rotation(hook, evidence string, svc *corev1.Service) lbhooks.Rotation {
	in := lbhooks.Yes
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		in = lbhooks.Unknown
	}
	return lbhooks.Rotation{
		Hook: hook, Evidence: evidence, Removal: lbhooks.RemovalHook, Provable: true,
		Rest: lbhooks.Seat{In: in, Eligible: true, Why: hook + " is asked when the node is to leave"},
	}
}

// NotConfigured is the rotation of a Service that names a hook that nobody has configured here: it cannot do anything.
func NotConfigured(hook string, cause error, svc *corev1.Service) lbhooks.Rotation {
	r := Rotation(hook, "", svc)
	r.Removal, r.Provable, r.Broken = lbhooks.RemovalNone, false, cause.Error()
	return r
}

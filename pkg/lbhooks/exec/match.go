package execcmd

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// Match takes no Service by itself: nothing in a cluster shows a balancer that only a command knows.
func (h *Hook) Match(*corev1.Service, lbhooks.Objects) (lbhooks.Rotation, bool) {
	return lbhooks.Rotation{}, false
}

// Assert returns the rotation of a Service that names this hook.
func (h *Hook) Assert(svc *corev1.Service, _ lbhooks.Objects) lbhooks.Rotation {
	if err := h.Configured(); err != nil && !h.offline {
		return protocol.NotConfigured(h.name, err, svc)
	}
	return protocol.Rotation(h.name, "the command of "+h.name+" works this balancer", svc)
}

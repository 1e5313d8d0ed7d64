package servicelb

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Prove makes one observation: no address of the node is listed in the Service's status. It can only come true once the
// node has no ready endpoint left.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.client == nil {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, "there is no API server to ask", nil)
	}
	svc, err := h.client.CoreV1().Services(t.Service.Namespace).Get(ctx, t.Service.Name, metav1.GetOptions{})
	if err != nil {
		return lbhooks.Proof{}, lbhooks.ReadFailed(Name, "get", "services", err)
	}
	own := lbhooks.NodeAddresses(t.Node)
	if len(own) == 0 {
		return lbhooks.Proof{Evidence: "node " + t.Node.Name + " has no address to look for"}, nil
	}
	listed := lbhooks.Addresses(svc)
	for _, addr := range own {
		if slices.Contains(listed, addr) {
			return lbhooks.Proof{Evidence: fmt.Sprintf("status.loadBalancer still lists %s", addr)}, nil
		}
	}
	return lbhooks.Proof{Out: true, Evidence: fmt.Sprintf("status.loadBalancer lists %d addresses, none of %s", len(listed), t.Node.Name)}, nil
}

package cloudprovider

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// reasons are the events of the service controller that tell what became of an update, and what to say of them.
var reasons = map[string]string{
	"UpdatedLoadBalancer":      "the controller updated the balancer's nodes",
	"UpdateLoadBalancerFailed": "the controller could not update the balancer",
	"UnAvailableLoadBalancer":  "the balancer has no node left",
	"SyncLoadBalancerFailed":   "the controller could not sync the balancer",
}

// Prove never says that the node is out: the controller's events say that a call to the cloud returned, not that the
// balancer stopped sending. They are the evidence.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	if h.client == nil {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, "there is no API server to ask", nil)
	}
	selector := fields.Set{"involvedObject.kind": "Service", "involvedObject.name": t.Service.Name}
	if t.Service.UID != "" {
		selector["involvedObject.uid"] = string(t.Service.UID)
	}
	list, err := h.client.CoreV1().Events(t.Service.Namespace).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	switch {
	case apierrors.IsForbidden(err):
		return lbhooks.Proof{Evidence: "nothing confirms that the node left; events may not be read"}, nil
	case err != nil:
		return lbhooks.Proof{}, lbhooks.ReadFailed(Name, "list", "events", err)
	}
	last, when := newest(list.Items)
	if last == nil {
		return lbhooks.Proof{Evidence: "nothing confirms that the node left; no event of the service controller"}, nil
	}
	return lbhooks.Proof{Evidence: fmt.Sprintf("nothing confirms that the node left; %s at %s (event %s)",
		reasons[last.Reason], when.UTC().Format(time.RFC3339), last.Reason)}, nil
}

// newest returns the last event of the service controller.
func newest(events []corev1.Event) (*corev1.Event, time.Time) {
	var last *corev1.Event
	var when time.Time
	for i := range events {
		e := &events[i]
		at := e.LastTimestamp.Time
		if e.Series != nil {
			at = e.Series.LastObservedTime.Time
		}
		if at.IsZero() {
			at = e.EventTime.Time
		}
		if reasons[e.Reason] != "" && (last == nil || at.After(when)) {
			last, when = e, at
		}
	}
	return last, when
}

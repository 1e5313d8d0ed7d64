package hooks

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/cloudprovider"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// cloud is a cloud of which nothing can be seen but the events of the service controller.
type cloud struct {
	*reader

	scene *scene
	hook  lbhooks.Hook
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	s := newScene(t)
	c := &cloud{scene: s, reader: newReader(t, s.Env, cloudprovider.New(nil).Describe().Needs)}
	c.hook = cloudprovider.New(c.kubernetes)
	return c
}

func (c *cloud) Hook() lbhooks.Hook     { return c.hook }
func (c *cloud) Target() lbhooks.Target { return c.scene.target() }

func (c *cloud) Traits() hooktest.Traits {
	return hooktest.Traits{
		States: []hooktest.State{hooktest.Moving, hooktest.Nobody},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Slow}, Slowness: slowness,
	}
}

// Show records that the controller called the cloud, as it does whatever became of that.
func (c *cloud) Show(ctx context.Context, s hooktest.State) error {
	return c.event(ctx, map[hooktest.State]string{
		hooktest.In: "UpdatedLoadBalancer", hooktest.Out: "UpdatedLoadBalancer",
		hooktest.Moving: "UpdateLoadBalancerFailed", hooktest.Nobody: "UnAvailableLoadBalancer",
	}[s])
}

func (c *cloud) event(ctx context.Context, reason string) error {
	svc := c.scene.service
	_, err := c.scene.Client.CoreV1().Events(svc.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", svc.Name, time.Now().UnixNano())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID,
		},
		Reason: reason, Type: corev1.EventTypeNormal, FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	}, metav1.CreateOptions{})
	return err
}

func TestCloudProvider(t *testing.T) {
	hooktest.Run(t, func(t *testing.T) hooktest.Balancer { return newCloud(t) })
}

// What the controller's events say is told, and only those of this very Service; without the right to read them that is told.
func TestCloudProviderEvidence(t *testing.T) {
	c := newCloud(t)
	prove := func(says string) {
		t.Helper()
		p, err := c.hook.Prove(t.Context(), c.Target())
		wantEvidence(t, p, err, false, says)
	}
	prove("no event of the service controller")
	other := *c.scene.service
	other.UID = "6f9a1c52-0000-0000-0000-000000000000"
	c.scene.service = &other
	c.must(c.event(t.Context(), "UpdatedLoadBalancer"))
	c.scene.read()
	prove("no event of the service controller")
	c.must(c.event(t.Context(), "UpdateLoadBalancerFailed"))
	prove("could not update")
	c.unbind()
	prove("may not be read")
}

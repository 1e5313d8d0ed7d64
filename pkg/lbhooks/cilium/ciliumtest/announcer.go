package ciliumtest

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/cilium"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// AnnouncerConfig is what an Announcer is made of.
type AnnouncerConfig struct {
	Writer   kubernetes.Interface
	Reader   kubernetes.Interface // what the hook reads with
	Target   lbhooks.Target       // a Service of policy Cluster
	Other    string               // the node that takes over
	Fail     func(hooktest.Fault)
	Slowness int
}

// Announcer is Cilium's L2 announcement of one Service as a test tells it: it writes the Lease that its agents hold.
type Announcer struct {
	config AnnouncerConfig
	hook   lbhooks.Hook
}

var _ hooktest.Balancer = (*Announcer)(nil)

// NewAnnouncer returns an announcer that shows nothing yet.
func NewAnnouncer(c AnnouncerConfig) *Announcer {
	return &Announcer{config: c, hook: cilium.NewL2(c.Reader, clock.RealClock{})}
}

// Hook returns the hook.
func (a *Announcer) Hook() lbhooks.Hook { return a.hook }

// Target is the Service and the node.
func (a *Announcer) Target() lbhooks.Target { return a.config.Target }

// Fail makes the hook's reads fail.
func (a *Announcer) Fail(f hooktest.Fault) { a.config.Fail(f) }

// Traits of the announcer: one node has the address, and the hook names it.
func (a *Announcer) Traits() hooktest.Traits {
	return hooktest.Traits{
		Witness: true, Slowness: a.config.Slowness, By: a.config.Other,
		States: []hooktest.State{hooktest.Moving, hooktest.Lying, hooktest.Nobody},
		Faults: []hooktest.Fault{hooktest.Flaky, hooktest.Forbidden, hooktest.Slow},
	}
}

// LeaseName is the name of a Service's Lease, pkg/l2announcer of Cilium; it is in Cilium's namespace, kube-system.
func LeaseName(t lbhooks.Target) string {
	return "cilium-l2announce-" + t.Service.Namespace + "-" + t.Service.Name
}

// Show writes a state. In: the node holds the Lease. Moving: it released it, and nobody holds it. Out: the other node holds
// it. Lying: the other is said to hold it, and has not renewed it for long. Nobody: there is no Lease.
func (a *Announcer) Show(ctx context.Context, s hooktest.State) error {
	holder, age := a.config.Other, time.Duration(0)
	switch s {
	case hooktest.In:
		holder = a.config.Target.Node.Name
	case hooktest.Moving:
		holder = ""
	case hooktest.Lying:
		age = time.Hour
	case hooktest.Out, hooktest.Nobody:
	}
	leases := a.config.Writer.CoordinationV1().Leases(metav1.NamespaceSystem)
	if err := leases.Delete(ctx, LeaseName(a.config.Target), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if s == hooktest.Nobody {
		return nil
	}
	seconds, at := int32(60), metav1.NewMicroTime(time.Now().Add(-age))
	_, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: LeaseName(a.config.Target)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &at},
	}, metav1.CreateOptions{})
	return err
}

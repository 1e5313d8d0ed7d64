// Package lease reads the Leases by which balancers elect the node that announces an address, and tells whether a holder
// is alive.
package lease

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Need is what a hook that reads Leases needs.
func Need(why string) lbhooks.Need {
	return lbhooks.Need{
		Group: coordinationv1.GroupName, Version: "v1", Resource: "leases", Kind: "Lease", Namespaced: true,
		Verbs: []string{"list", "get"}, Why: why,
	}
}

// defaultDuration stands for a Lease that names no duration: client-go's usual one.
const defaultDuration = 15 * time.Second

// Reader reads Leases for one hook.
type Reader struct {
	hook     string
	client   kubernetes.Interface
	clock    clock.PassiveClock
	renewals *Renewals
}

// NewReader returns a reader; hook is the name that errors bear.
func NewReader(hook string, client kubernetes.Interface, clk clock.PassiveClock) *Reader {
	return &Reader{hook: hook, client: client, clock: clk, renewals: NewRenewals(clk)}
}

// Held is a Lease as one look shows it.
type Held struct {
	Found    bool
	Holder   string // "" when nobody holds it
	Fresh    bool   // its holder renewed it within the Lease's duration
	Evidence string // what was seen, for people
}

// Get looks at a Lease. One that is not there is no error.
func (r *Reader) Get(ctx context.Context, key types.NamespacedName) (Held, error) {
	lease, err := r.client.CoordinationV1().Leases(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Held{Evidence: fmt.Sprintf("there is no Lease %s", key)}, nil
	case err != nil:
		return Held{}, lbhooks.ReadFailed(r.hook, "get", "leases.coordination.k8s.io", err)
	}
	held := Held{Found: true}
	if lease.Spec.HolderIdentity != nil {
		held.Holder = *lease.Spec.HolderIdentity
	}
	if held.Holder == "" {
		held.Evidence = fmt.Sprintf("nobody holds Lease %s", key)
		return held, nil
	}
	var age string
	held.Fresh, age = r.fresh(key, &lease.Spec)
	held.Evidence = fmt.Sprintf("Lease %s is held by %s, %s", key, held.Holder, age)
	return held, nil
}

// fresh reports whether the Lease was renewed within its duration: by the times it states, or because it was seen to
// change by our own clock. A time that lies further ahead than the duration proves nothing about now.
func (r *Reader) fresh(key types.NamespacedName, spec *coordinationv1.LeaseSpec) (bool, string) {
	if spec.RenewTime == nil {
		return false, "never renewed"
	}
	duration := defaultDuration
	if spec.LeaseDurationSeconds != nil {
		duration = time.Duration(*spec.LeaseDurationSeconds) * time.Second
	}
	renewed := spec.RenewTime.Time
	seen := r.renewals.Seen(key.String(), renewed, duration)
	age := r.clock.Since(renewed)
	stated := "renewed " + renewed.UTC().Format(time.RFC3339)
	switch {
	case seen, age.Abs() <= duration:
		return true, stated
	case age < 0:
		return false, stated + ", which is ahead of this clock; not seen to be renewed"
	}
	return false, fmt.Sprintf("%s, %s ago: longer than its %s", stated, age.Round(time.Second), duration)
}

// Package leftovers finds what a gate that was uninstalled has left in the cluster, and takes it away: marks and deletion costs
// on pods, annotations on nodes, hooks on Machines, its Lease and its Secret. Nodes that it withdrew are not its matter: they
// are put back as those of any other run.
package leftovers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/gate/keeper"
	"github.com/safedrain/safedrain/internal/gate/manners"
	"github.com/safedrain/safedrain/pkg/guard"
)

// labelManaged tells the objects that the gate itself makes from those that it is installed with.
const labelManaged = "app.kubernetes.io/managed-by"

// Labels are those of the objects that the gate itself makes.
func Labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": guard.GateHolder, labelManaged: guard.GateHolder}
}

func selector() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labels.Set{labelManaged: guard.GateHolder}.String()}
}

// Gate is what there is of a gate in a cluster.
type Gate struct {
	Running  string   // who leads it, "" when nobody does
	Lease    string   // namespace/name of the Lease by which it does
	Webhooks []string // configurations that send reviews to it: "validatingwebhookconfiguration/safedrain-gate"; sorted
	leases   []coordinationv1.Lease
}

// Find looks for a gate. A replica leads until its Lease runs out, by the clock of the caller.
func Find(ctx context.Context, c *cluster.Clients, now time.Time) (*Gate, error) {
	out := &Gate{}
	leases, err := c.Kubernetes.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, selector())
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	out.leases = leases.Items
	for i := range out.leases {
		l := &out.leases[i]
		if holder := leads(l, now); holder != "" {
			out.Running, out.Lease = holder, l.Namespace+"/"+l.Name
		}
	}
	out.Webhooks, err = webhooks(ctx, c)
	return out, err
}

func leads(l *coordinationv1.Lease, now time.Time) string {
	s := &l.Spec
	if s.HolderIdentity == nil || s.RenewTime == nil || s.LeaseDurationSeconds == nil {
		return ""
	}
	if now.After(s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds) * time.Second)) {
		return ""
	}
	return *s.HolderIdentity
}

// webhooks lists the configurations that have a webhook of the gate, by kind and name, sorted.
func webhooks(ctx context.Context, c *cluster.Clients) ([]string, error) {
	api := c.Kubernetes.AdmissionregistrationV1()
	var out []string
	ours := func(kind, name string, webhooks []string) {
		if slices.ContainsFunc(webhooks, func(w string) bool { return strings.HasSuffix(w, cluster.WebhookDomain) }) {
			out = append(out, kind+"/"+name)
		}
	}
	validating, err := api.ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list validatingwebhookconfigurations: %w", err)
	}
	for i := range validating.Items {
		var names []string
		for k := range validating.Items[i].Webhooks {
			names = append(names, validating.Items[i].Webhooks[k].Name)
		}
		ours("validatingwebhookconfiguration", validating.Items[i].Name, names)
	}
	mutating, err := api.MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list mutatingwebhookconfigurations: %w", err)
	}
	for i := range mutating.Items {
		var names []string
		for k := range mutating.Items[i].Webhooks {
			names = append(names, mutating.Items[i].Webhooks[k].Name)
		}
		ours("mutatingwebhookconfiguration", mutating.Items[i].Name, names)
	}
	slices.Sort(out)
	return out, nil
}

// Cleared is what was taken away, or in a dry run would be.
type Cleared struct {
	Pods     int      `json:"pods"`     // that bore a mark, some with a deletion cost
	Nodes    int      `json:"nodes"`    // that bore an annotation
	Machines int      `json:"machines"` // of Cluster API, that bore a hook
	Objects  []string `json:"objects"`  // that were deleted: "lease/safedrain-system/safedrain-gate"; sorted
}

// Nothing reports whether there was nothing.
func (c *Cleared) Nothing() bool { return c.Pods+c.Nodes+c.Machines+len(c.Objects) == 0 }

// Clear takes away what a gate that does not run has left. While webhooks of it are there it may come back, so that its Lease
// and its Secret stay. What was taken away before an error is in the result.
func Clear(ctx context.Context, c *cluster.Clients, gate *Gate, dryRun bool) (*Cleared, error) {
	out := &Cleared{Objects: []string{}}
	var err error
	if c.Metadata != nil {
		if out.Pods, err = keeper.Clear(ctx, c.Kubernetes, c.Metadata, dryRun); err != nil {
			return out, err
		}
	}
	if out.Nodes, err = manners.ClearNodes(ctx, c.Kubernetes, dryRun); err != nil {
		return out, err
	}
	if c.Dynamic != nil {
		if out.Machines, err = manners.ClearMachines(ctx, c.Kubernetes, c.Dynamic, dryRun); err != nil {
			return out, err
		}
	}
	if len(gate.Webhooks) == 0 {
		err = own(ctx, c, gate, dryRun, out)
	}
	slices.Sort(out.Objects)
	return out, err
}

// own deletes the Leases of the gate, and the Secrets that it made beside them.
func own(ctx context.Context, c *cluster.Clients, gate *Gate, dryRun bool, out *Cleared) error {
	remove := func(kind, namespace, name string, call func(context.Context, string, metav1.DeleteOptions) error) error {
		if !dryRun {
			if err := call(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete %s %s/%s: %w", kind, namespace, name, err)
			}
		}
		out.Objects = append(out.Objects, kind+"/"+namespace+"/"+name)
		return nil
	}
	done := map[string]bool{}
	for i := range gate.leases {
		l := &gate.leases[i]
		if !done[l.Namespace] {
			done[l.Namespace] = true
			secrets, err := c.Kubernetes.CoreV1().Secrets(l.Namespace).List(ctx, selector())
			if err != nil {
				return fmt.Errorf("list secrets of namespace %q: %w", l.Namespace, err)
			}
			for k := range secrets.Items {
				if err := remove("secret", l.Namespace, secrets.Items[k].Name, c.Kubernetes.CoreV1().Secrets(l.Namespace).Delete); err != nil {
					return err
				}
			}
		}
		if err := remove("lease", l.Namespace, l.Name, c.Kubernetes.CoordinationV1().Leases(l.Namespace).Delete); err != nil {
			return err
		}
	}
	return nil
}

package drain

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/surge"
)

// unsurge takes back, before the node is schedulable, the replicas that its claim remembers: while the node is out of its
// balancers its own pod is missed least. What cannot be taken back is told at the end, and stays in the claim.
func (w *restoring) unsurge(ctx context.Context) {
	if w.Dynamic == nil {
		return
	}
	for _, set := range w.held.Claim().Set {
		l, ok := surge.ParseSet(set)
		if !ok {
			continue
		}
		err := w.unraise(ctx, l, w.name, false)
		if err == nil {
			err = w.forget(ctx, set)
		}
		if err != nil {
			w.surged = append(w.surged, fmt.Sprintf("%s has one replica more than before: %v", l.Title(), err))
		}
	}
}

// unsurgeStrays takes back the replicas of runs that are over and whose nodes are gone, claims and all.
func (r *Runner) unsurgeStrays(ctx context.Context) error {
	if r.Dynamic == nil {
		return nil
	}
	standing, err := r.bringer().Standings(ctx)
	if err != nil || len(standing) == 0 {
		return err
	}
	claims, err := r.claims(ctx)
	if err != nil {
		return err
	}
	var all []error
	for _, l := range surge.Sorted(standing) {
		mark, known := standing[l], false
		for _, c := range claims {
			known = known || mark.Of(c.Run) || c.Has(l.Set())
		}
		if known {
			continue // a node's own uncordon, or its run, takes it back
		}
		if err := r.unraise(ctx, l, "", false); err != nil {
			all = append(all, fmt.Errorf("take the replica of %s back: %w", l.Title(), err))
		}
	}
	return errors.Join(all...)
}

// claims lists the claims on all nodes; one that cannot be read is left out.
func (r *Runner) claims(ctx context.Context) ([]*claim.Claim, error) {
	var out []*claim.Claim
	opts := metav1.ListOptions{Limit: podPage}
	for {
		page, err := r.Client.CoreV1().Nodes().List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list the nodes: %w", err)
		}
		for i := range page.Items {
			if c, err := claim.Of(&page.Items[i]); err == nil && c != nil {
				out = append(out, c)
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return out, nil
		}
	}
}

package claim

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/test/controlplane"
)

// claimedAt lists the nodes of a test that bear a claim at exactly a resourceVersion, read in pages.
func claimedAt(ctx context.Context, env *controlplane.Env, resourceVersion string, page int64, between func()) ([]string, error) {
	opts := metav1.ListOptions{
		Limit: page, ResourceVersion: resourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		LabelSelector: controlplane.PoolLabel + "=" + env.Namespace,
	}
	var names []string
	for {
		list, err := env.Client.CoreV1().Nodes().List(ctx, opts)
		if err != nil {
			return nil, err
		}
		if list.ResourceVersion != resourceVersion {
			return nil, fmt.Errorf("the list is of resourceVersion %s, want %s", list.ResourceVersion, resourceVersion)
		}
		for i := range list.Items {
			if _, ok := list.Items[i].Annotations[claim.Annotation]; ok {
				names = append(names, list.Items[i].Name)
			}
		}
		if list.Continue == "" {
			return names, nil
		}
		between()
		opts = metav1.ListOptions{Limit: page, Continue: list.Continue, LabelSelector: opts.LabelSelector}
	}
}

// TestExactList shows what the order of claims rests on: the list at the resourceVersion that a patch returned has that
// patch and every earlier one, and no later one, also where later ones are committed between two of its pages.
func TestExactList(t *testing.T) {
	env := cluster.Env(t)
	names := env.Nodes(8)
	stop := strangers(t, names[len(names)-1:])
	defer stop()
	var versions []string
	for _, name := range names {
		n, err := env.Client.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"{}"}}}`, claim.Annotation), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, n.ResourceVersion)
	}
	unclaim := func() {
		for _, name := range names {
			if err := patchNode(t.Context(), env.Client, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, claim.Annotation)); err != nil {
				t.Error(err)
			}
		}
	}
	for _, page := range []int64{0, 500, 3, 1} {
		for i, version := range versions {
			got, err := claimedAt(t.Context(), env, version, page, unclaim)
			if err != nil {
				t.Fatalf("at %s in pages of %d: %v", version, page, err)
			}
			if diff := cmp.Diff(names[:i+1], got); diff != "" {
				t.Errorf("at %s in pages of %d (-want +got):\n%s", version, page, diff)
			}
		}
	}
}

// A resourceVersion that is not there yet is an error, never a list of something else.
func TestExactListOfTheFuture(t *testing.T) {
	env := cluster.Env(t)
	name := env.Nodes(1)[0]
	n, err := env.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now, err := strconv.Atoi(n.ResourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	err = env.Client.CoreV1().RESTClient().Get().Resource("nodes").VersionedParams(&metav1.ListOptions{
		Limit: 500, ResourceVersion: strconv.Itoa(now + 1_000_000), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}, scheme.ParameterCodec).MaxRetries(0).Do(t.Context()).Error()
	if err == nil || !apierrors.IsTimeout(err) && !apierrors.IsResourceExpired(err) {
		t.Errorf("a list at a resourceVersion of the future: %v, want an error", err)
	}
}

// TestTakeOver: the claim of a run that died is taken up with what that run had set, and undone to what was before both.
func TestTakeOver(t *testing.T) {
	env := cluster.Env(t)
	names := env.Nodes(2, func(n *corev1.Node) { n.Labels["kept"] = "yes" })
	before, err := nodesOf(t.Context(), env.Client, names)
	if err != nil {
		t.Fatal(err)
	}
	fits := func(context.Context, claim.Earlier) error { return nil }
	dead := claimer(t, "dead")
	held, _, err := dead.Acquire(t.Context(), names, fits)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range held {
		if err := h.Update(t.Context(), func(c *claim.Claim, s *claim.State) { c.Phase = claim.Withdrawn; claim.Exclude(c, s) }); err != nil {
			t.Fatal(err)
		}
	}
	next := claimer(t, "next")
	next.TakeOver = true
	taken, _, err := next.Acquire(t.Context(), names, fits)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range held {
		var over *claim.TakenOver
		if err := h.Renew(t.Context()); !asTakenOver(err, &over) || over.Run != "next" {
			t.Errorf("the first run renews its claim on %s: %v, want *TakenOver by next", h.Name(), err)
		}
		if c := taken[i].Claim(); !c.Has(claim.SetLabel) || !c.Has(claim.SetUnschedulable) {
			t.Errorf("the claim that was taken up on %s has set %v, want what the first run had set", h.Name(), c.Set)
		}
	}
	for _, h := range taken {
		if _, err := h.Undo(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	after, err := nodesOf(t.Context(), env.Client, names)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after, equateEmpty); diff != "" {
		t.Errorf("not as before both runs (-was +is):\n%s", diff)
	}
}

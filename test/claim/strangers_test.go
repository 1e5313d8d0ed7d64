package claim

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// equateEmpty: the API server does not tell an empty map from none.
var equateEmpty = cmpopts.EquateEmpty()

func patchNode(ctx context.Context, client kubernetes.Interface, name, patch string) error {
	_, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("patch node %q: %w", name, err)
	}
	return nil
}

// strangers writes an annotation of the nodes again and again, as kubelets and controllers do, only faster. The function
// that is returned ends that.
func strangers(t *testing.T, names []string) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	client := clientOf(t, "stranger")
	var all sync.WaitGroup
	written := 0
	all.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, name := range names {
				written++
				if err := patchNode(t.Context(), client, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d"}}}`, heartbeat, written)); err != nil {
					t.Error(err)
				}
			}
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		all.Wait()
		if written < 2*len(names) {
			t.Errorf("strangers wrote %d times: that is no disturbance", written)
		}
	}
}

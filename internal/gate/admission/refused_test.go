package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
)

// notesRun runs notes for a test and returns the patches that were written.
func notesRun(t *testing.T, store *cluster.Store, answer func() error) (*NodeNotes, func() []string) {
	t.Helper()
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	var patches []string
	client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.PatchAction)
		var body struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(p.GetPatch(), &body); err != nil {
			return true, nil, err
		}
		patches = append(patches, p.GetName()+" "+body.Metadata.Annotations[claim.AnnotationRefused])
		return true, &corev1.Node{}, answer()
	})
	n := NewNodeNotes(client, store, clock.RealClock{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = n.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return n, func() []string { synctest.Wait(); return patches }
}

func works() error { return nil }

// TestNotesOnceAMinute: however often an eviction is refused.
func TestNotesOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, patches := notesRun(t, cluster.NewStore(hookset.New(hookset.Deps{})), works)
		start := time.Now()
		for range 125 {
			n.Note("n1")
			time.Sleep(time.Second)
		}
		n.Note("n2")
		got := patches()
		if len(got) != 4 || got[0] != "n1 "+start.UTC().Format(time.RFC3339) || got[3][:2] != "n2" {
			t.Errorf("%v", got)
		}
	})
}

// TestNotesOfOthers: what another replica wrote a moment ago is not written again; a time that lies ahead is nobody's.
func TestNotesOfOthers(t *testing.T) {
	for ago, want := range map[time.Duration]int{30 * time.Second: 0, 2 * time.Minute: 1, -time.Hour: 1} {
		synctest.Test(t, func(t *testing.T) {
			store := cluster.NewStore(hookset.New(hookset.Deps{}))
			store.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
				claim.AnnotationRefused: time.Now().Add(-ago).UTC().Format(time.RFC3339),
			}}})
			n, patches := notesRun(t, store, works)
			n.Note("n1")
			if got := patches(); len(got) != want {
				t.Errorf("%s ago: %v", ago, got)
			}
		})
	}
}

// TestNotesNeverBlock: an API server that hangs or fails holds up nobody who notes, and the next refusal tries again.
func TestNotesNeverBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		n, patches := notesRun(t, cluster.NewStore(hookset.New(hookset.Deps{})), func() error { <-hang; return errors.New("down") })
		n.Note("first")
		synctest.Wait() // the writer hangs
		for i := range 10 * maxNotes {
			n.Note(fmt.Sprintf("x%d", i))
		}
		close(hang)
		if got := len(patches()); got != maxNotes+1 {
			t.Errorf("%d notes were written", got)
		}
		before := len(patches())
		n.Note("x0")
		if got := len(patches()); got != before+1 {
			t.Errorf("after a failure the note was not tried again: %d, then %d", before, got)
		}
	})
}

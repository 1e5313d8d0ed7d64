package metallb_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/pkg/lbhooks/metallb/metallbtest"
)

// Where the speakers' pods may not be listed the statuses stand alone, and the evidence says so.
func TestProveWithSpeakersUnseen(t *testing.T) {
	at := target()
	at.Node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, kind := range []metallbtest.Kind{metallbtest.L2, metallbtest.BGP} {
		dyn := newDynamic()
		b := metallbtest.New(metallbtest.Config{Kind: kind, Dynamic: dyn, Target: at, Other: "n2"})
		if err := b.Show(t.Context(), hooktest.Out); err != nil {
			t.Fatal(err)
		}
		client := fake.NewClientset()
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("not for you"))
		})
		hook := map[metallbtest.Kind]*metallb.Hook{metallbtest.L2: metallb.NewL2(client, dyn), metallbtest.BGP: metallb.NewBGP(client, dyn)}[kind]
		p, err := hook.Prove(t.Context(), at)
		if err != nil || !p.Out || !strings.Contains(p.Evidence, "whether its speaker hangs was not seen") {
			t.Errorf("%v: %+v, %v", kind, p, err)
		}
	}
}

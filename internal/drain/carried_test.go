package drain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// checkedScript works a balancer that checks its nodes itself: down/NODE is there while its check of a node fails.
const checkedScript = `#!/bin/sh
dir=$(dirname "$0")
echo "$1 $SAFEDRAIN_NODE" >>"$dir/calls"
case $1 in
withdraw) : >"$dir/out/$SAFEDRAIN_NODE" ;;
restore) rm -f "$dir/out/$SAFEDRAIN_NODE" ;;
prove)
  if [ -e "$dir/out/$SAFEDRAIN_NODE" ]; then echo "$SAFEDRAIN_NODE MAINT"; exit 0; fi
  if [ -e "$dir/down/$SAFEDRAIN_NODE" ]; then echo "$SAFEDRAIN_NODE DOWN"; exit 76; fi
  echo "$SAFEDRAIN_NODE UP"; exit 75 ;;
esac
`

// A node stays in a hand-made balancer until that sends to another one, whatever the API server calls ready: one that came
// back a moment ago may not have passed the balancer's own check yet.
func TestCarriedElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		policy corev1.ServiceExternalTrafficPolicy
		down   []string
		up     time.Duration // after which the check of n2 passes
		want   Outcome
		says   string
		calls  []string
	}{
		"the other works":             {corev1.ServiceExternalTrafficPolicyLocal, nil, 0, Done, "", []string{"withdraw n1"}},
		"one of the others works":     {corev1.ServiceExternalTrafficPolicyLocal, []string{"n3"}, 0, Done, "", []string{"withdraw n1"}},
		"the others are down":         {corev1.ServiceExternalTrafficPolicyLocal, []string{"n2", "n3"}, time.Hour, HookFailed, "DOWN", nil},
		"one comes back":              {corev1.ServiceExternalTrafficPolicyLocal, []string{"n2", "n3"}, 8 * time.Second, Done, "", []string{"withdraw n1"}},
		"policy Cluster, none works":  {corev1.ServiceExternalTrafficPolicyCluster, []string{"n2", "n3"}, time.Hour, HookFailed, "DOWN", nil},
		"policy Cluster, one is back": {corev1.ServiceExternalTrafficPolicyCluster, []string{"n2", "n3"}, 8 * time.Second, Done, "", []string{"withdraw n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newExecWorld(t, "n1", "n2", "n3")
				w.file("hook", checkedScript)
				if err := os.Mkdir(filepath.Join(w.dir, "down"), 0o700); err != nil {
					t.Fatal(err)
				}
				w.behind("exec", "lb", "n1", "n2", "n3").Spec.ExternalTrafficPolicy = tc.policy
				for _, n := range tc.down {
					w.file("down/"+n, "")
				}
				if tc.up > 0 {
					timer := time.AfterFunc(tc.up, func() { _ = os.Remove(filepath.Join(w.dir, "down", "n2")) })
					defer timer.Stop()
				}
				began := time.Now()
				res := w.configured("r").Drain(t.Context(), options("n1"))
				if res.Outcome != tc.want || tc.says != "" && !strings.Contains(res.Err.Error(), tc.says) {
					t.Errorf("outcome %d: %v, want %d", res.Outcome, res.Err, tc.want)
				}
				if got := w.calls(); strings.Join(got, ",") != strings.Join(tc.calls, ",") {
					t.Errorf("calls %v, want %v", got, tc.calls)
				}
				if took := time.Since(began); tc.want == Done && took < tc.up {
					t.Errorf("it was over after %s, when nobody else worked", took)
				}
			})
		})
	}
}

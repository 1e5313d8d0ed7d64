package guard

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A hook's own reason why nothing is proven is what the finding says; a settle time accepts it where there is a lever.
func TestNoProof(t *testing.T) {
	settle := 20 * time.Second
	for name, test := range map[string]struct {
		removal Removal
		settle  *time.Duration
		verdict Verdict
		advice  string
	}{
		"no lever":               {RemovalNone, nil, Unproven, "accept it for this run"},
		"no lever, but a time":   {RemovalNone, &settle, Unproven, "accept it for this run"},
		"a lever":                {RemovalLabel, nil, Unproven, "safedrain.dev/settle"},
		"a lever and a time too": {RemovalLabel, &settle, Withdraw, "safedrain.dev/settle"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := newWorld("n1", "n2").service("s", pooled(func(r *Rotation) {
				r.Provable, r.Removal, r.Settle, r.NoProof = false, test.removal, test.settle, "its DaemonSet ignores the label"
			}), "n1", "n2").plan(Flags{}, "n1")
			if plan.Verdict != test.verdict {
				t.Errorf("verdict %s, want %s", plan.Verdict, test.verdict)
			}
			for _, f := range plan.Services[0].Findings {
				if f.Code == RotationUnproven && strings.HasPrefix(f.Message, "cloud: its DaemonSet ignores the label") && strings.Contains(f.Advice, test.advice) {
					return
				}
			}
			t.Errorf("%+v", plan.Services[0].Findings)
		})
	}
}

// Where only the health check takes the node out, and comes too late, the finding says that, and not that nobody knows who
// sends.
func TestCheckTooLate(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*ServiceFacts)
		message string
		advice  string
	}{
		"pods end first":           {checkedByHook, "the pods end before it has", "outlive the check"},
		"publishNotReadyAddresses": {all(checkedByHook, func(s *ServiceFacts) { s.PublishNotReady = true }), "it fails too late", "drop publishNotReadyAddresses"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1", "n2").pod("n1", "p1").service("s", test.change, "n1:RS=p1", "n2")
			for _, f := range w.plan(Flags{}, "n1").Services[0].Findings {
				if f.Code == RotationUnproven {
					if !strings.Contains(f.Message, test.message) || !strings.Contains(f.Advice, test.advice) {
						t.Errorf("%q, advice %q", f.Message, f.Advice)
					}
					return
				}
			}
			t.Error("nothing is unproven")
		})
	}
}

// A Service of policy Cluster whose balancer may enter through the node has to let it go as well: what a drain before it
// labelled, and nothing confirmed, is not out.
func TestEntriesInDoubt(t *testing.T) {
	for name, test := range map[string]struct {
		in   InRotation
		want int
	}{"in": {Yes, 1}, "nobody can tell": {Unknown, 1}, "out": {No, 0}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1", "n2").service("s", func(s *ServiceFacts) {
				s.External, s.Type = false, corev1.ServiceTypeLoadBalancer
				s.Rotation = Rotation{Hook: "cloud", Removal: RemovalLabel, Seats: map[string]Seat{"n1": {In: test.in}}, Rest: Seat{In: Yes, Eligible: true}}
			}, "n2")
			if got := w.plan(Flags{}, "n1").Withdraw; len(got) != test.want {
				t.Errorf("%d entries, want %d: %+v", len(got), test.want, got)
			}
		})
	}
}

// Where the balancer has nobody else to send to, nothing is begun, unless a replica is started first: then it is judged anew.
func TestAlone(t *testing.T) {
	alone := pooled(func(r *Rotation) { r.Alone = "no other target is healthy" })
	for name, test := range map[string]struct {
		on      []string
		surges  []Surge
		verdict Verdict
	}{
		"endpoints elsewhere":               {[]string{"n1", "n2"}, nil, Unproven},
		"one comes first":                   {[]string{"n1"}, []Surge{{Kind: "Deployment", Namespace: "a", Name: "s", Services: []string{"a/s"}}}, Withdraw},
		"one comes first, and is not alone": {[]string{"n1", "n2"}, []Surge{{Kind: "Deployment", Namespace: "a", Name: "s", Services: []string{"a/s"}}}, Withdraw},
		"none can come first":               {[]string{"n1", "n2"}, []Surge{{Kind: "Deployment", Namespace: "a", Name: "s", Services: []string{"a/s"}, Reason: "quota"}}, Unproven},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("n1", "n2").service("s", alone, test.on...)
			plan := Plan(w, Request{Nodes: []string{"n1"}, Surges: test.surges})
			if plan.Services[0].Verdict != test.verdict {
				t.Errorf("%s: %+v, want %s", plan.Services[0].Verdict, plan.Services[0].Findings, test.verdict)
			}
		})
	}
}

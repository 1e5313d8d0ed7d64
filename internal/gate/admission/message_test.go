package admission

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/safedrain/safedrain/pkg/guard"
)

// TestMessages: each situation is told in one line, with what ends it.
func TestMessages(t *testing.T) {
	since := time.Date(2026, 11, 30, 14, 2, 7, 0, time.UTC)
	proof, until := since.Add(3*time.Second), since.Add(time.Minute)
	settled := proof.Add(2 * time.Second)
	edge := guard.EvictionBlock{Service: guard.Key{Namespace: "ingress", Name: "edge"}, Node: "node-3", Hook: "metallb-l2", Rotation: guard.Yes}
	with := func(reason guard.EvictionReason, change ...func(*guard.EvictionBlock)) guard.EvictionBlock {
		b := edge
		b.Reason = reason
		for _, c := range change {
			c(&b)
		}
		return b
	}
	claimed := func(c guard.ClaimedService) func(*guard.EvictionBlock) {
		return func(b *guard.EvictionBlock) { b.Claimed = &c }
	}
	for want, b := range map[string]guard.EvictionBlock{
		"ingress/edge: node-3 is leaving metallb-l2 since 14:02:07Z, eviction allowed once proven, at most 1m0s":              with(guard.NodeLeaving, claimed(guard.ClaimedService{Since: &since, Until: &until})),
		"ingress/edge: nobody can prove node-3 is out, eviction allowed at 14:03:07Z (settle 1m0s)":                           with(guard.NodeLeaving, claimed(guard.ClaimedService{Since: &since, Until: &until, Unproven: true})),
		"ingress/edge: node-3 is out of metallb-l2, eviction allowed at 14:02:12Z (settle 2s)":                                with(guard.NodeLeaving, claimed(guard.ClaimedService{Since: &since, ProofAt: &proof, Until: &settled})),
		"ingress/edge: node-3 is leaving metallb-l2, eviction allowed once proven":                                            with(guard.NodeLeaving, claimed(guard.ClaimedService{})),
		"ingress/edge: node-3 is to leave, eviction allowed once it is out of metallb-l2":                                     with(guard.NodeLeaving, func(b *guard.EvictionBlock) { b.Leaving = guard.LeavingScaleDown }),
		"ingress/edge: node-3 not proven out of metallb-l2 after 1m0s; override: annotate node node-3 safedrain.dev/gate=off": with(guard.NotProven, claimed(guard.ClaimedService{Since: &since, Until: &until})),
		"ingress/edge: last endpoint anywhere; add a replica, or annotate node node-3 safedrain.dev/gate=off":                 with(guard.LastAnywhere),
		"ingress/edge: last endpoint on node-3, still in rotation; cordon the node to move it out first":                      with(guard.OnlyEndpoint),
		"ingress/edge: last endpoint on node-3, still in rotation; eviction allowed once it is withdrawn":                     with(guard.OnlyEndpoint, func(b *guard.EvictionBlock) { b.Cordoned = true }),
		"ingress/edge: the endpoint kept on node-3, which may be in rotation; cordon the node to move it out first":           with(guard.Keeper, func(b *guard.EvictionBlock) { b.Rotation = guard.Unknown }),
		"ingress/edge: no other endpoint is kept on node-3 yet, which is in rotation; try again":                              with(guard.NoKeeper),
	} {
		if got := message(&b); got != want {
			t.Errorf("%s: %q\nwant %q", b.Reason, got, want)
		}
	}
}

// TestMessagesAreShort: however long the names are.
func TestMessagesAreShort(t *testing.T) {
	now := time.Now()
	for _, n := range []int{1, 20, 40, 63} {
		for _, node := range []int{5, 63, 253} {
			for reason := range gravity {
				for _, c := range []*guard.ClaimedService{nil, {}, {Since: &now, Until: &now}, {Since: &now, Until: &now, Unproven: true}, {Since: &now, ProofAt: &now, Until: &now}, {Unproven: true}, {Until: &now, Unproven: true}} {
					b := guard.EvictionBlock{
						Service: guard.Key{Namespace: strings.Repeat("n", n), Name: strings.Repeat("s", n)}, Node: strings.Repeat("x", node),
						Reason: reason, Hook: "cloud-provider", Claimed: c, Leaving: guard.LeavingScaleDown,
					}
					got := message(&b)
					if utf8.RuneCountInString(got) > maxMessage || strings.ContainsAny(got, "\n\r") {
						t.Errorf("%s: %d characters: %q", reason, utf8.RuneCountInString(got), got)
					}
					if n < 40 && !strings.HasPrefix(got, b.Service.String()+": ") {
						t.Errorf("%s: the Service is cut: %q", reason, got)
					}
				}
			}
		}
	}
}

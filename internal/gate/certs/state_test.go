package certs

import (
	"crypto/x509"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	start  = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	policy = Policy{
		Name: "gate-ca.shop", Hosts: []string{"gate.shop.svc", "127.0.0.1"},
		CALife: 12 * time.Hour, Life: 4 * time.Hour, Settle: 5 * time.Minute, Overlap: time.Hour,
	}
)

// next takes a state on and ends the test when that fails.
func next(t *testing.T, p Policy, s *State, now time.Time, trusted time.Duration) (*State, bool) {
	t.Helper()
	out, changed, err := p.next(s, now, trusted)
	if err != nil {
		t.Fatal(err)
	}
	return out, changed
}

// verifies reports whether a client that trusts a bundle accepts the serving certificate at a time.
func verifies(t *testing.T, serving *x509.Certificate, bundle []byte, at time.Time) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for _, host := range policy.Hosts {
		if _, err := serving.Verify(x509.VerifyOptions{
			DNSName: host, Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}); err != nil {
			return err
		}
	}
	return nil
}

// TestSteps: each step of a rotation, by its name.
func TestSteps(t *testing.T) {
	first, changed := next(t, policy, nil, start, 0)
	if !changed || first.Next != nil || len(first.Old) != 0 {
		t.Fatalf("the beginning: changed %v, next %v, %d old", changed, first.Next != nil, len(first.Old))
	}
	if _, changed := next(t, policy, first, start.Add(time.Hour), 0); changed {
		t.Error("something changed long before anything is due")
	}
	renewed, changed := next(t, policy, first, start.Add(3*time.Hour), 0)
	if !changed || renewed.Serving.Cert.Equal(first.Serving.Cert) || !renewed.CA.Cert.Equal(first.CA.Cert) {
		t.Error("two thirds through its life the serving certificate is not renewed by the same authority")
	}
	at := start.Add(9 * time.Hour)
	two, changed := next(t, policy, renewed, at, 0)
	if !changed || two.Next == nil || !two.CA.Cert.Equal(first.CA.Cert) {
		t.Fatal("two thirds through the authority's life there is no next one beside it")
	}
	if err := verifies(t, two.Serving.Cert, first.Bundle(), at); err != nil {
		t.Errorf("the certificate is signed by an authority that nobody trusts yet: %v", err)
	}
	if early, _ := next(t, policy, two, at.Add(time.Minute), policy.Settle-time.Second); early.Next == nil {
		t.Error("the next authority took over before it had settled")
	}
	at = at.Add(policy.Settle)
	taken, changed := next(t, policy, two, at, policy.Settle)
	if !changed || taken.Next != nil || !taken.CA.Cert.Equal(two.Next.Cert) || len(taken.Old) != 1 {
		t.Fatal("the next authority did not take over")
	}
	for which, of := range map[string]*State{"new": two, "old": taken} {
		if err := verifies(t, taken.Serving.Cert, of.Bundle(), at); err != nil {
			t.Errorf("the %s bundle does not trust the new certificate: %v", which, err)
		}
		if err := verifies(t, two.Serving.Cert, of.Bundle(), at); err != nil {
			t.Errorf("the %s bundle does not trust the old certificate: %v", which, err)
		}
	}
	if over, changed := next(t, policy, taken, at.Add(policy.Overlap), 0); !changed || len(over.Old) != 0 {
		t.Error("the old authority is trusted for ever")
	}
	moved := policy
	moved.Hosts = []string{"gate.other.svc"}
	if other, changed := next(t, moved, taken, at, 0); !changed || !covers(other.Serving.Cert, moved.Hosts) {
		t.Error("a certificate for other names is kept")
	}
	if anew, changed := next(t, policy, first, start.Add(policy.CALife), 0); !changed || anew.CA.Cert.Equal(first.CA.Cert) {
		t.Error("an authority whose time is over still signs")
	}
}

// TestEncode: a state is read as it was written, and what is damaged is not read at all.
func TestEncode(t *testing.T) {
	s, _ := next(t, policy, nil, start, 0)
	s, _ = next(t, policy, s, start.Add(9*time.Hour), 0)
	s, _ = next(t, policy, s, start.Add(10*time.Hour), policy.Settle)
	s, _ = next(t, policy, s, start.Add(18*time.Hour), 0)
	data, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := decode(data)
	if err != nil {
		t.Fatal(err)
	}
	again, err := back.encode()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(data, again); diff != "" {
		t.Errorf("not read as written (-want +got):\n%s", diff)
	}
	for _, entry := range []string{entryServing, entryServingKey, entryCA, entryCAKey, entryNextKey} {
		damaged := map[string][]byte{}
		for k, v := range data {
			damaged[k] = v
		}
		damaged[entry] = []byte("garbage")
		if _, err := decode(damaged); err == nil {
			t.Errorf("a state with garbage in %s was read", entry)
		}
		damaged[entry] = nil
		if _, err := decode(damaged); err == nil {
			t.Errorf("a state without %s was read", entry)
		}
	}
	swapped := map[string][]byte{}
	for k, v := range data {
		swapped[k] = v
	}
	swapped[entryServingKey] = data[entryCAKey]
	if _, err := decode(swapped); err == nil {
		t.Error("a certificate with another one's key was read")
	}
}

// TestNeverUntrusted plays three replicas that look at the Secret once a minute, and API servers that see a change of the
// configurations only minutes later, for days: at no time is a certificate served that one of them does not trust.
func TestNeverUntrusted(t *testing.T) {
	const minutes, replicas = 2 * 24 * 60, 3
	rng := rand.New(rand.NewPCG(1, 2))
	lags := []int{0, 2, 4} // minutes, of the API servers; less than Settle
	var shared *State
	var bundles [][]byte // by minute, as the configurations have them
	served := make([]*State, replicas)
	since := make([]time.Time, replicas) // since when each replica has seen the next authority in the configurations
	seen := map[[2]string]time.Time{}    // pairs that were verified, until when that holds
	rotations := 0
	for minute := range minutes {
		now := start.Add(time.Duration(minute) * time.Minute)
		bundle := []byte(nil)
		if minute > 0 {
			bundle = bundles[minute-1]
		}
		for _, r := range rng.Perm(replicas) {
			trusted := time.Duration(0)
			if shared != nil && shared.Next != nil && (&configuration{bundles: [][]byte{bundle}}).trusts(shared.Next.Cert) {
				if since[r].IsZero() {
					since[r] = now
				}
				trusted = now.Sub(since[r])
			} else {
				since[r] = time.Time{}
			}
			before := shared
			shared, _ = next(t, policy, shared, now, trusted)
			if before != nil && !before.CA.Cert.Equal(shared.CA.Cert) {
				rotations++
			}
			bundle = shared.Bundle()
			served[r] = shared
			if rng.IntN(10) == 0 {
				break // the others come a minute later, or more
			}
		}
		bundles = append(bundles, bundle)
		if minute < 10 {
			continue // the first authority reaches the API servers
		}
		for r, s := range served {
			if s == nil {
				continue
			}
			for _, lag := range lags {
				trusts := bundles[minute-lag]
				pair := [2]string{string(s.Serving.Cert.Raw), string(trusts)}
				if until, ok := seen[pair]; ok && now.Before(until) {
					continue
				}
				if err := verifies(t, s.Serving.Cert, trusts, now); err != nil {
					t.Fatalf("minute %d: replica %d serves what an API server %d minutes behind does not trust: %v", minute, r, lag, err)
				}
				seen[pair] = s.Serving.Cert.NotAfter
			}
		}
	}
	if rotations < 3 {
		t.Errorf("%d authorities took over in two days, want more", rotations)
	}
}

package certs

import (
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Entries of the Secret. tls.crt, tls.key and ca.crt are where every reader of a Secret of type kubernetes.io/tls looks.
const (
	entryServing    = corev1.TLSCertKey
	entryServingKey = corev1.TLSPrivateKeyKey
	entryBundle     = corev1.ServiceAccountRootCAKey
	entryCA         = "signer.crt"
	entryCAKey      = "signer.key"
	entryNext       = "next-signer.crt"
	entryNextKey    = "next-signer.key"
)

// State is what the replicas of the gate share: who signs, who will, who did, and the certificate they all serve.
type State struct {
	CA      *Pair
	Next    *Pair               // nil unless an authority is about to take over
	Old     []*x509.Certificate // of authorities that signed before, still trusted
	Serving *Pair
}

// Bundle is the authorities that an API server has to trust, in PEM: the one that signs, the next and the old ones.
func (s *State) Bundle() []byte { return encodeCerts(s.authorities()...) }

func (s *State) authorities() []*x509.Certificate {
	all := []*x509.Certificate{s.CA.Cert}
	if s.Next != nil {
		all = append(all, s.Next.Cert)
	}
	return append(all, s.Old...)
}

// Policy is how long certificates live and how fast they are replaced.
type Policy struct {
	Name    string        // of the authorities
	Hosts   []string      // names and addresses that the certificate is for; the first is its name
	CALife  time.Duration // an authority is replaced after two thirds of it
	Life    time.Duration // of the serving certificate, replaced after two thirds of it
	Settle  time.Duration // how long a new authority is trusted everywhere before it signs
	Overlap time.Duration // how long the old one stays trusted after that
}

// next returns the state that follows, and whether it differs. trusted is for how long every webhook configuration has
// been seen with the authority that is about to take over. A nil state is the very beginning.
//
// A certificate is never served that an API server may not trust yet: a new authority is first trusted next to the old
// one, signs only after Settle, and the old one stays trusted for Overlap.
func (p *Policy) next(s *State, now time.Time, trusted time.Duration) (*State, bool, error) {
	if s == nil || !now.Before(s.CA.Cert.NotAfter) {
		begun, err := p.begin(s, now)
		return begun, true, err
	}
	out := *s
	changed := false
	switch {
	case out.Next == nil && due(out.CA.Cert, now):
		next, err := newAuthority(p.Name, now, p.CALife)
		if err != nil {
			return nil, false, err
		}
		out.Next, changed = next, true
	case out.Next != nil && trusted >= p.Settle:
		out.Old = append(slices.Clone(out.Old), out.CA.Cert)
		out.CA, out.Next, out.Serving, changed = out.Next, nil, nil, true
	}
	if out.Serving == nil || due(out.Serving.Cert, now) || !covers(out.Serving.Cert, p.Hosts) {
		serving, err := out.CA.serving(p.Hosts, now, p.Life)
		if err != nil {
			return nil, false, err
		}
		out.Serving, changed = serving, true
	}
	if kept := out.trustedStill(now, p.Overlap); len(kept) < len(out.Old) {
		out.Old, changed = kept, true
	}
	return &out, changed, nil
}

// begin makes the first authority, or one after all others have run out.
func (p *Policy) begin(before *State, now time.Time) (*State, error) {
	ca, err := newAuthority(p.Name, now, p.CALife)
	if err != nil {
		return nil, err
	}
	serving, err := ca.serving(p.Hosts, now, p.Life)
	if err != nil {
		return nil, err
	}
	out := &State{CA: ca, Serving: serving}
	if before != nil && before.Next != nil && now.Before(before.Next.Cert.NotAfter) {
		out.Old = []*x509.Certificate{before.Next.Cert} // it may be in the configurations already
	}
	return out, nil
}

// trustedStill lists the old authorities that are still to be trusted.
func (s *State) trustedStill(now time.Time, overlap time.Duration) []*x509.Certificate {
	if now.Before(issued(s.Serving.Cert).Add(overlap)) {
		return slices.DeleteFunc(slices.Clone(s.Old), func(c *x509.Certificate) bool { return !now.Before(c.NotAfter) })
	}
	return nil
}

// encode writes the state into the data of a Secret.
func (s *State) encode() (map[string][]byte, error) {
	data := map[string][]byte{entryBundle: s.Bundle()}
	for _, part := range []struct {
		pair      *Pair
		cert, key string
	}{{s.Serving, entryServing, entryServingKey}, {s.CA, entryCA, entryCAKey}, {s.Next, entryNext, entryNextKey}} {
		if part.pair == nil {
			continue
		}
		cert, key, err := part.pair.encode()
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", part.key, err)
		}
		data[part.cert], data[part.key] = cert, key
	}
	return data, nil
}

// decode reads a state; an error says which entry is not as it was written.
func decode(data map[string][]byte) (*State, error) {
	s := &State{}
	for _, part := range []struct {
		pair      **Pair
		cert, key string
		optional  bool
	}{{&s.Serving, entryServing, entryServingKey, false}, {&s.CA, entryCA, entryCAKey, false}, {&s.Next, entryNext, entryNextKey, true}} {
		if part.optional && len(data[part.cert]) == 0 {
			continue
		}
		pair, err := decodePair(data[part.cert], data[part.key])
		if err != nil {
			return nil, fmt.Errorf("entries %s and %s: %w", part.cert, part.key, err)
		}
		*part.pair = pair
	}
	bundle, err := decodeCerts(data[entryBundle])
	if err != nil {
		return nil, fmt.Errorf("entry %s: %w", entryBundle, err)
	}
	for _, c := range bundle {
		if !c.Equal(s.CA.Cert) && (s.Next == nil || !c.Equal(s.Next.Cert)) {
			s.Old = append(s.Old, c)
		}
	}
	return s, nil
}

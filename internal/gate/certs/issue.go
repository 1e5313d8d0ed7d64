package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// backdate is how far the clock of an API server may lag behind the one of whoever issues a certificate.
const backdate = 5 * time.Minute

const (
	blockCertificate = "CERTIFICATE"
	blockKey         = "PRIVATE KEY"
)

// Pair is a certificate and its key.
type Pair struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// issued is when a certificate was made.
func issued(c *x509.Certificate) time.Time { return c.NotBefore.Add(backdate) }

// due reports whether two thirds of a certificate's life are over: the time to replace it.
func due(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3))
}

// newAuthority makes a certificate authority.
func newAuthority(name string, now time.Time, life time.Duration) (*Pair, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	return issue(template, nil)
}

// serving makes a certificate for the hosts, names or addresses, that ends no later than the authority.
func (ca *Pair) serving(hosts []string, now time.Time, life time.Duration) (*Pair, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: hosts[0]},
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if template.NotAfter.After(ca.Cert.NotAfter) {
		template.NotAfter = ca.Cert.NotAfter
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		template.DNSNames = append(template.DNSNames, host)
	}
	return issue(template, ca)
}

// issue signs a template by an authority, or by itself.
func issue(template *x509.Certificate, by *Pair) (*Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	if by == nil {
		by = &Pair{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.Cert, key.Public(), by.Key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back a certificate: %w", err)
	}
	return &Pair{cert, key}, nil
}

// covers reports whether a certificate is valid for exactly these hosts.
func covers(c *x509.Certificate, hosts []string) bool {
	have := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		have = append(have, ip.String())
	}
	want := slices.Clone(hosts)
	slices.Sort(have)
	slices.Sort(want)
	return slices.Equal(have, want)
}

// tls returns the pair as a server presents it.
func (ca *Pair) tls() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{ca.Cert.Raw}, PrivateKey: ca.Key, Leaf: ca.Cert}
}

func encodeCerts(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certs {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: c.Raw}))
	}
	return b.Bytes()
}

func decodeCerts(text []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != blockCertificate {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func (ca *Pair) encode() (cert, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(ca.Key)
	if err != nil {
		return nil, nil, err
	}
	return encodeCerts(ca.Cert), pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: der}), nil
}

func decodePair(cert, key []byte) (*Pair, error) {
	certs, err := decodeCerts(cert)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(key)
	if len(certs) != 1 || block == nil {
		return nil, errors.New("not one certificate and one key in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, errors.New("a key that cannot sign")
	}
	public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(certs[0].PublicKey) {
		return nil, errors.New("a key that is not the certificate's")
	}
	return &Pair{certs[0], signer}, nil
}

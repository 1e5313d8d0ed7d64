package agent

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestDeadline shows that a deadline comes nearer only, and leaves its minimum.
func TestDeadline(t *testing.T) {
	for name, tt := range map[string]struct {
		moves   map[time.Duration]time.Duration // at a time, to a time
		done    time.Duration                   // zero: never
		minimum time.Duration
		want    time.Duration
		ended   bool
	}{
		"comes":              {moves: map[time.Duration]time.Duration{0: 30 * time.Second}, want: 30 * time.Second},
		"is shortened":       {moves: map[time.Duration]time.Duration{0: 30 * time.Second, 5 * time.Second: 7 * time.Second}, want: 7 * time.Second},
		"is not prolonged":   {moves: map[time.Duration]time.Duration{0: 10 * time.Second, 5 * time.Second: 60 * time.Second}, want: 10 * time.Second},
		"done before":        {moves: map[time.Duration]time.Duration{0: 30 * time.Second}, done: 3 * time.Second, want: 3 * time.Second, ended: true},
		"leaves the minimum": {moves: map[time.Duration]time.Duration{0: time.Second}, minimum: 2 * time.Second, want: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				started := time.Now()
				d := newDeadline()
				for at, to := range tt.moves {
					if at == 0 {
						d.atMost(started.Add(to))
						continue
					}
					time.AfterFunc(at, func() { d.atMost(started.Add(to)) })
				}
				done := make(chan struct{})
				if tt.done > 0 {
					time.AfterFunc(tt.done, func() { close(done) })
				}
				ended := d.wait(done, tt.minimum)
				if took := time.Since(started); ended != tt.ended || took != tt.want {
					t.Errorf("ended %v after %s, want %v after %s", ended, took, tt.ended, tt.want)
				}
			})
		})
	}
}

// TestAddresses shows that addresses are not used again soon, and that a pod gets its own again.
func TestAddresses(t *testing.T) {
	n := &network{ranges: []*addresses{newAddresses(netipPrefix(t, "10.64.129.0/29"))}}
	var got []string
	for range 7 {
		addrs, err := n.take(nil)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, addrs[0].String())
		n.give(addrs)
	}
	want := []string{"10.64.129.2", "10.64.129.3", "10.64.129.4", "10.64.129.5", "10.64.129.6", "10.64.129.2", "10.64.129.3"}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("addresses %v, want %v", got, want)
		}
	}
	before := podIPs("10.64.129.5")
	if addrs, err := n.take(before); err != nil || addrs[0].String() != "10.64.129.5" {
		t.Errorf("a pod that had 10.64.129.5 gets %v, %v", addrs, err)
	}
	if addrs, err := n.take(before); err != nil || addrs[0].String() == "10.64.129.5" {
		t.Errorf("an address in use is given to another pod: %v, %v", addrs, err)
	}
	for range 3 {
		if _, err := n.take(nil); err != nil {
			t.Fatal(err)
		}
	}
	if addrs, err := n.take(nil); err == nil {
		t.Errorf("a sixth address of five: %v", addrs)
	}
}

func netipPrefix(t *testing.T, text string) netip.Prefix {
	t.Helper()
	p, err := netip.ParsePrefix(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func podIPs(ips ...string) []corev1.PodIP {
	var list []corev1.PodIP
	for _, ip := range ips {
		list = append(list, corev1.PodIP{IP: ip})
	}
	return list
}

package cli

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// TestGatePortTaken: a port that somebody else has is no matter of the cluster, and the message says what to do.
func TestGatePortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	_, err = net.Listen("tcp", taken.Addr().String())
	text := (&app{kube: &kube{flags: genericclioptions.NewConfigFlags(true)}}).explain(fmt.Errorf("serve webhooks: %w", err))
	want := "serve webhooks: listen tcp " + taken.Addr().String() + ": bind: address already in use; end what listens there"
	if !strings.HasPrefix(text, want) || !strings.Contains(text, "--webhook-port") {
		t.Errorf("%q, want %q", text, want)
	}
}

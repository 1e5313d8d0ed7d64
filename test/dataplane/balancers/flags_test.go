package balancers

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFlagsJoinSockets(t *testing.T) {
	t.Parallel()
	got := Flags(hookWay("/x", "/a"), Way{Flags: []string{"--y"}}, hookWay("/x", "/b"), hookWay("/x", "/a"), Way{Flags: []string{"--y"}})
	want := []string{`--hook-option=exec.command=["/usr/bin/env","HAPROXY_SOCKETS=/a /b","/x"]`, "--y"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

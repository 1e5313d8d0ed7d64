package cluster_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/safedrain/safedrain/internal/casetest"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/guard"
)

// TestCases judges every case that asks for a plan of nodes or an audit, with the real hooks and rules and without the command.
func TestCases(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join("..", "..", "testdata", "cases", "*"))
	if err != nil || len(dirs) < 40 {
		t.Fatalf("%d cases: %v", len(dirs), err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			casetest.Run(t, dir, func(args []string) ([]byte, int) { return plan(t, args) })
		})
	}
}

// plan does what the commands plan and audit do with these arguments.
func plan(t *testing.T, args []string) ([]byte, int) {
	t.Helper()
	req, file := request(t, args)
	s, err := cluster.Read(t.Context(), []string{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var missing *cluster.NotFound
	if err := s.Resolve(req.Nodes); errors.As(err, &missing) {
		return nil, 1
	}
	if args[0] == "audit" {
		out, err := json.Marshal(guard.Audit(s.Index(hookset.New(hookset.Deps{}), nil), guard.AuditFilter{}))
		if err != nil {
			t.Fatal(err)
		}
		return out, 0
	}
	answer := guard.Plan(s.Index(hookset.New(hookset.Deps{}), req.Nodes), req)
	out, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Refused() {
		return out, 3
	}
	return out, 0
}

// request reads the arguments of a case.
func request(t *testing.T, args []string) (req guard.Request, file string) {
	t.Helper()
	req.Flags.GracePeriod = -1
	rest := args[1:]
	for len(rest) > 0 {
		arg := rest[0]
		rest = rest[1:]
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "-f":
			file, rest = rest[0], rest[1:]
		case "-o":
			rest = rest[1:]
		case "--ignore-daemonsets":
			req.Flags.IgnoreDaemonSets = true
		case "--delete-emptydir-data":
			req.Flags.DeleteEmptyDirData = true
		case "--force":
			req.Flags.Force = true
		case "--respect-do-not-evict":
			req.Flags.RespectDoNotEvict = true
		case "--stay-up":
			req.StayUp = true
		case "--accept-unproven":
			req.Flags.AcceptUnproven = append(req.Flags.AcceptUnproven, value)
		case "--force-unsafe":
			req.Flags.ForceUnsafe = append(req.Flags.ForceUnsafe, value)
		default:
			if strings.HasPrefix(arg, "-") {
				t.Fatalf("argument %s", arg)
			}
			req.Nodes = append(req.Nodes, arg)
		}
	}
	slices.Sort(req.Nodes)
	return req, file
}

package execcmd_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	execcmd "github.com/safedrain/safedrain/pkg/lbhooks/exec"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// command is a hook whose command is a shell script.
func command(t *testing.T, body string, more ...string) *execcmd.Hook {
	t.Helper()
	values := map[string]string{"command": write(t, filepath.Join(t.TempDir(), "hook"), "#!/bin/sh\n"+body)}
	for i := 0; i+1 < len(more); i += 2 {
		values[more[i]] = more[i+1]
	}
	return execcmd.New("edge", options(t, values), false)
}

// What the command prints and how it ends, and what it is taken for. Doubt is never a proof.
func TestProve(t *testing.T) {
	five := 5 * time.Second
	answer := func(fields string) string {
		return `echo '{"apiVersion":"safedrain.dev/v1alpha1","kind":"HookAnswer",` + fields + `}'; `
	}
	for name, test := range map[string]struct {
		body        string
		want        lbhooks.Proof
		says        string // the error's text; "" for none
		unavailable bool
	}{
		"out":                       {body: "echo is MAINT", want: lbhooks.Proof{Out: true, Evidence: "is MAINT"}},
		"out, the last line counts": {body: "echo looking; echo '  is  MAINT '; echo", want: lbhooks.Proof{Out: true, Evidence: "is MAINT"}},
		"still in":                  {body: "echo is UP; exit 75", want: lbhooks.Proof{Evidence: "is UP"}},
		"still in, and idle":        {body: "echo is DOWN; exit 76", want: lbhooks.Proof{Idle: true, Evidence: "is DOWN"}},
		"still in, without a word":  {body: "exit 75", want: lbhooks.Proof{Evidence: "the command says that the node is still in rotation"}},
		"0 without a word":          {body: "exit 0", says: "printed nothing"},
		"an action it forgot":       {body: "case $1 in withdraw) ;; esac", says: "printed nothing"},
		"a failure":                 {body: "echo is MAINT; echo 'socket: no such file' >&2; exit 1", says: "ended with code 1: socket: no such file"},
		"a failure without a word":  {body: "exit 3", says: "code 3: nothing on stderr"},
		"killed":                    {body: "kill -9 $$", says: "signal: killed"},
		"no credentials":            {body: "echo token expired >&2; exit 77", says: "token expired", unavailable: true},
		"no configuration":          {body: "exit 78", says: "code 78", unavailable: true},
		"a program is missing":      {body: "no-such-program", says: "code 127", unavailable: true},
		"JSON":                      {body: answer(`"out":true,"evidence":"is MAINT","by":"n2","settle":"5s"`), want: lbhooks.Proof{Out: true, Evidence: "is MAINT", By: "n2", Settle: &five}},
		"JSON, still in":            {body: answer(`"out":false,"evidence":"is UP"`) + "exit 75", want: lbhooks.Proof{Evidence: "is UP"}},
		"JSON against the code":     {body: answer(`"out":false,"evidence":"is UP"`), says: "ended with 0 and its answer says out: false"},
		"JSON against the code 75":  {body: answer(`"out":true,"evidence":"is MAINT"`) + "exit 75", says: "ended with 75 and its answer says out: true"},
		"JSON without out":          {body: answer(`"evidence":"is MAINT"`), says: "does not say out"},
		"JSON without evidence":     {body: answer(`"out":true`), says: "no evidence"},
		"JSON with a field unknown": {body: answer(`"Out":true,"evidnce":"x"`), says: "unknown field"},
		"JSON of another version":   {body: `echo '{"apiVersion":"v2","kind":"HookAnswer"}'`, says: "want safedrain.dev/v1alpha1 HookAnswer"},
		"JSON that is cut":          {body: `echo '{"apiVersion":"safedrain.dev/v1alpha1"'`, says: "no HookAnswer"},
		"too much":                  {body: "head -c 70000 /dev/zero | tr '\\0' x; echo; echo is MAINT", says: "more than 65536 bytes"},
		"a settle that is none":     {body: answer(`"out":true,"evidence":"x","settle":"soon"`), says: "not a duration"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := command(t, test.body).Prove(t.Context(), target())
			if test.says == "" {
				if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
					t.Errorf("%v, -want +got\n%s", err, diff)
				}
				return
			}
			if err == nil || got.Out || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v, %v; want an error with %q", got, err, test.says)
			}
			if errors.Is(err, lbhooks.ErrUnavailable) != test.unavailable {
				t.Errorf("%v: cannot work: want %t", err, test.unavailable)
			}
		})
	}
}

func TestAct(t *testing.T) {
	hook := command(t, `echo "$1 $SAFEDRAIN_NODE" >>"$(dirname "$0")/calls"; [ "$1" != restore ] || { echo refused >&2; exit 75; }`)
	if err := hook.Withdraw(t.Context(), target()); err != nil {
		t.Error(err)
	}
	if err := hook.Restore(t.Context(), target()); err == nil || !strings.Contains(err.Error(), "restore of node \"n1\" for w/lb ended with code 75: refused") {
		t.Errorf("%v", err)
	}
}

func TestCommandThatCannotStart(t *testing.T) {
	for name, path := range map[string]string{
		"missing":        filepath.Join(t.TempDir(), "none"),
		"not executable": filepath.Join(t.TempDir(), "text"),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "not executable" {
				if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			hook := execcmd.New("edge", options(t, map[string]string{"command": path}), false)
			if err := hook.Withdraw(t.Context(), target()); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want that it cannot work", err)
			}
		})
	}
}

// What the command is told, in both ways.
func TestRequest(t *testing.T) {
	t.Setenv("SAFEDRAIN_NODE", "another")
	t.Setenv("SAFEDRAIN_SECRET", "x")
	dir := t.TempDir()
	t.Setenv("OUT", dir)
	hook := command(t, `env | grep ^SAFEDRAIN_ | grep -v _KEY= | LC_ALL=C sort >"$OUT/env"; cat >"$OUT/in"; echo "$SAFEDRAIN_KEY" >>"$OUT/keys"`)
	for range 2 {
		if err := hook.Withdraw(t.Context(), target()); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	want := `SAFEDRAIN_ACTION=withdraw
SAFEDRAIN_HEALTH_CHECK_NODE_PORT=32000
SAFEDRAIN_HOOK=edge
SAFEDRAIN_NODE=n1
SAFEDRAIN_NODE_ADDRESSES=n1 192.0.2.1 2001:db8::1
SAFEDRAIN_NODE_INTERNAL_IPS=192.0.2.1 2001:db8::1
SAFEDRAIN_NODE_PORTS=30443/TCP
SAFEDRAIN_NODE_PROVIDER_ID=metal:///n1
SAFEDRAIN_NODE_UID=u-n1
SAFEDRAIN_PORTS=443/TCP 53/UDP
SAFEDRAIN_RUN=r1
SAFEDRAIN_SERVICE=w/lb
SAFEDRAIN_SERVICE_INGRESS=203.0.113.10 lb.example.com
SAFEDRAIN_SERVICE_NAME=lb
SAFEDRAIN_SERVICE_NAMESPACE=w
SAFEDRAIN_SERVICE_TYPE=LoadBalancer
SAFEDRAIN_SERVICE_UID=u-lb
SAFEDRAIN_TIMEOUT=10
`
	if diff := cmp.Diff(want, read("env")); diff != "" {
		t.Errorf("environment, -want +got\n%s", diff)
	}
	keys := strings.Fields(read("keys"))
	if len(keys) != 2 || keys[0] != keys[1] {
		t.Errorf("keys %v, want one for both", keys)
	}
	var got protocol.Request
	if err := json.Unmarshal([]byte(read("in")), &got); err != nil {
		t.Fatal(err)
	}
	wanted := protocol.NewRequest("edge", protocol.Withdraw, target())
	if diff := cmp.Diff(*wanted, got); diff != "" {
		t.Errorf("stdin, -want +got\n%s", diff)
	}
}

// alive reports whether a process is there and no zombie.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func there(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func waitGone(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); alive(pid); {
		if time.Now().After(deadline) {
			t.Fatalf("process %d outlived the command", pid)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// inTime fails a test whose command was waited for as long as it would have slept.
func inTime(t *testing.T) {
	t.Helper()
	began := time.Now()
	t.Cleanup(func() {
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("took %s", took)
		}
	})
}

var errStopped = errors.New("stopped by a test")

// A command that is to end is ended, with its children, and within a moment even if it does not want to.
func TestCallerEnds(t *testing.T) {
	hooks, dirs := map[string]*execcmd.Hook{}, map[string]string{}
	for name, body := range map[string]string{
		"it sleeps":                       `ready $$; sleep 600`,
		"a child sleeps":                  `sleep 600 & ready $!; wait`,
		"it ignores signals":              `trap '' TERM; ready $$; while :; do sleep 1; done`,
		"a child ignores them":            `(trap '' TERM; while :; do sleep 1; done) & ready $!; wait`,
		"a child ignores them, silent":    `(trap '' TERM; exec >/dev/null 2>&1; while :; do sleep 1; done) & ready $!; wait`,
		"it has ended, its child has not": `trap 'exit 0' TERM; (trap '' TERM; while :; do sleep 1; done) & ready $!; wait`,
	} {
		// All scripts are written before one runs: what is being started holds files open that are being written.
		dirs[name] = t.TempDir()
		ready := "ready() { echo 'waiting for the socket' >&2; echo $1 >" + dirs[name] + "/new; mv " + dirs[name] + "/new " + dirs[name] + "/pid; }\n"
		hooks[name] = command(t, ready+body, "timeout", "5m")
	}
	for name, hook := range hooks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inTime(t)
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			pid := filepath.Join(dirs[name], "pid")
			go func() {
				for !there(pid) && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				stop(errStopped)
			}()
			proof, err := hook.Prove(ctx, target())
			if !errors.Is(err, errStopped) || proof.Out || errors.Is(err, lbhooks.ErrUnavailable) {
				t.Errorf("%+v, %v; want %v", proof, err, errStopped)
			}
			if err != nil && !strings.Contains(err.Error(), "was ended (it said: waiting for the socket)") {
				t.Errorf("%v: without its last words", err)
			}
			waitGone(t, pid)
		})
	}
	t.Run("before it begins", func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		stop(errStopped)
		if err := command(t, "exit 0").Withdraw(ctx, target()); !errors.Is(err, errStopped) {
			t.Errorf("%v, want %v", err, errStopped)
		}
	})
}

// The same happens when its time is over.
func TestTimeout(t *testing.T) {
	inTime(t)
	proof, err := command(t, "sleep 600", "timeout", "200ms").Prove(t.Context(), target())
	if !errors.Is(err, context.DeadlineExceeded) || proof.Out || errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "was ended after 200ms") {
		t.Errorf("%+v, %v; want that it timed out", proof, err)
	}
}

// A child that keeps the output open does not keep the hook, nor outlive the command.
func TestChildLeftBehind(t *testing.T) {
	inTime(t)
	dir := t.TempDir()
	hook := command(t, "sleep 600 & echo $! >"+dir+"/pid; echo is MAINT", "timeout", "5m")
	proof, err := hook.Prove(t.Context(), target())
	if err != nil || !proof.Out || proof.Evidence != "is MAINT" {
		t.Errorf("%+v, %v", proof, err)
	}
	waitGone(t, filepath.Join(dir, "pid"))
}

func TestAssert(t *testing.T) {
	set := options(t, map[string]string{"command": "/bin/true"})
	svc := target().Service
	for name, test := range map[string]struct {
		hook    *execcmd.Hook
		removal any
		broken  string
	}{
		"configured":              {execcmd.New("edge", set, false), lbhooks.RemovalHook, ""},
		"not configured":          {execcmd.New("edge", lbhooks.Options{}, false), lbhooks.RemovalNone, "--hook-option edge.command="},
		"not configured, offline": {execcmd.New("edge", lbhooks.Options{}, true), lbhooks.RemovalHook, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok := test.hook.Match(svc, nil); ok {
				t.Error("it matched by itself")
			}
			r := test.hook.Assert(svc, nil)
			if r.Hook != "edge" || r.Removal != test.removal || r.Provable != (test.broken == "") || r.Follows || !strings.Contains(r.Broken, test.broken) || (r.Broken == "") != (test.broken == "") {
				t.Errorf("%+v", r)
			}
			if s := r.Seat("any"); s.In != lbhooks.Unknown || !s.Eligible {
				t.Errorf("seat %+v", s)
			}
			if (test.hook.Configured() == nil) != (name == "configured") {
				t.Errorf("configured: %v", test.hook.Configured())
			}
		})
	}
}

func TestOptions(t *testing.T) {
	for name, test := range map[string]struct {
		values map[string]string
		says   string
	}{
		"a path":               {map[string]string{"command": "/bin/true", "timeout": "5s", "settle": "0s"}, ""},
		"a list":               {map[string]string{"command": `["/bin/sh", "-c", "exit 0"]`}, ""},
		"a relative path":      {map[string]string{"command": "bin/true"}, "not an absolute path"},
		"a relative path, too": {map[string]string{"command": `["true", "/x"]`}, "not an absolute path"},
		"an empty list":        {map[string]string{"command": `[]`}, "not an absolute path"},
		"a list that is none":  {map[string]string{"command": `["/bin/true"`}, "JSON array of strings"},
		"a time without unit":  {map[string]string{"timeout": "5"}, "not a duration"},
		"no time":              {map[string]string{"timeout": "0s"}, "longer than 0s"},
		"unknown":              {map[string]string{"comand": "/bin/true"}, `no option "comand"; known: command, settle, timeout`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := lbhooks.NewOptions(execcmd.Options(), test.values)
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

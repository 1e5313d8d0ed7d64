package hookset_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// header begins every configuration.
const header = "apiVersion: safedrain.dev/v1alpha1\nkind: HookConfig\n"

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hooks.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func settings(t *testing.T, config string, options ...string) hookset.Settings {
	t.Helper()
	f := hookset.Flags{Options: options}
	if config != "" {
		f.Config = configFile(t, header+config)
	}
	s, err := hookset.ReadSettings(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every mistake is an error of one line that names where it is and what there could be.
func TestConfigMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		says []string
	}{
		"empty":                 {"", []string{"the file is empty"}},
		"not YAML":              {"{", []string{"line 1"}},
		"another kind":          {"apiVersion: v1\nkind: ConfigMap\n", []string{`apiVersion "v1", kind "ConfigMap"`, "want safedrain.dev/v1alpha1, HookConfig"}},
		"another version":       {"apiVersion: safedrain.dev/v2\nkind: HookConfig\n", []string{"want safedrain.dev/v1alpha1"}},
		"two documents":         {header + "---\n" + header, []string{"more than one document"}},
		"unknown field":         {header + "rule: []\n", []string{"line 3", `unknown field "rule"`}},
		"unknown field in rule": {header + "rules:\n- namespace: a\n  hook: none\n", []string{"line 4", `unknown field "namespace"`}},
		"a field twice":         {header + "rules: []\nrules: []\n", []string{"line 4", `"rules" already defined`}},
		"a list expected":       {header + "rules:\n- {namespaces: web, hook: none}\n", []string{"line 4", "!!str"}},
		"unknown hook":          {header + "rules:\n- hook: none\n- {names: [a], hook: metalb}\n", []string{"line 5: rule 2", `"metalb": no hook of that name; known: aws`}},
		"a rule of nothing":     {header + "rules:\n- names: [a]\n", []string{"rule 1: it says nothing"}},
		"selector":              {header + "rules:\n- {selector: a=b=c, hook: none}\n", []string{"not a label selector"}},
		"glob":                  {header + "rules:\n- {names: ['[a'], hook: none}\n", []string{"not a name or a glob"}},
		"settle":                {header + "rules:\n- {settle: 5}\n", []string{`settle "5" is not a duration`}},
		"timeout":               {header + "rules:\n- {timeout: -1s}\n", []string{`timeout "-1s" is not a duration`}},
		"timeout of nothing":    {header + "rules:\n- {timeout: 0s}\n", []string{"longer than 0s"}},
		"option unknown":        {header + "hooks:\n- name: exec\n  options:\n    comand: /bin/true\n", []string{"line 4", "hook exec", `no option "comand"; known: command, settle, timeout`}},
		"option of no hook":     {header + "hooks:\n- name: metallb-bgp\n  options: {x: y}\n", []string{`no option "x"; known: none`}},
		"option that is a map":  {header + "hooks:\n- name: exec\n  options: {command: {a: b}}\n", []string{"line 5", "one value or a list"}},
		"hook twice":            {header + "hooks:\n- {name: exec}\n- {name: exec}\n", []string{"line 5", "there twice"}},
		"hook without a name":   {header + "hooks:\n- {type: exec}\n", []string{"line 4", "without a name"}},
		"no type":               {header + "hooks:\n- {name: edge}\n", []string{"give it a type: exec or http"}},
		"type without names":    {header + "hooks:\n- {name: edge, type: aws}\n", []string{`only hooks of type exec or http have names of their own, not "aws"`}},
		"a type's name":         {header + "hooks:\n- {name: aws, type: exec}\n", []string{"a type's own"}},
		"a name like no other":  {header + "hooks:\n- {name: Edge.1, type: exec}\n", []string{"lower case letters"}},
		"the name none":         {header + "hooks:\n- {name: none, type: exec}\n", []string{"lower case letters"}},
		"two mistakes":          {header + "hooks:\n- {name: edge}\nrules:\n- {timeout: x}\n", []string{"line 4", "line 6"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := configFile(t, test.text)
			_, err := hookset.ReadSettings(hookset.Flags{Config: path})
			if err == nil {
				t.Fatal("it was taken")
			}
			for _, says := range append(test.says, path) {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("%v: want %q", err, says)
				}
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "hookset.") {
				t.Errorf("%q is not for people", err)
			}
		})
	}
	if _, err := hookset.ReadSettings(hookset.Flags{Config: "/no/such/file"}); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestOptionFlags(t *testing.T) {
	for name, test := range map[string]struct {
		values []string
		says   string
	}{
		"none":           {},
		"fine":           {values: []string{"exec.command=/bin/true", "exec.timeout=5s", "http.url=https://a/b?c=d"}},
		"twice the same": {values: []string{"exec.timeout=5s", "exec.timeout=5s"}},
		"twice":          {values: []string{"exec.timeout=5s", "exec.timeout=6s"}, says: `exec.timeout is "5s" already`},
		"no key":         {values: []string{"exec=/bin/true"}, says: "write name.key=value"},
		"no value":       {values: []string{"exec.command"}, says: "write name.key=value"},
		"no hook":        {values: []string{".command=/bin/true"}, says: "write name.key=value"},
		"unknown hook":   {values: []string{"exe.command=/bin/true"}, says: `hook options of "exe": no hook of that name; known: aws`},
		"unknown option": {values: []string{"exec.cmd=/bin/true"}, says: `hook exec: no option "cmd"; known: command, settle, timeout`},
		"bad value":      {values: []string{"exec.timeout=soon"}, says: `hook exec: option timeout="soon": not a duration`},
		"two bad values": {values: []string{"exec.timeout=soon", "exec.cmd=x"}, says: `known: command, settle, timeout; option timeout="soon"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := hookset.ReadSettings(hookset.Flags{Options: test.values})
			if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

// full is a configuration with everything in it.
const full = `hooks:
- name: exec
  options:
    command: /bin/true
    timeout: 3s
- name: edge
  type: exec
  options:
    command: [/bin/sh, -c, "exit 0"]
    settle: 4s
- name: api
  type: http
  options: {url: "https://lb.example.com/hook", retries: 5}
rules:
- namespaces: [e]
  names: ["a*"]
  selector: tier in (gold)
  hook: edge
  settle: 7s
  timeout: 2m
- loadBalancerClass: example.com/lb
  hook: api
- selector: quiet=yes
  settle: 9s
- names: [a]
  hook: none
`

// Which hook fronts a Service: flag, annotation, the first rule that selects it, then what matches by itself.
func TestRules(t *testing.T) {
	gold := func(svc *corev1.Service) *corev1.Service {
		svc.Labels = map[string]string{"tier": "gold"}
		return svc
	}
	nine := 9 * time.Second
	for name, test := range map[string]struct {
		svc      *corev1.Service
		override map[string]string
		config   string
		hook     string
		reason   string
		settle   time.Duration
		timeout  time.Duration
		broken   string
		conflict bool
	}{
		"the first rule":               {svc: gold(service(lb)), hook: "edge", reason: "config rule 1", settle: 7 * time.Second, timeout: 2 * time.Minute},
		"by class":                     {svc: class(service(lb), "example.com/lb"), hook: "api", reason: "config rule 2"},
		"the last rule":                {svc: service(lb), hook: "", reason: "config rule 4: none"},
		"annotation beats a rule":      {svc: gold(service(lb, lbhooks.AnnotationHook, "exec")), hook: "exec", reason: "annotation", settle: 7 * time.Second, timeout: 2 * time.Minute},
		"an empty one does not":        {svc: gold(service(lb, lbhooks.AnnotationHook, " ")), hook: "edge", reason: "config rule 1", settle: 7 * time.Second, timeout: 2 * time.Minute},
		"annotation by name":           {svc: service(lb, lbhooks.AnnotationHook, "api"), hook: "api", reason: "annotation"},
		"flag beats annotation":        {svc: gold(service(lb, lbhooks.AnnotationHook, "exec")), override: map[string]string{"e/a": "api"}, hook: "api", reason: "flag --hook", settle: 7 * time.Second, timeout: 2 * time.Minute},
		"annotated settle beats rules": {svc: gold(service(lb, lbhooks.AnnotationSettle, "9s")), hook: "edge", reason: "config rule 1", settle: nine, timeout: 2 * time.Minute},
		"annotation names nothing":     {svc: service(lb, lbhooks.AnnotationHook, "edgy"), hook: "edgy", reason: "annotation", broken: "edge, exec"},
		"a rule only with times": {
			config: "rules:\n- {settle: 1s, timeout: 2s}\n", svc: service(lb), hook: "metallb-l2", reason: "ServiceL2Status", settle: time.Second, timeout: 2 * time.Second,
		},
		"a rule against a hook that matches": {config: "rules:\n- {hook: health-check}\n", svc: service(lb), hook: "health-check", reason: "config rule 1"},
		"a hook that sees nothing of it":     {config: "rules:\n- {hook: metallb-bgp}\n", svc: service(lb), hook: "metallb-bgp", broken: "nothing of metallb-bgp"},
		"not configured, by a rule":          {config: "rules:\n- {hook: http}\n", svc: service(lb), hook: "http", reason: "config rule 1"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.config == "" {
				test.config = full
			}
			set := hookset.New(hookset.Deps{Override: test.override, Settings: settings(t, test.config)})
			r := set.Match(test.svc, &hooktest.Objects{AllNodes: nodes(""), Customs: metalLB()})
			if r.Hook != test.hook || !strings.Contains(r.Reason, test.reason) || !strings.Contains(r.Broken, test.broken) || (r.Broken == "") != (test.broken == "") {
				t.Errorf("hook %q, reason %q, broken %q", r.Hook, r.Reason, r.Broken)
			}
			if r.Timeout != test.timeout || (r.Settle == nil) != (test.settle == 0) || r.Settle != nil && (*r.Settle != test.settle || r.SettleBy == "") {
				t.Errorf("timeout %s, settle %v by %q", r.Timeout, r.Settle, r.SettleBy)
			}
		})
	}
}

// Named hooks are there under their names, with their own options; a flag wins over the file, option by option.
func TestNamedHooks(t *testing.T) {
	set := hookset.New(hookset.Deps{Settings: settings(t, full, "edge.settle=6s", "exec.settle=1s")})
	got := map[string]time.Duration{}
	for _, name := range []string{"exec", "edge", "api", "http"} {
		hook, ok := set.Hook(name)
		if !ok || hook.Describe().Name != name {
			t.Fatalf("no hook %q: %+v", name, hook)
		}
		got[name] = hook.Describe().Settle
	}
	if diff := cmp.Diff(map[string]time.Duration{"exec": time.Second, "edge": 6 * time.Second, "api": 0, "http": 0}, got); diff != "" {
		t.Errorf("settle, -want +got\n%s", diff)
	}
	for name, configured := range map[string]bool{"exec": true, "edge": true, "api": true, "http": false} {
		hook, _ := set.Hook(name)
		if err := hook.(lbhooks.Configurable).Configured(); (err == nil) != configured {
			t.Errorf("%s configured: %v", name, err)
		}
	}
	if got, err := hookset.ParseOverrides([]string{"e/a=edge"}, settings(t, full)); err != nil || got["e/a"] != "edge" {
		t.Errorf("%v, %v", got, err)
	}
}

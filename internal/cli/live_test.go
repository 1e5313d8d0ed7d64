package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/testdata/example"
)

// live is the program on a cluster that holds an example.
type live struct {
	client      *fake.Clientset
	out, errOut bytes.Buffer
}

// exampleList reads the objects of an example.
func exampleList(t *testing.T, name string) corev1.List {
	t.Helper()
	dump, err := example.Files.ReadFile(name + "/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.ToJSON(dump)
	if err != nil {
		t.Fatal(err)
	}
	var list corev1.List
	if err := json.Unmarshal(asJSON, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func newLive(t *testing.T, name string) *live {
	t.Helper()
	list := exampleList(t, name)
	var objects []runtime.Object
	for i := range list.Items {
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(list.Items[i].Raw, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			continue // of MetalLB; read by a client of its own
		}
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	return &live{client: fake.NewClientset(objects...)}
}

// run runs a command line and returns its exit code.
func (l *live) run(t *testing.T, soft <-chan struct{}, args ...string) int {
	t.Helper()
	l.out.Reset()
	l.errOut.Reset()
	l.client.ClearActions()
	a := newApp(Process{Args: []string{"safedrain"}, Streams: Streams{In: strings.NewReader(""), Out: &l.out, ErrOut: &l.errOut}, Soft: soft})
	a.kube.connect = func() (*cluster.Clients, error) { return &cluster.Clients{Kubernetes: l.client}, nil }
	return a.execute(t.Context(), args)
}

// writes are the calls that change something.
func (l *live) writes() []string {
	var out []string
	for _, a := range l.client.Actions() {
		if v := a.GetVerb(); v != "get" && v != "list" && v != "watch" {
			out = append(out, v+" "+a.GetResource().Resource)
		}
	}
	return out
}

func TestDrainRefusedLive(t *testing.T) {
	l := newLive(t, "before")
	if code := l.run(t, nil, "node-1", "--ignore-daemonsets"); code != 3 {
		t.Fatalf("exit code %d, want 3\n%s", code, l.errOut.String())
	}
	for _, want := range []string{
		"error: node/node-1 refused, nothing changed: kubelings/checkout would have no endpoint left\n", "UNSAFE ", "--force-unsafe=service/kubelings/checkout",
	} {
		if !strings.Contains(l.errOut.String(), want) {
			t.Errorf("stderr lacks %q:\n%s", want, l.errOut.String())
		}
	}
	if l.out.Len() > 0 || len(l.writes()) > 0 {
		t.Errorf("stdout %q, writes %v, want none", l.out.String(), l.writes())
	}
}

func TestDrainReportOfRefusal(t *testing.T) {
	l := newLive(t, "before")
	if code := l.run(t, nil, "drain", "node/node-1", "--ignore-daemonsets", "-o", "json"); code != 3 {
		t.Fatalf("exit code %d, want 3\n%s", code, l.errOut.String())
	}
	var report guard.DrainReport
	if err := json.Unmarshal(l.out.Bytes(), &report); err != nil {
		t.Fatalf("stdout is not one document: %v\n%s", err, l.out.String())
	}
	if report.Kind != guard.KindDrainReport || report.Verdict != guard.Unsafe || report.Steps == nil {
		t.Errorf("kind %s, verdict %s, steps %v", report.Kind, report.Verdict, report.Steps)
	}
}

// TestMistypedNeverDrains: every name is resolved before anything is sent that could change something.
func TestMistypedNeverDrains(t *testing.T) {
	l := newLive(t, "after")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"command":           {[]string{"plna", "node-1"}, `"plna" is no command and no node; did you mean the command "plan"?`},
		"node":              {[]string{"node-11"}, `node "node-11" not found, did you mean node-1`},
		"second node":       {[]string{"node-1", "node-9x"}, `node "node-9x" not found`},
		"selector of none":  {[]string{"-l", "no=such"}, "no node matches the selector"},
		"after the command": {[]string{"drain", "node-1", "nod-2"}, `node "nod-2" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			if code := l.run(t, nil, append(test.args, "--ignore-daemonsets", "--accept-unproven=all")...); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			if !strings.Contains(l.errOut.String(), test.want) {
				t.Errorf("stderr lacks %q:\n%s", test.want, l.errOut.String())
			}
			if w := l.writes(); len(w) > 0 || l.out.Len() > 0 {
				t.Errorf("writes %v, stdout %q", w, l.out.String())
			}
		})
	}
}

func TestDryRunClientLive(t *testing.T) {
	l := newLive(t, "after")
	if code := l.run(t, nil, "node-1", "--ignore-daemonsets", "--accept-unproven=kubelings/checkout", "--dry-run=client"); code != 0 {
		t.Fatalf("exit code %d\n%s", code, l.errOut.String())
	}
	const want = "node/node-1 cordoned (dry run)\nevicting pod kubelings/checkout-6c5b7f9d48-4kq7x (dry run)\nnode/node-1 drained (dry run)\n"
	if got := l.out.String(); got != want {
		t.Errorf("stdout\n%swant\n%s", got, want)
	}
	if w := l.writes(); len(w) > 0 {
		t.Errorf("a dry run sent %v", w)
	}
}

func TestInterruptedBeforeAnything(t *testing.T) {
	soft := make(chan struct{})
	close(soft)
	l := newLive(t, "after")
	if code := l.run(t, soft, "node-1", "--ignore-daemonsets", "--accept-unproven=all"); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	if got := l.errOut.String(); !strings.Contains(got, "error: interrupted, nothing changed\n") {
		t.Errorf("stderr:\n%s", got)
	}
	if w := l.writes(); len(w) > 0 {
		t.Errorf("writes %v", w)
	}
	if code := l.run(t, soft, "plan", "node-1"); code != 130 && code != 3 {
		t.Errorf("plan: exit code %d", code)
	}
}

func TestPlanAndAuditLive(t *testing.T) {
	l := newLive(t, "before")
	if code := l.run(t, nil, "plan", "--each", "--ignore-daemonsets"); code != 3 {
		t.Errorf("plan --each: exit code %d\n%s", code, l.errOut.String())
	}
	if code := l.run(t, nil, "plan", "-l", "kubernetes.io/hostname=node-2", "--ignore-daemonsets"); code != 0 {
		t.Errorf("plan -l: exit code %d\n%s%s", code, l.out.String(), l.errOut.String())
	}
	if code := l.run(t, nil, "audit", "--fail-on=warn"); code != 3 || !strings.Contains(l.out.String(), "drops traffic") {
		t.Errorf("audit: exit code %d\n%s%s", code, l.out.String(), l.errOut.String())
	}
	if code := l.run(t, nil, "uncordon", "node-1"); code != 0 || l.out.String() != "node/node-1 already uncordoned\n" {
		t.Errorf("uncordon: exit code %d\n%s%s", code, l.out.String(), l.errOut.String())
	}
	if code := l.run(t, nil, "uncordon", "--all-ours", "-o", "json"); code != 0 || !strings.Contains(l.out.String(), `"kind": "RestoreReport"`) {
		t.Errorf("uncordon --all-ours: exit code %d\n%s%s", code, l.out.String(), l.errOut.String())
	}
}

// TestForbiddenNamesEveryVerb: one error says every permission that is missing, and what to ask for.
func TestForbiddenNamesEveryVerb(t *testing.T) {
	l := newLive(t, "after")
	for _, resource := range []string{"endpointslices", "poddisruptionbudgets"} {
		l.client.PrependReactor("list", resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
			gr := schema.GroupResource{Group: a.GetResource().Group, Resource: a.GetResource().Resource}
			return true, nil, apierrors.NewForbidden(gr, "", context.DeadlineExceeded)
		})
	}
	if code := l.run(t, nil, "plan", "node-1"); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, want := range []string{
		"list endpointslices.discovery.k8s.io", "list poddisruptionbudgets.policy", "needed", "safedrain rbac --read-only | kubectl apply -f -",
	} {
		if !strings.Contains(l.errOut.String(), want) {
			t.Errorf("stderr lacks %q:\n%s", want, l.errOut.String())
		}
	}
}

// TestRBACIsEnough: what the commands that change nothing ask of the API is allowed by the role that rbac prints for them.
func TestRBACIsEnough(t *testing.T) {
	role, err := (&rbacFlags{readOnly: true}).drainRole(newHooks(nil, choice{}).Descriptions())
	if err != nil {
		t.Fatal(err)
	}
	l := newLive(t, "after")
	for _, args := range [][]string{
		{"plan", "node-1"},
		{"plan", "--each"},
		{"plan", "-l", "kubernetes.io/os=linux"},
		{"audit"},
		{"hooks"},
		{"node-1", "--dry-run=client"},
		{"uncordon", "node-1", "--dry-run=client"},
	} {
		l.run(t, nil, args...)
		if len(l.client.Actions()) == 0 {
			t.Errorf("%v asked for nothing:\n%s", args, l.errOut.String())
		}
		for _, a := range l.client.Actions() {
			if a.GetVerb() == "get" && a.GetResource().Resource == "" || a.GetResource().Resource == "group" || a.GetResource().Resource == "resource" {
				continue // discovery is open to every user
			}
			if !allows(role, a.GetResource(), a.GetVerb()) {
				t.Errorf("%v: %s %s is not in the role", args, a.GetVerb(), a.GetResource())
			}
		}
	}
}

func allows(role *rbacv1.ClusterRole, r schema.GroupVersionResource, verb string) bool {
	return slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.APIGroups, r.Group) && slices.Contains(rule.Resources, r.Resource) && slices.Contains(rule.Verbs, verb)
	})
}

func TestChunkSize(t *testing.T) {
	l := newLive(t, "after")
	for flag, want := range map[string]int64{"--chunk-size=500": 500, "--chunk-size=7": 7, "--chunk-size=0": 0} {
		l.run(t, nil, "plan", "node-1", flag)
		lists := 0
		for _, a := range l.client.Actions() {
			list, ok := a.(clienttesting.ListActionImpl)
			if !ok {
				continue
			}
			lists++
			if list.ListOptions.Limit != want {
				t.Errorf("%s: %s is listed with limit %d", flag, a.GetResource().Resource, list.ListOptions.Limit)
			}
		}
		if lists == 0 {
			t.Errorf("%s: nothing was listed", flag)
		}
	}
}

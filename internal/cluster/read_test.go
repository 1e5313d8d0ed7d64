package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/cluster/clustertest"
)

func TestReadRefuses(t *testing.T) {
	node := `{apiVersion: v1, kind: Node, metadata: {name: a}}`
	for name, test := range map[string]struct {
		text string
		want []string // parts of the error
	}{
		"not YAML":                        {"a: [", []string{"stdin: document 1 (line 1): invalid YAML"}},
		"the document and its line":       {node + "\n---\n# a comment\n---\n\n" + node + "\n---\na: [\n", []string{"document 3 (line 8)"}},
		"no kind":                         {"a: b", []string{"no kind"}},
		"no apiVersion":                   {"kind: Node\nmetadata: {name: a}", []string{"Node", `apiVersion ""`}},
		"not an object":                   {"just text", []string{"not a Kubernetes object"}},
		"a list of things":                {"[1, 2]", []string{"not a Kubernetes object"}},
		"null":                            {"null", []string{"null where an object"}},
		"a null item":                     {"{apiVersion: v1, kind: List, items: [" + node + ", null]}", []string{"items[1]: null where an object"}},
		"items of a wrong type":           {"{apiVersion: v1, kind: List, items: {}}", []string{"List: items"}},
		"no name":                         {"{apiVersion: v1, kind: Node, metadata: {}}", []string{"Node has no metadata.name"}},
		"a wrong type, named":             {"{apiVersion: v1, kind: List, items: [" + node + ", {apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop}, spec: {ports: 5}}]}", []string{"items[1]: Service shop/api", "spec.ports"}},
		"a wrong type in a slice":         {"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x}, addressType: IPv4, endpoints: [{addresses: a}]}", []string{"EndpointSlice x", "endpoints.addresses"}},
		"an address that is none":         {"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x, labels: {kubernetes.io/service-name: s}}, addressType: IPv4, endpoints: [{addresses: [a.b]}]}", []string{"EndpointSlice x: endpoints[0]", `"a.b" is no IP address`}},
		"an address type that is none":    {"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x, labels: {kubernetes.io/service-name: s}}}", []string{"EndpointSlice x", "addressType"}},
		"an old version":                  {"{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: x}}", []string{"policy/v1beta1", "only v1"}},
		"a duplicate key in YAML":         {"apiVersion: v1\nkind: Node\nkind: Pod\nmetadata: {name: a}", []string{"invalid YAML", `"kind" already set`}},
		"a duplicate key in JSON":         {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{"unschedulable":true,"unschedulable":false}}`, []string{"Node a", "duplicate field"}},
		"a duplicate key in a list":       {`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"a","name":"b"}}]}`, []string{"items[0]", "duplicate field"}},
		"truncated JSON":                  {`{"apiVersion":"v1","kind":"Node","metadata":{"na`, []string{"truncated"}},
		"JSON and garbage":                {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}} }`, []string{"invalid JSON"}},
		"text after a flow mapping":       {node + "\nspec: {}", []string{"document 1 (line 1)", "invalid"}},
		"text after an indented mapping":  {"  apiVersion: v1\n  kind: Node\n  metadata: {name: a}\nspec: {}", []string{"invalid YAML"}},
		"binary":                          {"\x00\x01", []string{"not UTF-8"}},
		"UTF-16":                          {"\xff\xfek\x00", []string{"not UTF-8"}},
		"an object twice, differing":      {node + "\n---\n{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {unschedulable: true}}", []string{"document 2", "Node a", "twice"}},
		"lists in lists without end":      {strings.Repeat("{apiVersion: v1, kind: List, items: [", 20) + strings.Repeat("]}", 20), []string{"nested more than 8 deep"}},
		"a bomb of aliases":               {bomb(), []string{"excessive aliasing"}},
		"flow lists nested deeply":        {strings.Repeat("[", 1_000_000), []string{"invalid YAML"}},
		"JSON nested deeply":              {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":` + strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000) + "}", []string{"document 1"}},
		"block lists nested deeply":       {strings.Repeat("- ", 1_000_000), []string{"invalid YAML"}},
		"a custom object of a wrong type": {"{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: [], spec: {}}", []string{"not a Kubernetes object"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(context.Background(), []string{"-"}, strings.NewReader(test.text))
			if err == nil {
				t.Fatal("accepted")
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %.300q, want %q in it", err, part)
				}
			}
		})
	}
}

// bomb is a document of a few hundred bytes that would expand to billions of nodes.
func bomb() string {
	text := "apiVersion: v1\nkind: Node\nmetadata: {name: a}\na0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		text += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 8), i-1)
	}
	return text
}

func TestReadAccepts(t *testing.T) {
	const nodeA, nodeB = `{apiVersion: v1, kind: Node, metadata: {name: a}}`, `{apiVersion: v1, kind: Node, metadata: {name: b}}`
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"documents":                  {nodeA + "\n---\n" + nodeB, []string{"a", "b"}},
		"an end marker":              {nodeA + "\n...\n---\n" + nodeB + "\n...\n", []string{"a", "b"}},
		"text on the marker's line":  {"--- " + nodeA + "\n--- # c\n" + nodeB, []string{"a", "b"}},
		"Windows line ends":          {"apiVersion: v1\r\nkind: Node\r\nmetadata:\r\n  name: a\r\n---\r\n" + nodeB + "\r\n", []string{"a", "b"}},
		"a byte order mark":          {"\xef\xbb\xbf" + nodeA, []string{"a"}},
		"empty documents":            {"---\n---\n# nothing\n---\n" + nodeA + "\n---\n", []string{"a"}},
		"nothing at all":             {"", []string{}},
		"an indented document":       {"  apiVersion: v1\n  kind: Node\n  metadata:\n    name: a\n", []string{"a"}},
		"quoted keys":                {"'apiVersion': v1\n'kind': Node\n'metadata': {name: a}\n", []string{"a"}},
		"a directive":                {"%YAML 1.1\n---\n" + nodeA, []string{"a"}},
		"a flow mapping over lines":  {"{\n  apiVersion: v1,\n  kind: Node,\n  metadata: {name: a}\n}\n", []string{"a"}},
		"a List":                     {"{apiVersion: v1, kind: List, items: [" + nodeA + ", " + nodeB + "]}", []string{"a", "b"}},
		"a List in a List":           {"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, items: [" + nodeA + "]}]}", []string{"a"}},
		"a typed list":               {"{apiVersion: v1, kind: NodeList, items: [{metadata: {name: a}}, " + nodeB + "]}", []string{"a", "b"}},
		"a List without items":       {"{apiVersion: v1, kind: List, items: null}", []string{}},
		"JSON":                       {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}`, []string{"a"}},
		"JSON values in a row":       {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}{"apiVersion":"v1","kind":"Node","metadata":{"name":"b"}}`, []string{"a", "b"}},
		"JSON, a marker, YAML":       {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}` + "\n---\n" + nodeB, []string{"a", "b"}},
		"fields of a newer version":  {"{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {futureField: {x: [1]}}}", []string{"a"}},
		"the same object twice":      {nodeA + "\n---\n" + nodeA, []string{"a"}},
		"the newer copy wins":        {"{apiVersion: v1, kind: Node, metadata: {name: a, resourceVersion: '9', labels: {x: old}}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: a, resourceVersion: '10'}}", []string{"a"}},
		"the older copy loses":       {"{apiVersion: v1, kind: Node, metadata: {name: a, resourceVersion: '10'}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: a, resourceVersion: '9', labels: {x: old}}}", []string{"a"}},
		"kinds nobody reads":         {nodeA + "\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {a: b}}", []string{"a"}},
		"an anchor":                  {"apiVersion: v1\nkind: Node\nmetadata: {name: a, labels: &l {x: z}, annotations: *l}", []string{"a"}},
		"a custom kind without spec": {nodeA + "\n---\n{apiVersion: a.example/v1, kind: ThingList, metadata: {name: c}}", []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := read(t, test.text)
			if diff := cmp.Diff(test.want, s.NodeNames()); diff != "" {
				t.Error(diff)
			}
			if n, ok := s.RawNode("a"); ok && n.Labels["x"] == "old" {
				t.Error("the older copy was kept")
			}
		})
	}
}

func TestReadPaths(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("dump/a.yaml", "{apiVersion: v1, kind: Node, metadata: {name: a}}")
	write("dump/deep/b.json", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"b"}}`)
	write("dump/deep/c.YML", "{apiVersion: v1, kind: Node, metadata: {name: c}}")
	write("dump/notes.txt", "not for us: [")
	write("other", "{apiVersion: v1, kind: Node, metadata: {name: d}}")
	write("bad/x.yaml", "a: [")
	write("empty/notes.txt", "")
	at := func(names ...string) (out []string) {
		for _, n := range names {
			if n != "-" {
				n = filepath.Join(dir, n)
			}
			out = append(out, n)
		}
		return out
	}
	stdin := "{apiVersion: v1, kind: Node, metadata: {name: e}}"
	for name, test := range map[string]struct {
		paths []string
		want  []string
		err   string
	}{
		"a directory":           {at("dump"), []string{"a", "b", "c"}, ""},
		"a file of any name":    {at("other"), []string{"d"}, ""},
		"all kinds of paths":    {at("dump", "-", "other"), []string{"a", "b", "c", "d", "e"}, ""},
		"stdin twice":           {at("-", "-"), nil, "named twice"},
		"a file that is not":    {at("none"), nil, "no such file"},
		"a directory of others": {at("empty"), nil, "holds no *.yaml"},
		"the file at fault":     {at("dump", "bad"), nil, filepath.Join("bad", "x.yaml") + ": document 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Read(context.Background(), test.paths, strings.NewReader(stdin))
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, want %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, s.NodeNames()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadLimit(t *testing.T) {
	node := "{apiVersion: v1, kind: Node, metadata: {name: a}}"
	for name, test := range map[string]struct {
		left int64
		ok   bool
	}{"fits": {int64(2 * len(node)), true}, "one byte too many": {int64(2*len(node) - 1), false}} {
		t.Run(name, func(t *testing.T) {
			r := newReader()
			r.left = test.left
			if err := r.stream(context.Background(), "a", strings.NewReader(node)); err != nil {
				t.Fatal(err)
			}
			if err := r.stream(context.Background(), "b", strings.NewReader(node)); (err == nil) != test.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

// failing fails after a few bytes, as a broken pipe does.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestReadBrokenStream(t *testing.T) {
	if _, err := Read(context.Background(), []string{"-"}, failing{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Read(ctx, []string{"-"}, strings.NewReader("a: b")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestReadTruncated cuts a whole dump anywhere: an error or a smaller cluster that Lacks something, and never a panic.
func TestReadTruncated(t *testing.T) {
	var dump bytes.Buffer
	if err := clustertest.Large(5, 5, 5).WriteJSON(&dump); err != nil {
		t.Fatal(err)
	}
	for cut := 1; cut < dump.Len()-1; cut += 1499 {
		if _, err := Read(context.Background(), []string{"-"}, bytes.NewReader(dump.Bytes()[:cut])); err == nil {
			t.Fatalf("cut after %d of %d bytes: accepted", cut, dump.Len())
		}
	}
}

func TestTrimmed(t *testing.T) {
	s := read(t, `
{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: w, uid: U, managedFields: [{manager: m}], annotations: {kubectl.kubernetes.io/last-applied-configuration: x, a: b}, finalizers: [f]},
 spec: {nodeName: n1, terminationGracePeriodSeconds: 7, volumes: [{name: e, emptyDir: {}}, {name: c, configMap: {name: x, items: [{key: a, path: b}]}}],
  containers: [{name: c, image: i, env: [{name: A, value: b}], ports: [{containerPort: 80}, {containerPort: 81, hostPort: 81}], lifecycle: {preStop: {sleep: {seconds: 5}}}}]},
 status: {phase: Running, containerStatuses: [{name: c}], conditions: [{type: Ready, status: "True", message: m}]}}`)
	p, ok := s.Index(unknown(), nil).Pod("U")
	if !ok {
		t.Fatal("no pod")
	}
	c := p.Spec.Containers[0]
	for name, bad := range map[string]bool{
		"managed fields": p.ManagedFields != nil, "last applied": len(p.Annotations) != 1, "finalizers": len(p.Finalizers) != 1,
		"grace": *p.Spec.TerminationGracePeriodSeconds != 7, "emptyDir": p.Spec.Volumes[0].EmptyDir == nil,
		"config map": p.Spec.Volumes[1].ConfigMap == nil || p.Spec.Volumes[1].ConfigMap.Items != nil,
		"env":        c.Env != nil, "image": c.Image != "", "ports": len(c.Ports) != 1 || c.Ports[0].HostPort != 81,
		"preStop": c.Lifecycle == nil || c.Lifecycle.PreStop.Sleep.Seconds != 5, "phase": p.Status.Phase != corev1.PodRunning,
		"container statuses": p.Status.ContainerStatuses != nil, "ready": len(p.Status.Conditions) != 1,
	} {
		if bad {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

func TestLacks(t *testing.T) {
	const (
		node  = "\n---\n{apiVersion: v1, kind: Node, metadata: {name: a}}"
		svc   = "\n---\n{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {clusterIP: 10.0.0.1}}"
		head  = "\n---\n{apiVersion: v1, kind: Service, metadata: {name: h}, spec: {clusterIP: None}}"
		slice = "\n---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x}, addressType: IPv4}"
		pod   = "\n---\n{apiVersion: v1, kind: Pod, metadata: {name: p, uid: U, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: D, controller: true}]}, spec: {nodeName: a}}"
		pdb   = "\n---\n{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b}}"
		ds    = "\n---\n{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: d}}"
	)
	plan, audit := Scope{Nodes: []string{"a"}}, Scope{Workloads: true}
	for name, test := range map[string]struct {
		text   string
		scope  Scope
		want   []string
		doubts int
	}{
		"whole":                         {node + svc + slice + pod + pdb + ds, plan, nil, 0},
		"nothing":                       {"", plan, []string{"Node", "Pod"}, 2},
		"no slices":                     {node + svc + pod + pdb + ds, plan, []string{"EndpointSlice"}, 0},
		"no slices, but no one asks":    {node + head + pod + pdb + ds, plan, nil, 0},
		"no pods":                       {node + svc + slice + pdb + ds, plan, []string{"Pod"}, 0},
		"no pods, each node":            {node + svc + slice + pdb + ds, Scope{AllPods: true}, []string{"Pod"}, 0},
		"no pods for an audit":          {node + svc + slice + pdb + ds, audit, nil, 0},
		"no budgets":                    {node + svc + slice + pod + ds, plan, nil, 1},
		"no Services":                   {node + pod + pdb + ds, plan, nil, 1},
		"no DaemonSets, but pods of it": {node + svc + slice + pod + pdb, plan, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := read(t, test.text)
			var got []string
			if err := s.Lacks(test.scope); err != nil {
				var incomplete *Incomplete
				if !errors.As(err, &incomplete) || !strings.Contains(err.Error(), DumpCommand) {
					t.Fatalf("got %v", err)
				}
				got = incomplete.Kinds
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if d := s.Doubts(); len(d) != test.doubts {
				t.Errorf("doubts %q, want %d", d, test.doubts)
			}
		})
	}
}

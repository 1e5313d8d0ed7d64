package balancers

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/test/dataplane"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want []server
		in   []bool
		fail bool
	}{
		"several": {
			text: "# pxname,svname,scur,status,\nshop_web_80,node-1,3,UP,\nshop_web_80,node-2,0,UP 2/3,\nshop_web_80,node-3,0,no check,\n" +
				"b,node-1,0,DRAIN,\nb,node-2,0,DOWN,\nb,node-3,0,\"MAINT (via a,b)\",\n\n",
			want: []server{
				{"shop_web_80", "node-1", "UP"},
				{"shop_web_80", "node-2", "UP 2/3"},
				{"shop_web_80", "node-3", "no check"},
				{"b", "node-1", "DRAIN"},
				{"b", "node-2", "DOWN"},
				{"b", "node-3", "MAINT (via a,b)"},
			},
			in: []bool{true, true, true, false, false, false},
		},
		"none":      {text: "# pxname,svname,status,\n"},
		"empty":     {text: "", fail: true},
		"truncated": {text: "# pxname,svname,status,\na,b\n", fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseStat(c.text)
			if (err != nil) != c.fail {
				t.Fatalf("error %v, want one: %t", err, c.fail)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(server{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for i, s := range got {
				if s.in() != c.in[i] {
					t.Errorf("%+v in rotation: %t, want %t", s, s.in(), c.in[i])
				}
			}
		})
	}
}

func TestParseRoutes(t *testing.T) {
	t.Parallel()
	vip := netip.MustParseAddr("198.51.100.1")
	for name, c := range map[string]struct {
		text string
		want []netip.Addr
		fail bool
	}{
		"several": {
			text: `[{"dst":"198.51.100.1","protocol":"bgp","nexthops":[{"gateway":"10.64.0.12","dev":"eth0"},{"gateway":"10.64.0.11","dev":"eth0"}]}]`,
			want: []netip.Addr{netip.MustParseAddr("10.64.0.11"), netip.MustParseAddr("10.64.0.12")},
		},
		"one":          {text: `[{"dst":"198.51.100.1","gateway":"10.64.0.12","dev":"eth0"}]`, want: []netip.Addr{netip.MustParseAddr("10.64.0.12")}},
		"another":      {text: `[{"dst":"default","gateway":"10.64.0.1"}]`},
		"none":         {text: `[]`},
		"no more JSON": {text: `oops`, fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseRoutes(c.text, vip)
			if (err != nil) != c.fail {
				t.Fatalf("error %v, want one: %t", err, c.fail)
			}
			if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWiden(t *testing.T) {
	t.Parallel()
	number := func(format string, most float64) map[string]any {
		return map[string]any{"format": format, "maximum": most}
	}
	got := map[string]any{"versions": []any{map[string]any{"asn": number("int32", 4294967295), "port": number("int32", 65535), "n": number("int64", 1e12)}}}
	widen(got)
	want := map[string]any{"versions": []any{map[string]any{"asn": number("int64", 4294967295), "port": number("int32", 65535), "n": number("int64", 1e12)}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestHAProxyConfig(t *testing.T) {
	t.Parallel()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       corev1.ServiceSpec{HealthCheckNodePort: 32000, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
	}
	lab := &dataplane.Lab{Nodes: []*dataplane.Node{{Host: dataplane.Host{Name: "node-1", Addr: netip.MustParseAddr("10.64.0.11")}}}}
	for name, want := range map[string]string{
		HAProxyHealthCheck: "  option httpchk GET /\n  http-check expect status 200\n  server node-1 10.64.0.11:30080 check port 32000\n",
		HAProxyTCP:         "backend shop_web_80\n  server node-1 10.64.0.11:30080 check\n",
		NodePort:           "backend shop_web_80\n  server node-1 10.64.0.11:30080\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &HAProxy{name: name, lab: lab, dir: "/run/x", host: &dataplane.Host{Addr: netip.MustParseAddr("10.64.0.102")}}
			got, err := h.config([]*corev1.Service{svc})
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{want, "frontend shop_web_80\n  bind 10.64.0.102:30080\n", "inter 2s fall 3 rise 2\n", "stats socket /run/x/real.sock"} {
				if !strings.Contains(got, part) {
					t.Errorf("%q is not in:\n%s", part, got)
				}
			}
			if _, err := h.config([]*corev1.Service{{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}}); err == nil {
				t.Error("a Service without a nodePort was taken")
			}
		})
	}
}

// TestRequirements shows that what is missing is said with the command that installs it.
func TestRequirements(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root, which is what would be said")
	}
	dir := t.TempDir()
	for _, name := range []string{"ip", "nft", "iptables", "ip6tables", "conntrack", "nsenter"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	err := Requirements(NodePort, HAProxyTCP)
	if err == nil || !strings.Contains(err.Error(), "RUNLEVEL=1 apt-get install") || !strings.Contains(err.Error(), "socat") {
		t.Errorf("%v, want the command that installs socat", err)
	}
}

// TestNamesAreComplete shows that every balancer has packages, which the target of the Makefile installs, and that faults
// can be named.
func TestNamesAreComplete(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join("..", "..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(makefile), "DATAPLANE_PACKAGES := ")
	line, _, _ = strings.Cut(line, "\n")
	installed := strings.Fields(line)
	for _, name := range Names {
		for _, pkg := range packages[name] {
			if !slices.Contains(installed, pkg) {
				t.Errorf("the Makefile does not install %s, which %s needs", pkg, name)
			}
		}
	}
	for _, name := range Names {
		if len(packages[name]) == 0 {
			t.Errorf("%s needs no packages", name)
		}
	}
	h := &HAProxy{name: NodePort}
	for _, fault := range h.Faults() {
		if _, err := FaultOf(h, fault.Name); err != nil {
			t.Error(err)
		}
	}
	if _, err := FaultOf(h, "nothing"); err == nil {
		t.Error("a fault that is not known was found")
	}
}

// TestRelay shows each mood against a socket that answers like HAProxy's.
func TestRelay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	honest, err := newRelay(t.Context(), real, filepath.Join(dir, "nobody")) // stands for HAProxy: it answers what it is asked to
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = honest.Close() })
	if err := honest.Set(t.Context(), Ignoring); err != nil {
		t.Fatal(err)
	}
	r, err := newRelay(t.Context(), filepath.Join(dir, "admin"), real)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	drain := func(ctx context.Context) error {
		_, err := ask(ctx, r.path, "set server b/node-1 state drain")
		return err
	}
	for _, mood := range []Mood{Honest, Ignoring, Lying, Absent, Honest} {
		if err := r.Set(t.Context(), mood); err != nil {
			t.Fatalf("%s: %v", mood, err)
		}
		if err := drain(t.Context()); (err != nil) != (mood == Absent) {
			t.Errorf("%s: %v", mood, err)
		}
	}
	if err := drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := r.embellish("# pxname,svname,status\nb,node-1,UP\nb,node-2,UP\n")
	if want := "# pxname,svname,status\nb,node-1,DRAIN\nb,node-2,UP\n"; got != want {
		t.Errorf("embellished: %q, want %q", got, want)
	}
}

package guardtest

import (
	"flag"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/sweep"
)

// noBalancer stands for the hooks, which have no say in what kube-proxy uses.
type noBalancer struct{}

func (noBalancer) Match(*corev1.Service, lbhooks.Objects) lbhooks.Rotation {
	return lbhooks.Rotation{}
}

func (noBalancer) Descriptions() []lbhooks.Description { return nil }

// silenceKlog drops kube-proxy's complaints about the odd inputs it is given.
func silenceKlog(t *testing.T) {
	t.Helper()
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	if err := flags.Parse([]string{"-logtostderr=false", "-stderrthreshold=FATAL"}); err != nil {
		t.Fatal(err)
	}
	klog.SetOutput(io.Discard)
}

// TestUsableAgainstKubeProxy shows that a Service, read by internal/cluster and judged by guard, has on every node the
// usable endpoints that kube-proxy's own code uses there.
func TestUsableAgainstKubeProxy(t *testing.T) {
	silenceKlog(t)
	s, wanted := sweep.Seed(t, rand.Uint64()), sweep.Size(t, 10_000, 100_000)
	r := rand.New(rand.NewPCG(s, 0))
	var compared, uncertain, skipped, local, nonEmpty int
	for compared < wanted {
		scene := randomScene(r)
		facts, ok := guardFacts(t, scene)
		for _, node := range sceneNodes {
			want, read, certain := proxyChoice(scene, node)
			if !certain {
				uncertain++
				continue
			}
			compared++
			if ok != (len(want) > 0) {
				t.Fatalf("seed %d: guard serves the Service: %t, kube-proxy has %d ports\n%s", s, ok, len(want), dump(t, scene))
			}
			if !ok {
				skipped++
				continue
			}
			if got := (policies{facts.External, facts.Internal}); got != read {
				t.Fatalf("seed %d: guard reads the policies as %+v, kube-proxy as %+v\n%s", s, got, read, dump(t, scene))
			}
			if !facts.Local() {
				continue
			}
			local++
			got := guardChoice(facts, node)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d, %s: usable endpoints (-kube-proxy +guard):\n%s\n%s", s, node, diff, dump(t, scene))
			}
			for _, endpoints := range want {
				if len(endpoints) > 0 {
					nonEmpty++
					break
				}
			}
		}
	}
	t.Logf("seed %d: %d inputs compared: %d of policy Local, %d of them with a usable endpoint, %d not served; %d left out because kube-proxy itself would decide at random",
		s, compared, local, nonEmpty, skipped, uncertain)
	if nonEmpty < wanted/10 {
		t.Errorf("only %d inputs had a usable endpoint: the inputs show too little", nonEmpty)
	}
}

func guardFacts(t *testing.T, s *scene) (*guard.ServiceFacts, bool) {
	t.Helper()
	snapshot, err := cluster.FromObjects(s.objects()...)
	if err != nil {
		t.Fatalf("%v\n%s", err, dump(t, s))
	}
	return snapshot.Index(noBalancer{}, nil).Service(guard.Key{Namespace: sceneNamespace, Name: sceneService})
}

func guardChoice(facts *guard.ServiceFacts, node string) choice {
	used := choice{}
	for _, port := range facts.Ports {
		state, usable := guard.Usable(port.Endpoints, node)
		out := make([]string, 0, len(usable))
		for _, e := range usable {
			out = append(out, hostPort(e))
		}
		if (state == guard.StateEmpty) != (len(out) == 0) {
			out = append(out, "but the state is "+string(state))
		}
		slices.Sort(out)
		used[portKey{port.Name, port.Protocol, port.Family}] = out
	}
	return used
}

func dump(t *testing.T, s *scene) string {
	t.Helper()
	var all string
	for _, o := range s.objects() {
		data, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		all += string(data) + "---\n"
	}
	return all
}

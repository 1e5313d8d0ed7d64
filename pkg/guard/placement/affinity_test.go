package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	host = corev1.LabelHostname
	zone = corev1.LabelTopologyZone
)

// TestPodAffinity: interpodaffinity/filtering.go.
func TestPodAffinity(t *testing.T) {
	three := []*corev1.Node{aNode("n1", inZone("a")), aNode("n2", inZone("a")), aNode("n3", inZone("b"))}
	inSpaces := func(of ...string) func(*corev1.PodAffinityTerm) {
		return func(t *corev1.PodAffinityTerm) { t.Namespaces = of }
	}
	bySpace := func(s *metav1.LabelSelector) func(*corev1.PodAffinityTerm) {
		return func(t *corev1.PodAffinityTerm) { t.NamespaceSelector = s }
	}
	prod := &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	run(t, map[string]ask{
		"anti-affinity by host": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1"))}, pod: aPod("web-2", far(host, "web")),
			want: map[string]string{"n1": "pod anti-affinity", "n2": "", "n3": ""},
		},
		"anti-affinity by zone": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1"))}, pod: aPod("web-2", far(zone, "web")),
			want: map[string]string{"n1": "pod anti-affinity", "n2": "pod anti-affinity", "n3": ""},
		},
		"anti-affinity of a pod that is there": {
			why: "the term of the other is about this one", nodes: three, there: []*corev1.Pod{aPod("db", on("n1"), far(zone, "web"))}, pod: aPod("web-2"),
			want: map[string]string{"n1": "anti-affinity of a pod there", "n2": "anti-affinity of a pod there", "n3": ""},
		},
		"another namespace is another matter": {
			nodes: three, there: []*corev1.Pod{aPod("other/web-1", on("n1"))}, pod: aPod("web-2", far(host, "web")),
			want: map[string]string{"n1": "", "n2": "", "n3": ""},
		},
		"namespaces by name": {
			nodes: three, there: []*corev1.Pod{aPod("other/web-1", on("n1"))}, pod: aPod("web-2", far(host, "web", inSpaces("other"))),
			want: map[string]string{"n1": "pod anti-affinity", "n2": "", "n3": ""},
		},
		"namespaces by label": {
			nodes: three, spaces: map[string]map[string]string{"other": {"env": "prod"}, "third": {}},
			there: []*corev1.Pod{aPod("other/web-1", on("n1")), aPod("third/web-1", on("n2"))},
			pod:   aPod("web-2", far(host, "web", bySpace(prod))), want: map[string]string{"n1": "pod anti-affinity", "n2": "", "n3": ""},
		},
		"an empty namespace selector is every namespace": {
			nodes: three, there: []*corev1.Pod{aPod("other/web-1", on("n1"))},
			pod: aPod("web-2", far(host, "web", bySpace(&metav1.LabelSelector{}))), want: map[string]string{"n1": "pod anti-affinity", "n2": "", "n3": ""},
		},
		"a pod that is there selects this one's namespace": {
			nodes: three, spaces: map[string]map[string]string{"shop": {"env": "prod"}},
			there: []*corev1.Pod{aPod("other/db", on("n1"), far(host, "web", bySpace(prod)))}, pod: aPod("web-2"),
			want: map[string]string{"n1": "anti-affinity of a pod there", "n2": "", "n3": ""},
		},
		"affinity by zone": {
			nodes: three, there: []*corev1.Pod{aPod("db", on("n3"))}, pod: aPod("web", near(zone, "db")),
			want: map[string]string{"n1": "pod affinity", "n2": "pod affinity", "n3": ""},
		},
		"affinity wants one pod that all terms are about": {
			nodes: three, there: []*corev1.Pod{aPod("db", on("n1")), aPod("cache", on("n1"))}, pod: aPod("web", near(zone, "db"), near(host, "cache")),
			want: map[string]string{"n1": "pod affinity", "n2": "pod affinity", "n3": "pod affinity"},
		},
		"the first of a group with affinity to itself": {
			nodes: three, pod: aPod("web", near(zone, "web")), want: map[string]string{"n1": "", "n2": "", "n3": ""},
		},
		"the second of the group": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n3"))}, pod: aPod("web-2", near(zone, "web")),
			want: map[string]string{"n1": "pod affinity", "n2": "pod affinity", "n3": ""},
		},
		"a node without the label": {
			why: "affinity needs the domain, anti-affinity does not", nodes: []*corev1.Node{aNode("n1"), aNode("n2", inZone("a"))},
			pod: aPod("web", near(zone, "web"), far(zone, "web")), want: map[string]string{"n1": "pod affinity", "n2": ""},
		},
		"a node without the label is far from all": {
			nodes: []*corev1.Node{aNode("n1"), aNode("n2", inZone("a"))}, there: []*corev1.Pod{aPod("web-1", on("n1"))},
			pod: aPod("web-2", far(zone, "web")), want: map[string]string{"n1": "", "n2": ""},
		},
		"a pod that is ending still keeps others away": {
			nodes: three, there: []*corev1.Pod{aPod("web-1", on("n1"), ending)}, pod: aPod("web-2", far(host, "web")),
			want: map[string]string{"n1": "pod anti-affinity", "n2": "", "n3": ""},
		},
	})
}

// TestSelections: what has to be known of other pods.
func TestSelections(t *testing.T) {
	pods := []*corev1.Pod{
		aPod("web-1", far(host, "web"), spreads(1, host, corev1.DoNotSchedule)),
		aPod("web-2", far(host, "web"), spreads(1, host, corev1.ScheduleAnyway)),
		aPod("db", near(zone, "cache", func(t *corev1.PodAffinityTerm) { t.Namespaces = []string{"x"} })),
		aPod("all", far(host, "", func(t *corev1.PodAffinityTerm) {
			t.LabelSelector, t.NamespaceSelector = &metav1.LabelSelector{}, &metav1.LabelSelector{}
		})),
	}
	var got []string
	for _, s := range Selections(pods) {
		got = append(got, s.Namespace+"|"+s.Labels)
		if s.Everything() != (s.Of == "shop/all") {
			t.Errorf("selection %+v", s)
		}
	}
	if want := []string{"|", "shop|app=web", "x|app=cache"}; len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("selections %q, want %q", got, want)
	}
}

package surge

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/safedrain/safedrain/pkg/guard"
)

// another is a pod of another app, which has a node to itself for pods of its tier.
func another(w *world, node string) {
	w.pod("cache-"+node, node, func(p *corev1.Pod) {
		p.Labels, p.OwnerReferences = map[string]string{"app": "cache", "tier": "edge"}, nil
	})
}

// claimed has a live run of somebody else drain a node.
func claimed(n *corev1.Node, run string) {
	n.Spec.Unschedulable = true
	n.Annotations = map[string]string{"safedrain.dev/drain": `{"v":1,"run":"` + run + `","holder":"bob@host","nodes":["` + n.Name + `"],"phase":"granted"}`}
}

// TestFind: which workloads get a replica first, by what, and why one does not.
func TestFind(t *testing.T) {
	type want struct {
		by     string // "": none is possible
		to     int    // from 1
		reason string // a part of it; "" with by "": the workload is not looked for at all
	}
	standing := func(w *world) {
		w.deployment.Spec.Replicas = ptr.To[int32](2)
		w.deployment.Labels = map[string]string{Label: "1-2-old"}
	}
	for name, test := range map[string]struct {
		scope  Scope
		change func(*world)
		want   want
		reason string
	}{
		"the last endpoint":             {Last, func(*world) {}, want{"replicas", 2, ""}, "nothing owns the number"},
		"not the last":                  {Last, func(w *world) { w.pod("web-2", "n2") }, want{}, "the other one serves on"},
		"all":                           {All, func(w *world) { w.pod("web-2", "n2") }, want{"replicas", 2, ""}, "as it was asked for"},
		"an autoscaler":                 {Last, func(w *world) { w.scaler("web", 1, 5) }, want{"minReplicas of horizontalpodautoscaler/web", 2, ""}, "it owns the number"},
		"at its largest":                {Last, func(w *world) { w.scaler("web", 1, 1) }, want{"", 0, "horizontalpodautoscaler/web is at its largest number, 1"}, "it would take the replica away"},
		"two autoscalers":               {Last, func(w *world) { w.scaler("a", 1, 5); w.scaler("b", 1, 5) }, want{"", 0, "more than one autoscaler scales it: a, b"}, "they fight"},
		"KEDA":                          {Last, func(w *world) { w.keda(nil) }, want{"minReplicaCount of scaledobject/web", 2, ""}, "it writes its autoscaler over"},
		"an autoscaler of another kind": {Last, func(w *world) { w.scaler("web", 1, 1).Spec.ScaleTargetRef.Kind = "StatefulSet" }, want{"replicas", 2, ""}, "it scales something else of that name"},
		"a quota":                       {Last, func(w *world) { w.quota("small", "1", "1") }, want{"", 0, "quota small has no room for one more pod: 1 of 1 pods are used"}, "the API server would deny it"},
		"a quota with room":             {Last, func(w *world) { w.quota("small", "2", "1") }, want{"replicas", 2, ""}, "one more fits"},
		"a quota with scopes":           {Last, func(w *world) { w.quota("small", "1", "1", corev1.ResourceQuotaScopeBestEffort) }, want{"replicas", 2, ""}, "whom it counts is left to the API server"},
		"anti-affinity": {Last, func(w *world) {
			another(w, "n2")
			another(w, "n3")
			w.pods[0].Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "edge"}},
				}},
			}}
		}, want{"", 0, "a further pod fits nowhere"}, "no node is free"},
		"no room": {Last, func(w *world) {
			w.nodes[1].Spec.Unschedulable, w.nodes[2].Spec.Unschedulable = true, true
		}, want{"", 0, "a further pod fits nowhere"}, "the others take none, and n1 goes"},
		"a leaving node": {Last, func(w *world) {
			claimed(w.nodes[1], "other-1")
			w.nodes[2].Spec.Unschedulable = true
		}, want{"", 0, "a further pod fits nowhere"}, "what comes to a node that somebody drains goes again"},
		"a volume of one node": {Last, func(w *world) {
			w.claims = append(w.claims, &corev1.PersistentVolumeClaim{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "data"},
				Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
			})
			w.pods[0].Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}
		}, want{"", 0, "its volume claim data is ReadWriteOnce"}, "a second pod elsewhere cannot have it"},
		"a rollout":        {Last, func(w *world) { w.deployment.Status.Replicas = 2 }, want{"", 0, "a rollout is under way"}, "pods of two templates"},
		"a paused rollout": {Last, func(w *world) { w.deployment.Status.Replicas, w.deployment.Spec.Paused = 2, true }, want{"", 0, "its rollout is paused midway"}, "likewise"},
		"merely paused":    {Last, func(w *world) { w.deployment.Spec.Paused = true }, want{"replicas", 2, ""}, "it is scaled all the same"},
		"a StatefulSet": {Last, func(w *world) {
			w.pods[0].OwnerReferences = []metav1.OwnerReference{ownedBy("apps/v1", "StatefulSet", "web")}
		}, want{"", 0, "its pods have fixed names"}, "an extra pod would be one for good"},
		"a pod alone": {Last, func(w *world) { w.pods[0].OwnerReferences = nil }, want{"", 0, "no controller owns it"}, "nothing to scale"},
		"a ReplicaSet of something else": {Last, func(w *world) {
			w.pods[0].OwnerReferences = []metav1.OwnerReference{ownedBy("argoproj.io/v1alpha1", "Rollout", "web")}
		}, want{"", 0, "only Deployments are scaled for it, and this is a Rollout"}, "nobody knows its rules here"},
		"one that stands": {Last, func(w *world) {
			standing(w)
			w.quota("small", "2", "2")
			w.nodes[1].Spec.Unschedulable, w.nodes[2].Spec.Unschedulable = true, true
		}, want{"replicas", 2, ""}, "its own pod has taken the room already"},
		"one that another run needs": {
			Last, func(w *world) { standing(w); claimed(w.nodes[1], "old-7") },
			want{"", 0, "run old-7 of bob@host, which drains n2, has started one: wait for its end"},
			"it would take the other's away",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.change(w)
			found := w.find(t, w.bringer().Live(), test.scope)
			if test.want == (want{}) {
				if len(found) > 0 {
					t.Errorf("found %+v, want none: %s", found, test.reason)
				}
				return
			}
			if len(found) != 1 {
				t.Fatalf("%d surges, want one: %s", len(found), test.reason)
			}
			f := found[0]
			if f.Possible() != (test.want.by != "") || !strings.Contains(f.Reason, test.want.reason) {
				t.Fatalf("reason %q, want %q: %s", f.Reason, test.want.reason, test.reason)
			}
			if f.Possible() && (f.By != test.want.by || *f.Replicas != guard.Count{Before: 1, After: test.want.to}) {
				t.Errorf("%v by %s, want 1 to %d by %s: %s", *f.Replicas, f.By, test.want.to, test.want.by, test.reason)
			}
			if len(f.Pods) != 1 || !f.Pods[w.pods[0].UID] {
				t.Errorf("pods %v, want the one on n1", f.Pods)
			}
		})
	}
}

// TestFindInFiles: what files hold decides alike; what they do not hold is said.
func TestFindInFiles(t *testing.T) {
	w := newWorld()
	w.scaler("web", 1, 5)
	if found := w.find(t, Files(w.snapshot(t)), Last); len(found) != 1 || found[0].By != "minReplicas of horizontalpodautoscaler/web" {
		t.Errorf("found %+v", found)
	}
	w.pods[0].OwnerReferences = []metav1.OwnerReference{ownedBy("apps/v1", "ReplicaSet", "elsewhere")}
	if found := w.find(t, Files(w.snapshot(t)), Last); len(found) != 1 || found[0].Reason != "the files do not have the ReplicaSet that owns it" {
		t.Errorf("found %+v", found)
	}
}

// TestStandings: every object with a mark is found, and of KEDA's two the one that owns the number.
func TestStandings(t *testing.T) {
	mark := map[string]string{Label: "none-2-old"}
	w := newWorld()
	w.deployment.Labels = map[string]string{Label: "somebody's own"}
	w.keda(mark)
	w.scaler("web", 1, 5).Labels = mark
	standing, err := w.bringer().Standings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range Sorted(standing) {
		got = append(got, l.String())
		if back, ok := ParseSet(l.Set()); !ok || back != l {
			t.Errorf("%s in a claim is read as %v", l, back)
		}
	}
	if text := strings.Join(got, " "); text != "horizontalpodautoscaler/web:shop/web scaledobject/web:shop/web" {
		t.Errorf("standing: %s", text)
	}
}

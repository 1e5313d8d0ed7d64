package guard

import (
	"fmt"
	"maps"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	scaleNow = time.Date(2026, 11, 30, 14, 2, 7, 0, time.UTC)
	longAgo  = metav1.NewTime(scaleNow.Add(-100 * time.Hour))
)

// scaled is a Deployment "web" of one ReplicaSet, whose pods are endpoints of a Service "web".
type scaled struct {
	*world
	target *ScaleTarget
	on     []string // "node=pod", for the Service
}

// deployment has pods "node" or "node:f", where f are flags: "u" not Ready, "-" a low deletion cost, "+" a high one, "k" marked
// as a keeper. They are named after their place, and alike in all else.
func deployment(nodes []string, pods ...string) *scaled {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "d"}}
	n := int32(len(pods))
	d.Spec.Replicas = &n
	d.Spec.Template.Labels = map[string]string{"app": "web"}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: d.Spec.Template.Labels}
	set := replicaSet("rs", n, ownedBy("Deployment", "web", "d"))
	s := &scaled{world: newWorld(nodes...), target: &ScaleTarget{
		Kind: "Deployment", Key: Key{"a", "web"}, Replicas: n, Template: &d.Spec.Template, Deployment: d, ReplicaSets: []*appsv1.ReplicaSet{set},
	}}
	for i, p := range pods {
		node, flags, _ := strings.Cut(p, ":")
		name := fmt.Sprintf("web%d", i)
		s.target.Pods = append(s.target.Pods, webPod(name, node, flags, set))
		state := "RS"
		if strings.Contains(flags, "u") {
			state = ""
		}
		s.on = append(s.on, node+":"+state+"="+name)
	}
	return s
}

// bare is the same pods of a ReplicaSet that has no Deployment.
func (s *scaled) bare() *scaled {
	set := s.target.ReplicaSets[0]
	set.OwnerReferences = nil
	s.target.Kind, s.target.Key, s.target.Deployment = "ReplicaSet", Key{"a", set.Name}, nil
	for _, p := range s.target.Pods {
		delete(p.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	}
	return s
}

// beside adds pods of another workload that serve the Service.
func (s *scaled) beside(nodes ...string) {
	set := replicaSet("rs2", int32(len(nodes)), ownedBy("Deployment", "other", "o"))
	for i, n := range nodes {
		name := fmt.Sprintf("other%d", i)
		s.target.Pods = append(s.target.Pods, webPod(name, n, "", set))
		s.on = append(s.on, n+":RS="+name)
	}
}

func ownedBy(kind, name string, uid types.UID) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: uid, Controller: &yes}}
}

func replicaSet(name string, replicas int32, owner []metav1.OwnerReference) *appsv1.ReplicaSet {
	labels := map[string]string{"app": "web", "hash": name}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name), OwnerReferences: owner},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
}

func webPod(name, node, flags string, set *appsv1.ReplicaSet) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: name, UID: types.UID(name), CreationTimestamp: longAgo, Labels: maps.Clone(set.Spec.Selector.MatchLabels),
			OwnerReferences: ownedBy("ReplicaSet", set.Name, set.UID), Annotations: map[string]string{},
		},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: longAgo}},
		},
	}
	if metav1.GetControllerOfNoCopy(set) != nil {
		p.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = set.Name
	}
	for _, f := range flags {
		switch f {
		case 'u':
			p.Status.Conditions[0].Status = corev1.ConditionFalse
		case '-':
			p.Annotations[corev1.PodDeletionCost] = "-5"
		case '+':
			p.Annotations[corev1.PodDeletionCost] = "5"
		case 'k':
			p.Annotations[AnnotationKeeper] = "web"
		}
	}
	return p
}

// judge puts the Service before the workload and scales it.
func (s *scaled) judge(change func(*ServiceFacts), after int32, more ...string) ScalePlan {
	s.service("web", all(func(f *ServiceFacts) { f.Selector = map[string]string{"app": "web"} }, keep(change)), append(s.on, more...)...)
	s.target.Services = s.target.Behind(s.Services())
	return JudgeScale(s.target, s, after, scaleNow)
}

func keep(change func(*ServiceFacts)) func(*ServiceFacts) {
	if change == nil {
		return func(*ServiceFacts) {}
	}
	return change
}

// told is a plan in short: "floor 3; web1 may; web n2 maybe n1 Block; keep web0".
func told(p *ScalePlan) string {
	parts := []string{fmt.Sprintf("floor %d", p.Floor.Value)}
	for _, f := range p.Findings {
		parts = append(parts, fmt.Sprintf("%s %s", f.Code, f.Severity))
	}
	for i := range p.Services {
		for _, f := range p.Services[i].Findings {
			var nodes []string
			for _, n := range f.Nodes {
				for _, r := range p.Services[i].Nodes {
					if r.Name == n && r.May {
						n = "maybe " + n
					}
				}
				nodes = append(nodes, n)
			}
			parts = append(parts, fmt.Sprintf("%s %s %s", f.Code, strings.Join(nodes, ","), f.Severity))
		}
	}
	var kept []string
	for _, k := range p.Keepers {
		kept = append(kept, k.Name)
	}
	if len(kept) > 0 {
		parts = append(parts, "keep "+strings.Join(kept, ","))
	}
	return strings.Join(parts, "; ")
}

// going is the victims of a plan in short: "web1 web2?", with a question mark where it is not certain.
func going(p *ScalePlan) string {
	var out []string
	for _, v := range p.Victims {
		name := v.Name
		if v.Goes == May {
			name += "?"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

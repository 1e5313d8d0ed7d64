package placement

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	spaces = []string{"ns-a", "ns-b", "ns-c"}
	apps   = []string{"web", "db", "cache"}
	zones  = []string{"a", "b", "c"}
	keys   = []string{corev1.LabelHostname, corev1.LabelTopologyZone, "rack"}
)

// spaceLabels are the labels of the namespaces; ns-c has none.
var spaceLabels = map[string]map[string]string{"ns-a": {"env": "prod", "team": "x"}, "ns-b": {"env": "dev"}, "ns-c": nil}

// gpu is an extended resource.
const gpu = "example.com/gpu"

// drawer draws parts of random clusters. Everything it draws is valid to the API server.
type drawer struct {
	*rand.Rand
	claims []string // names of claims that exist in every namespace, and of one that does not
	inline bool     // draw disks in pods, which a running cluster would try to attach
	serial int
}

func newDrawer(seed uint64) *drawer { return &drawer{Rand: rand.New(rand.NewPCG(seed, 1))} }

func (d *drawer) chance(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d *drawer, of []T) T { return of[d.IntN(len(of))] }

func quantity(n int, unit string) resource.Quantity {
	return resource.MustParse(fmt.Sprintf("%d%s", n, unit))
}

// node draws a node of a name.
func (d *drawer) node(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if !d.chance(5) {
		n.Labels[corev1.LabelHostname] = name
	}
	if !d.chance(15) {
		n.Labels[corev1.LabelTopologyZone] = pick(d, zones)
	}
	if d.chance(60) {
		n.Labels["rack"] = pick(d, []string{"r1", "r2"})
	}
	if d.chance(20) {
		n.Labels[corev1.LabelTopologyRegion] = "r"
	}
	if d.chance(50) {
		n.Labels["disk"] = pick(d, []string{"ssd", "hdd"})
	}
	n.Labels["cores"] = fmt.Sprint(1 + d.IntN(16))
	if d.chance(20) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
			Key: pick(d, []string{"dedicated", "spot"}), Value: pick(d, []string{"", "x", "5"}),
			Effect: pick(d, []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule}),
		})
	}
	if d.chance(12) {
		n.Spec.Unschedulable = true
		if d.chance(70) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
		}
	}
	room := corev1.ResourceList{
		corev1.ResourceCPU: quantity(1000+500*d.IntN(7), "m"), corev1.ResourceMemory: quantity(1+d.IntN(8), "Gi"),
		corev1.ResourcePods: quantity(2+d.IntN(8), ""), corev1.ResourceEphemeralStorage: quantity(1+d.IntN(8), "Gi"),
	}
	if d.chance(30) {
		room[gpu] = quantity(d.IntN(3), "")
	}
	n.Status = corev1.NodeStatus{Capacity: room, Allocatable: room}
	return n
}

// pod draws a pod without a node.
func (d *drawer) pod(namespace string) *corev1.Pod {
	d.serial++
	name := fmt.Sprintf("p%d", d.serial)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(namespace + "-" + name),
			Labels: map[string]string{"app": pick(d, apps), "rev": pick(d, []string{"1", "2"})},
		},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{d.container("main")}},
	}
	if d.chance(15) {
		c := d.container("init")
		if d.chance(50) {
			always := corev1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	if d.chance(8) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: quantity(1000+500*d.IntN(5), "m")}}
	}
	if d.chance(30) {
		p.Spec.Containers[0].Ports = d.ports()
	}
	d.volumes(p)
	return p
}

func (d *drawer) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: "example.invalid/app"}
	if d.chance(30) {
		return c
	}
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: quantity(100*d.IntN(10), "m")}
	if d.chance(60) {
		c.Resources.Requests[corev1.ResourceMemory] = quantity(100*d.IntN(20), "Mi")
	}
	if d.chance(10) {
		c.Resources.Requests[corev1.ResourceEphemeralStorage] = quantity(1+d.IntN(4), "Gi")
	}
	if d.chance(8) {
		one := quantity(1, "")
		c.Resources.Requests[gpu] = one
		c.Resources.Limits = corev1.ResourceList{gpu: one}
	}
	return c
}

func (d *drawer) ports() []corev1.ContainerPort {
	port := int32(8000 + d.IntN(3))
	return []corev1.ContainerPort{{
		HostPort: port, ContainerPort: port, HostIP: pick(d, []string{"", "", "127.0.0.1", "127.0.0.2"}),
		Protocol: pick(d, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP}),
	}}
}

// volumes gives a pod claims and, where that is wanted, disks.
func (d *drawer) volumes(p *corev1.Pod) {
	add := func(source corev1.VolumeSource) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", len(p.Spec.Volumes)), VolumeSource: source})
	}
	for d.chance(15) && len(d.claims) > 0 && len(p.Spec.Volumes) < 3 {
		add(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pick(d, d.claims)}})
	}
	if !d.inline || !d.chance(8) {
		return
	}
	readOnly := d.chance(50)
	add(pick(d, []corev1.VolumeSource{
		{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "pd", ReadOnly: readOnly}},
		{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "ebs"}},
		{ISCSI: &corev1.ISCSIVolumeSource{IQN: "iqn", ReadOnly: readOnly}},
		{RBD: &corev1.RBDVolumeSource{CephMonitors: pick(d, [][]string{{"m1", "m2"}, {"m2"}, {"m3"}}), RBDPool: "p", RBDImage: "i", ReadOnly: readOnly}},
	}))
}

// constrain gives a pod what ties it to nodes and to other pods, each kind at times.
func (d *drawer) constrain(p *corev1.Pod) *corev1.Pod {
	if d.chance(12) {
		p.Spec.NodeSelector = map[string]string{"disk": pick(d, []string{"ssd", "hdd"})}
	}
	if d.chance(15) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: d.nodeSelector()}}
	}
	for d.chance(35) && len(p.Spec.Tolerations) < 3 {
		p.Spec.Tolerations = append(p.Spec.Tolerations, d.toleration())
	}
	d.constrainPods(p)
	if d.chance(30) {
		p.Spec.TopologySpreadConstraints = d.spread()
	}
	return p
}

func (d *drawer) nodeSelector() *corev1.NodeSelector {
	s := &corev1.NodeSelector{}
	for range 1 + d.IntN(2) {
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			pick(d, []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{pick(d, zones), pick(d, zones)}},
				{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpNotIn, Values: []string{pick(d, zones)}},
				{Key: "rack", Operator: corev1.NodeSelectorOpExists},
				{Key: "rack", Operator: corev1.NodeSelectorOpDoesNotExist},
				{Key: "cores", Operator: corev1.NodeSelectorOpGt, Values: []string{"4"}},
				{Key: "cores", Operator: corev1.NodeSelectorOpLt, Values: []string{"12"}},
			}),
		}})
	}
	if d.chance(15) {
		s.NodeSelectorTerms[0].MatchFields = []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprintf("n%02d", d.IntN(12))},
		}}
	}
	return s
}

func (d *drawer) toleration() corev1.Toleration {
	t := corev1.Toleration{Key: pick(d, []string{"dedicated", "spot", corev1.TaintNodeUnschedulable}), Operator: corev1.TolerationOpExists}
	if d.chance(40) {
		t.Operator, t.Value = corev1.TolerationOpEqual, pick(d, []string{"", "x", "5"})
	}
	if d.chance(40) {
		t.Effect = corev1.TaintEffectNoSchedule
	}
	if d.chance(5) {
		t = corev1.Toleration{Operator: corev1.TolerationOpExists}
	}
	return t
}

// constrainPods gives a pod terms about other pods.
func (d *drawer) constrainPods(p *corev1.Pod) {
	if d.chance(15) {
		affinity(p).PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: d.terms()}
	}
	if d.chance(25) {
		affinity(p).PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: d.terms()}
	}
}

func affinity(p *corev1.Pod) *corev1.Affinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	return p.Spec.Affinity
}

func (d *drawer) terms() []corev1.PodAffinityTerm {
	var out []corev1.PodAffinityTerm
	for range 1 + d.IntN(2) {
		t := corev1.PodAffinityTerm{TopologyKey: pick(d, keys), LabelSelector: d.selector()}
		switch d.IntN(6) {
		case 0:
			t.Namespaces = []string{pick(d, spaces)}
		case 1:
			t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": pick(d, []string{"prod", "dev"})}}
		case 2:
			t.NamespaceSelector = &metav1.LabelSelector{}
		case 3:
			t.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: metav1.LabelSelectorOpDoesNotExist}}}
			t.Namespaces = []string{pick(d, spaces)}
		}
		out = append(out, t)
	}
	return out
}

// selector draws a selector of pods.
func (d *drawer) selector() *metav1.LabelSelector {
	switch d.IntN(8) {
	case 0:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{pick(d, apps)},
		}}}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "missing", Operator: metav1.LabelSelectorOpExists}}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(d, apps)}}
}

func (d *drawer) spread() []corev1.TopologySpreadConstraint {
	var out []corev1.TopologySpreadConstraint
	taken := map[string]bool{}
	for range 1 + d.IntN(2) {
		c := corev1.TopologySpreadConstraint{
			MaxSkew: int32(1 + d.IntN(2)), TopologyKey: pick(d, keys), WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: d.selector(),
		}
		if d.chance(15) {
			c.WhenUnsatisfiable = corev1.ScheduleAnyway
		}
		if slot := c.TopologyKey + string(c.WhenUnsatisfiable); taken[slot] {
			continue
		} else {
			taken[slot] = true
		}
		for _, policy := range []**corev1.NodeInclusionPolicy{&c.NodeAffinityPolicy, &c.NodeTaintsPolicy} {
			if d.chance(50) {
				p := pick(d, []corev1.NodeInclusionPolicy{corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore})
				*policy = &p
			}
		}
		if d.chance(25) && c.WhenUnsatisfiable == corev1.DoNotSchedule {
			n := int32(1 + d.IntN(4))
			c.MinDomains = &n
		}
		if d.chance(25) {
			c.MatchLabelKeys = []string{"rev"}
		}
		out = append(out, c)
	}
	return out
}

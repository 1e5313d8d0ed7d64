package placement

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkPlaceAll places the 250 pods of a drained node in a cluster of 5,000 nodes: with what runs on a hundred of them
// at hand, as a plan reads it, and with all 150,000 pods, as it does when a constraint is about any pod.
func BenchmarkPlaceAll(b *testing.B) {
	for _, whole := range []int{100, 5000} {
		b.Run(fmt.Sprintf("whole=%d", whole), func(b *testing.B) {
			c, pods := large(whole)
			b.ReportAllocs()
			for b.Loop() {
				s := New(c)
				s.Leave("n0", "drained")
				fits := 0
				for _, p := range s.PlaceAll(pods) {
					if p.Answer.Fits() {
						fits++
					}
				}
				if fits != len(pods) {
					b.Fatalf("%d of %d fit", fits, len(pods))
				}
			}
		})
	}
}

// BenchmarkEach places the 30 pods of a node in that cluster, node after node, as plan --each does.
func BenchmarkEach(b *testing.B) {
	c, _ := large(5000)
	var pods []*corev1.Pod
	for k := range 30 {
		options := []podOption{requests("cpu=500m,memory=1Gi"), ownedBy(types.UID(fmt.Sprintf("o%d-0", k)))}
		if k%10 == 0 {
			options = append(options, far(host, fmt.Sprintf("app%d-0", k)))
		}
		pods = append(pods, Replacement(aPod(fmt.Sprintf("ns%d/app%d-new", k, k), options...)))
	}
	_, giveBack := c.Lend()
	giveBack()
	b.ReportAllocs()
	for b.Loop() {
		s, giveBack := c.Lend()
		s.Leave("n0", "drained")
		for _, p := range s.PlaceAll(pods) {
			if !p.Answer.Fits() {
				b.Fatal("no room")
			}
		}
		giveBack()
	}
}

// large is a cluster of 5,000 nodes, some of them whole with 30 pods each, and 250 replacements of 50 owners: a third
// spread by host, a third kept apart by host, the others bare.
func large(whole int) (*Cluster, []*corev1.Pod) {
	c := &Cluster{Volumes: &Volumes{}}
	for i := range 5000 {
		n := aNode(fmt.Sprintf("n%d", i), inZone(fmt.Sprint(i%3)), offers("cpu=64,memory=256Gi,pods=300"))
		c.Nodes = append(c.Nodes, Node{Object: n, Whole: i < whole})
		if i >= whole {
			continue
		}
		for k := range 30 {
			p := aPod(fmt.Sprintf("ns%d/app%d-%d", (i+k)%100, k, i), on(n.Name), requests("cpu=500m,memory=1Gi"), ownedBy(types.UID(fmt.Sprintf("o%d-%d", k, i%500))))
			if k%10 == 0 {
				far(host, p.Labels["app"])(p)
			}
			c.Pods = append(c.Pods, OccupantOf(p))
		}
	}
	var pods []*corev1.Pod
	for i := range 250 {
		app := fmt.Sprintf("web%d", i%50)
		options := []podOption{requests("cpu=500m,memory=1Gi"), ownedBy(types.UID("web-" + app))}
		switch i % 3 {
		case 0:
			options = append(options, far(host, app))
		case 1:
			options = append(options, spreads(1, zone, corev1.DoNotSchedule))
		}
		pods = append(pods, Replacement(aPod(fmt.Sprintf("ns%d/%s-%d", i%50, app, i), options...)))
	}
	return c, pods
}

package cluster

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/pkg/guard/placement"
)

// BenchmarkPlacingEverything decodes and keeps the pods of a large cluster, page by page, and makes the state of them.
func BenchmarkPlacingEverything(b *testing.B) {
	const pods, nodes = 150_000, 5000
	encoded := encodedPods(b)
	objects := make([]placement.Node, nodes)
	for i := range objects {
		objects[i].Object = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}}
	}
	b.ReportAllocs()
	for b.Loop() {
		p := newPlacing(nil, nil)
		p.cluster.Nodes = objects
		var before, kept runtime.MemStats
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		for start := 0; start < pods; start += pageSize {
			var page corev1.PodList
			if err := page.Unmarshal(encoded); err != nil {
				b.Fatal(err)
			}
			for i := range page.Items {
				pod := &page.Items[i]
				pod.Name, pod.UID = fmt.Sprintf("pod-%d", start+i), types.UID(fmt.Sprintf("%036d", start+i))
				pod.Spec.NodeName = fmt.Sprintf("n%d", (start+i)%nodes)
				p.take(pod)
			}
		}
		state := placement.New(p.cluster)
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&kept)
		b.ReportMetric(float64(int64(kept.HeapAlloc)-int64(before.HeapAlloc))/(1<<20), "kept-MiB")
		runtime.KeepAlive(state)
		runtime.KeepAlive(p)
		b.StartTimer()
	}
}

// encodedPods is a page as the API server sends it, of pods as large as pods are, of as many workloads.
func encodedPods(tb testing.TB) []byte {
	tb.Helper()
	var page corev1.PodList
	for i := range pageSize {
		controls := true
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: fmt.Sprintf("ns%d", i%100),
				Labels:    map[string]string{"app": fmt.Sprintf("app%d", i), "pod-template-hash": "5d4f8c7b6d"},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: types.UID(fmt.Sprintf("%036d", i)), Controller: &controls,
				}},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "c", Image: "registry.example/app:1",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
				}},
			}}},
		}
		for j := range 20 {
			c := &pod.Spec.Containers[0]
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", j), Value: strings.Repeat("x", 60)})
		}
		page.Items = append(page.Items, pod)
	}
	encoded, err := page.Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	return encoded
}

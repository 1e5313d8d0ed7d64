package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/test/controlplane"
)

// rung is the label that a ReplicaSet does not select by: the one by which a hold can be undone exactly.
const rung = "rung"

// holdScene is a Service web of a balancer that knows the health check port only, with one pod on each of two nodes, which
// ends at once when it is deleted. A third node is there for the replacement.
type holdScene struct {
	*scene
	svc    *corev1.Service
	node   string     // to be drained
	pod    corev1.Pod // on it
	flag   string     // --hold=...
	looked *looker
}

// newHoldScene makes the scene; with exact the Service also selects by a label that the ReplicaSet does not.
func newHoldScene(t *testing.T, exact bool, mutate ...func(*appsv1.Deployment)) *holdScene {
	t.Helper()
	s := &holdScene{scene: newScene(t, 3, onLoopback)}
	apart := func(d *appsv1.Deployment) {
		d.Spec.Template.Labels[rung] = "a"
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{controlplane.AppLabel: "web"}},
			}},
		}}
	}
	pods := s.Deployment("web", 2, append([]func(*appsv1.Deployment){apart}, mutate...)...)
	s.pod, s.node = pods[0], pods[0].Spec.NodeName
	s.serve("web", exact)
	return s
}

// serve makes the Service web, whose balancer takes a node out when its port has failed for 5 s.
func (s *holdScene) serve(app string, exact bool) {
	s.Helper()
	s.svc = s.Service(app, func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Annotations = map[string]string{
			"safedrain.dev/hook": "health-check", "safedrain.dev/health-check": "interval=1s,unhealthy=4,timeout=1s",
		}
		if exact {
			svc.Spec.Selector[rung] = "a"
		}
	})
	s.flag = "--hold=" + s.Namespace + "/" + app
	s.ServiceStatus(s.svc, newAddress())
	s.EndpointsReady(app, 2)
	for _, node := range s.nodes {
		s.kubeProxy(s.svc, node, 0)
	}
	s.remember()
	s.looked = s.look(app)
}

// sighting is what the slices of the Service say of the pod at one moment: of the controller's and of ours.
type sighting struct {
	listed, kept, serving bool
	at                    time.Time
}

func (s sighting) String() string {
	return fmt.Sprintf("listed=%t kept=%t serving=%t", s.listed, s.kept, s.serving)
}

// looker follows the slices by a watch, which has their changes in the order of their commits.
type looker struct {
	mu   sync.Mutex
	seen []sighting // changes only
}

func (s *holdScene) look(service string) *looker {
	s.Helper()
	l := &looker{}
	api := s.Client.DiscoveryV1().EndpointSlices(s.Namespace)
	selector := discoveryv1.LabelServiceName + "=" + service
	list, err := api.List(s.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		s.Fatal(err)
	}
	have := map[string]discoveryv1.EndpointSlice{}
	for _, e := range list.Items {
		have[e.Name] = e
	}
	l.note(sight(have, s.pod.UID))
	w, err := api.Watch(context.Background(), metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		s.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			slice, ok := e.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				return
			}
			have[slice.Name] = *slice
			if e.Type == watch.Deleted {
				delete(have, slice.Name)
			}
			l.note(sight(have, s.pod.UID))
		}
	}()
	s.Cleanup(func() { w.Stop(); <-done })
	return l
}

func sight(have map[string]discoveryv1.EndpointSlice, uid types.UID) sighting {
	s := sighting{at: time.Now()}
	for _, slice := range have {
		for _, e := range slice.Endpoints {
			if e.TargetRef == nil || e.TargetRef.UID != uid {
				continue
			}
			if slice.Labels[discoveryv1.LabelManagedBy] == "safedrain.dev" {
				s.kept = true
				s.serving = *e.Conditions.Serving && *e.Conditions.Terminating && !*e.Conditions.Ready
				continue
			}
			s.listed = *e.Conditions.Ready
		}
	}
	return s
}

func (l *looker) note(s sighting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.seen); n == 0 || l.seen[n-1].String() != s.String() {
		l.seen = append(l.seen, s)
	}
}

// texts lists what was seen, one text a change.
func (l *looker) texts() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, s := range l.seen {
		out = append(out, s.String())
	}
	return out
}

// last is what was seen last, and when it began.
func (l *looker) last() sighting {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.seen) == 0 {
		return sighting{}
	}
	return l.seen[len(l.seen)-1]
}

// when is when something was first seen.
func (l *looker) when(text string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.seen {
		if s.String() == text {
			return s.at
		}
	}
	return time.Time{}
}

const (
	onlyListed    = "listed=true kept=false serving=false"
	listedAndKept = "listed=true kept=true serving=true"
	onlyKept      = "listed=false kept=true serving=true"
	neither       = "listed=false kept=false serving=false"
)

// now reads the pod.
func (s *holdScene) now() *corev1.Pod {
	s.Helper()
	p, err := s.Client.CoreV1().Pods(s.Namespace).Get(s.Context(), s.pod.Name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return p
}

// isHeld waits until the pod is held: out of the controller's slice, kept by ours.
func (s *holdScene) isHeld() {
	s.Helper()
	s.awaitSlices(onlyKept)
}

// awaitSlices waits until something is what was seen last.
func (s *holdScene) awaitSlices(text string) {
	s.Helper()
	s.Wait("slices "+text, func(context.Context) (bool, string, error) {
		return s.looked.last().String() == text, s.looked.last().String(), nil
	})
}

// TestHoldForwardOnly: the Service and the ReplicaSet select by the same label. Our slice stands beside the controller's,
// the changed label takes the controller's entry away, the ReplicaSet starts the replacement meanwhile, and the pod goes
// after the check's time, its slice with it.
func TestHoldForwardOnly(t *testing.T) {
	s := newHoldScene(t, false)
	b := s.start(s.node, s.flag, "-o", "json")
	s.isHeld()
	s.Wait("the ReplicaSet to let the pod go", func(context.Context) (bool, string, error) {
		owners := s.now().OwnerReferences
		return len(owners) == 0, fmt.Sprint(owners), nil
	})
	if next := s.PodsReady("web", 2); slices.ContainsFunc(next, func(p corev1.Pod) bool { return p.UID == s.pod.UID }) {
		t.Error("the pod is the ReplicaSet's still")
	}
	e := b.end(s.scene)
	e.want(s.scene, 0)
	s.gone(&s.pod)
	s.awaitSlices(neither)
	if got := s.looked.texts(); !slices.Equal(got, []string{onlyListed, listedAndKept, onlyKept, neither}) {
		t.Errorf("slices went %q", got)
	}
	if took := s.looked.when(neither).Sub(s.looked.when(onlyKept)); took < 5*time.Second {
		t.Errorf("the pod was held for %s, the check takes 5s", took)
	}
	r := e.report(s.scene)
	if p := r.Services[0]; p.Balancer.Removal != guard.RemovalHold || p.Hold == nil || p.Hold.Exact || p.Hold.Label != controlplane.AppLabel {
		t.Errorf("plan %+v, hold %+v", p, p.Hold)
	}
	s.back(s.node)
}

// TestHoldExact: the ReplicaSet does not notice a label of the Service alone: it keeps the pod, and starts no other until
// that is evicted.
func TestHoldExact(t *testing.T) {
	s := newHoldScene(t, true)
	b := s.start(s.node, s.flag, "-o", "json")
	s.isHeld()
	if pods := s.PodsReady("web", 2); len(s.now().OwnerReferences) != 1 || !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.UID == s.pod.UID }) {
		t.Errorf("the ReplicaSet was to keep the pod: %v", s.now().OwnerReferences)
	}
	e := b.end(s.scene)
	e.want(s.scene, 0)
	s.gone(&s.pod)
	s.awaitSlices(neither)
	if got := s.looked.texts(); !slices.Equal(got, []string{onlyListed, listedAndKept, onlyKept, neither}) {
		t.Errorf("slices went %q", got)
	}
	if r := e.report(s.scene); !r.Services[0].Hold.Exact || r.Services[0].Hold.Label != rung {
		t.Errorf("hold %+v", r.Services[0].Hold)
	}
	s.back(s.node)
}

// TestHoldKilled: kill -9 while a pod is held leaves it serving; uncordon undoes exactly, the same command goes on, and the
// slice goes with the pod whoever deletes it.
func TestHoldKilled(t *testing.T) {
	kill := func(t *testing.T, exact bool) *holdScene {
		s := newHoldScene(t, exact)
		b := s.start(s.node, s.flag)
		s.isHeld()
		b.signal(t, syscall.SIGKILL)
		b.wait(t)
		return s
	}
	t.Run("undone", func(t *testing.T) {
		s := kill(t, true)
		s.back(s.node)
		s.alive(&s.pod)
		s.awaitSlices(onlyListed)
		after := s.now()
		if _, is := guard.HeldOf(after); is || after.Labels[rung] != "a" || len(after.Labels) != len(s.pod.Labels) {
			t.Errorf("labels %v, annotations %v, slices %s", after.Labels, after.Annotations, s.looked.last())
		}
		if got := s.looked.texts(); !slices.Equal(got, []string{onlyListed, listedAndKept, onlyKept, listedAndKept, onlyListed}) {
			t.Errorf("slices went %q", got)
		}
	})
	t.Run("goes only forward", func(t *testing.T) {
		s := kill(t, false)
		e := s.run("uncordon", "--wait-timeout=5s", s.node)
		e.want(s.scene, 0, "goes only forward", "delete pod "+s.pod.Name)
		s.alive(&s.pod)
		if s.looked.last().String() != onlyKept {
			t.Errorf("slices %s", s.looked.last())
		}
	})
	for name, exact := range map[string]bool{"resumed, exact": true, "resumed, goes only forward": false} {
		t.Run(name, func(t *testing.T) {
			s := kill(t, exact)
			again := time.Now()
			s.run(s.node, s.flag, "--take-over").want(s.scene, 0)
			s.gone(&s.pod)
			if took := s.looked.last().at.Sub(again); took < 5*time.Second {
				t.Errorf("deleted %s after the run was taken up: how far the check was nobody knows", took)
			}
			s.back(s.node)
		})
	}
	t.Run("collected", func(t *testing.T) {
		s := kill(t, true)
		kubectl(t, "-n", s.Namespace, "delete", "pod", s.pod.Name, "--wait=false")
		s.Wait("slice collected", func(context.Context) (bool, string, error) {
			return !s.looked.last().kept, s.looked.last().String(), nil
		})
	})
}

// TestHoldKilledBeforeTheLabel: kill -9 between the slice and the label leaves the controller's entry in force; uncordon
// removes the slice, the same command goes on.
func TestHoldKilledBeforeTheLabel(t *testing.T) {
	for name, then := range map[string]func(*holdScene){
		"undone": func(s *holdScene) {
			s.back(s.node)
			s.alive(&s.pod)
			s.awaitSlices(onlyListed)
			if got := s.looked.texts(); !slices.Equal(got, []string{onlyListed, listedAndKept, onlyListed}) {
				s.Errorf("slices went %q", got)
			}
		},
		"resumed": func(s *holdScene) {
			s.run(s.node, s.flag, "--take-over").want(s.scene, 0)
			s.gone(&s.pod)
			s.awaitSlices(neither)
			if got := s.looked.texts(); !slices.Equal(got, []string{onlyListed, listedAndKept, onlyKept, neither}) {
				s.Errorf("slices went %q", got)
			}
			s.back(s.node)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHoldScene(t, true)
			direct := s.via
			r := s.relay(nil)
			reached, killed := make(chan struct{}, 8), make(chan struct{})
			r.hold = func(req *http.Request) {
				if req.Method == http.MethodPatch && strings.Contains(req.URL.Path, "/pods/") {
					reached <- struct{}{}
					<-killed
					panic(http.ErrAbortHandler) // it never arrives
				}
			}
			b := s.start(s.node, s.flag)
			select {
			case <-reached:
			case <-time.After(time.Minute):
				t.Error("no patch of a pod came")
			}
			b.signal(t, syscall.SIGKILL)
			b.wait(t)
			close(killed)
			s.via = direct
			s.awaitSlices(listedAndKept)
			then(s)
		})
	}
}

// TestHoldMirrors: while a pod is held, our slice says whether it serves.
func TestHoldMirrors(t *testing.T) {
	s := newHoldScene(t, true)
	b := s.start(s.node, s.flag)
	s.isHeld()
	annotate(s.Env, s.pod.Name, controlplane.Ready, "false")
	s.awaitSlices("listed=false kept=true serving=false")
	b.end(s.scene).want(s.scene, 0)
}

// TestHoldRefused: what cannot be held is refused with its reason, and nothing is changed.
func TestHoldRefused(t *testing.T) {
	for name, test := range map[string]struct {
		make func(s *holdScene)
		args []string
		says string
	}{
		"StatefulSet": {func(s *holdScene) { s.controlled("StatefulSet") }, nil, "StatefulSet web would wait"},
		"DaemonSet":   {func(s *holdScene) { s.controlled("DaemonSet") }, []string{"--ignore-daemonsets"}, "DaemonSet web would start another"},
		"budget": {func(s *holdScene) {
			s.Deployment("web", 2, spread)
			s.Budget("web", intstr.FromInt32(2))
		}, nil, "allows no eviction"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &holdScene{scene: newScene(t, 2, onLoopback)}
			test.make(s)
			s.pod = s.PodsReady("web", 2)[0]
			s.node = s.pod.Spec.NodeName
			s.serve("web", false)
			e := s.run(append([]string{"plan", s.node, s.flag, "-o", "json"}, test.args...)...)
			if e.code != 3 || !strings.Contains(e.stdout, test.says) || !strings.Contains(e.stdout, string(guard.HoldLimited)) {
				t.Errorf("exit code %d, want 3 and %q:\n%s\n%s", e.code, test.says, e.stdout, e.stderr)
			}
			s.run(append([]string{s.node, s.flag}, test.args...)...).want(s.scene, 3)
			s.alive(&s.pod)
			if got := s.looked.texts(); !slices.Equal(got, []string{onlyListed}) {
				t.Errorf("slices went %q", got)
			}
			s.standsAsBefore(s.node)
		})
	}
}

// spread puts one pod on each node.
func spread(d *appsv1.Deployment) {
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{apartBy("web")}
}

func apartBy(app string) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{controlplane.AppLabel: app}},
	}
}

// controlled makes two pods web, one a node, of a StatefulSet or a DaemonSet.
func (s *holdScene) controlled(kind string) {
	s.Helper()
	two := int32(2)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{controlplane.AppLabel: "web"}}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{controlplane.AppLabel: "web"}}}
	template.Spec = corev1.PodSpec{
		Containers:                []corev1.Container{{Name: "main", Image: "example.invalid/app"}},
		NodeSelector:              map[string]string{controlplane.PoolLabel: s.Namespace},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{apartBy("web")},
	}
	var err error
	if kind == "DaemonSet" {
		_, err = s.Client.AppsV1().DaemonSets(s.Namespace).Create(s.Context(), &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template},
		}, metav1.CreateOptions{})
	} else {
		_, err = s.Client.AppsV1().StatefulSets(s.Namespace).Create(s.Context(), &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.StatefulSetSpec{
				Replicas: &two, Selector: selector, Template: template, ServiceName: "web", PodManagementPolicy: appsv1.ParallelPodManagement,
			},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		s.Fatal(err)
	}
}

// TestHoldRole: the role that rbac prints for a hold is what a hold needs beside a drain's, and without it nothing is begun.
func TestHoldRole(t *testing.T) {
	s := newHoldScene(t, true)
	user, as := grant(s.Env, drainRole(t))
	e := program{path: binary, kubeconfig: as.kubeconfig}
	stdout, stderr, code := e.run(t, s.node, s.flag, "-o", "json")
	if code != 3 || !strings.Contains(stdout, string(guard.HookUnavailable)) || !strings.Contains(stdout, "rbac --hold") {
		t.Fatalf("exit code %d, want 3 and %s:\n%s\n%s", code, guard.HookUnavailable, stdout, stderr)
	}
	s.alive(&s.pod)
	alsoMay(s.Env, user, drainRole(t, "--hold"))
	s.Wait("drained as "+user, func(context.Context) (bool, string, error) {
		stdout, stderr, code = e.run(t, s.node, s.flag)
		return code != 3, stderr, nil // the authorizer learns of the role a moment later
	})
	if code != 0 {
		t.Fatalf("exit code %d:\n%s\n%s", code, stdout, stderr)
	}
	s.gone(&s.pod)
}

// alsoMay gives a user a further role, until the test ends.
func alsoMay(e *controlplane.Env, user string, role *rbacv1.ClusterRole) {
	e.Helper()
	name := user + "-also"
	role = role.DeepCopy()
	role.Name = name
	_, err := e.Client.RbacV1().ClusterRoles().Create(e.Context(), role, metav1.CreateOptions{})
	must(e, err)
	_, err = e.Client.RbacV1().ClusterRoleBindings().Create(e.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}, metav1.CreateOptions{})
	must(e, err)
	e.Cleanup(func() {
		ctx := context.Background() // the test's own has ended
		if err := e.Client.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			e.Error(err)
		}
		if err := e.Client.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			e.Error(err)
		}
	})
}

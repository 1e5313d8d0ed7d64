package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
)

// rebalanceAll is the value that means every Service that wants an endpoint on the node.
const rebalanceAll = "all"

// evictWithin is how long an eviction is tried again that is refused, and nobody says that this will end.
const evictWithin = 30 * time.Second

// Moved is a pod that was evicted elsewhere so that a node gets an endpoint again, and where its replacement went.
type Moved struct {
	Service string // namespace/name
	Pod     string // the one that was evicted
	From    string
	New     string // the one that came; "" when none came in time
	To      string // where the scheduler put it; "" likewise
}

// rebalance evicts, for each Service that wants an endpoint on the node and has none, one pod of a node that has several, so
// that the scheduler fills the gap. Each Service has one try. That it does not come about is a warning: the node goes on
// its way back.
func (w *restoring) rebalance(ctx context.Context) error {
	if len(w.opts.Rebalance) == 0 || w.opts.DryRun == DryRunClient || w.opts.DryRun == DryRunServer {
		return nil
	}
	deadline := newStopper()
	defer deadline.follow(w.stop)()
	defer deadline.after(w.Clock, w.opts.WaitTimeout, errWaited)()
	err := w.moveAll(ctx, deadline)
	switch {
	case errors.Is(err, errWaited):
		w.warn(fmt.Sprintf("%s is not rebalanced within %s", w.name, w.opts.WaitTimeout))
		return nil
	case w.held == nil:
		return err
	}
	return w.endOn(ctx, err)
}

// await pauses while rebalance waits, and shows that this run lives.
func (w *restoring) await(ctx context.Context, deadline *stopper, d time.Duration) error {
	if w.held != nil && w.Clock.Since(w.renewed) >= claim.RenewEvery {
		w.renewed = w.Clock.Now()
		if err := w.renew(ctx); err != nil {
			return err
		}
	}
	return deadline.pause(ctx, w.Clock, d)
}

func (w *restoring) moveAll(ctx context.Context, deadline *stopper) error {
	l, err := w.takesPods(ctx, deadline)
	if err != nil {
		return err
	}
	for _, key := range w.gaps(l) {
		if err := deadline.Err(); err != nil {
			return err
		}
		moved, err := w.move(ctx, deadline, key)
		if moved != nil {
			w.out.Moved = append(w.out.Moved, *moved)
			w.emit(Rebalanced{Node: w.name, Moved: *moved})
			w.schedulable = w.Clock.Now()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takesPods waits until the node is Ready, and the taint of its cordon is gone.
func (w *restoring) takesPods(ctx context.Context, deadline *stopper) (*look, error) {
	for delay := returnPoll; ; delay = min(2*delay, returnMaxPoll) {
		l, err := w.look(ctx)
		if err != nil {
			return nil, err
		}
		node, ok := l.snapshot.RawNode(w.name)
		cordoned := ok && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == unschedulableTaint })
		if ok && nodeReady(node) && !cordoned && !node.Spec.Unschedulable {
			return l, nil
		}
		w.emit(ReturnPending{Node: w.name, For: "the node does not take pods yet", Timeout: w.opts.WaitTimeout})
		if err := w.await(ctx, deadline, delay); err != nil {
			return nil, err
		}
	}
}

// gaps lists the Services that were asked for and have no endpoint on the node, and none coming; of all, those only that
// have a node with several.
func (w *restoring) gaps(l *look) []guard.Key {
	var out []guard.Key
	for svc := range l.index.Services() {
		named := slices.Contains(w.opts.Rebalance, svc.Key.String())
		if !svc.External || !named && !slices.Contains(w.opts.Rebalance, rebalanceAll) {
			continue
		}
		cover := guard.Cover(svc)
		raw, ok := l.snapshot.RawService(svc.Key)
		state, _ := cover.State(w.name)
		if !ok || state != guard.StateEmpty || l.coming(raw, w.name) != "" {
			continue
		}
		if !crowded(svc, &cover) {
			if named {
				w.warn(fmt.Sprintf("%s has no node with two endpoints or more: nothing is moved to %s", svc.Key, w.name))
			}
			continue
		}
		out = append(out, svc.Key)
	}
	return out
}

// crowded reports whether some node has several endpoints of a Service.
func crowded(svc *guard.ServiceFacts, cover *guard.Coverage) bool {
	return slices.ContainsFunc(cover.Nodes(), func(node string) bool { return len(endpointsOn(svc, node)) > 1 })
}

// leaving is a pod to evict for a Service, and the pods of the Service before that.
type leaving struct {
	*guard.Spare
	snapshot *cluster.Snapshot
	before   map[types.UID]*corev1.Pod
}

// move evicts one pod for a Service and follows what comes in its place.
func (w *restoring) move(ctx context.Context, deadline *stopper, key guard.Key) (*Moved, error) {
	spare, err := w.evictSpare(ctx, deadline, key)
	if err != nil || spare == nil {
		return nil, err
	}
	moved := &Moved{Service: key.String(), Pod: spare.Pod.Name, From: spare.Node}
	for delay := returnPoll; ; delay = min(2*delay, returnMaxPoll) {
		pods, err := w.podsOf(ctx, spare.snapshot, key)
		if err != nil {
			return moved, err
		}
		for uid, pod := range pods {
			if _, old := spare.before[uid]; !old && pod.Spec.NodeName != "" {
				moved.New, moved.To = pod.Name, pod.Spec.NodeName
			}
		}
		if moved.To != "" {
			break
		}
		if err := w.await(ctx, deadline, delay); err != nil {
			w.warn(fmt.Sprintf("%s: no new pod has a node yet in place of %s", key, spare.Pod))
			return moved, err
		}
	}
	if moved.To != w.name {
		w.warn(fmt.Sprintf("%s: the scheduler put %s on node/%s, not on %s; it is not tried again", key, moved.New, moved.To, w.name))
	}
	return moved, nil
}

// spare picks the pod to evict for a Service: one that guard lets go. nil, with a warning, when there is none.
func (w *restoring) spare(ctx context.Context, key guard.Key) (*guard.Spare, *cluster.Snapshot, error) {
	load := w.Load
	if w.Places != nil {
		load = w.Places
	}
	first, err := w.Load(ctx, []string{w.name})
	if err != nil {
		return nil, nil, err
	}
	svc, ok := first.Index(w.Hooks, []string{w.name}).Service(key)
	if !ok {
		return nil, nil, nil
	}
	nodes := []string{w.name}
	for _, s := range guard.Spares(svc, first.Index(w.Hooks, []string{w.name})) {
		nodes = append(nodes, s.Node)
	}
	snapshot, err := load(ctx, unique(nodes))
	if err != nil {
		return nil, nil, err
	}
	ix := snapshot.Index(w.Hooks, nil)
	if svc, ok = ix.Service(key); !ok {
		return nil, nil, nil
	}
	named := slices.Contains(w.opts.Rebalance, key.String())
	var against []string
	for _, s := range guard.Spares(svc, ix) {
		pod, ok := ix.Pod(s.UID)
		if !ok {
			continue
		}
		if !named && !guard.WantsEndpoint(svc, ix, &pod.Spec, w.opts.Nodes) {
			return nil, nil, nil
		}
		why := guard.MayMove(&s, w.name, ix, snapshot.Placement(), named)
		if why == "" {
			return &s, snapshot, nil
		}
		against = append(against, s.Pod.Name+": "+why)
	}
	if len(against) == 0 {
		against = []string{"no node has an endpoint that it can do without"}
	}
	if more := len(against) - namedNodes; more > 0 {
		against = append(against[:namedNodes], fmt.Sprintf("and %d more", more))
	}
	w.warn(fmt.Sprintf("%s: nothing is moved to %s: %s", key, w.name, strings.Join(against, "; ")))
	return nil, nil, nil
}

// evictSpare evicts one pod for a Service. What the gate refuses until a keeper can be relied on is waited for, what others
// refuse only for a while. nil, with a warning, when none is evicted.
func (w *restoring) evictSpare(ctx context.Context, deadline *stopper, key guard.Key) (*leaving, error) {
	d := &run{Runner: w.Runner, opts: Options{GracePeriod: -1}}
	var s *leaving
	for since, tries := w.Clock.Now(), 1; ; tries++ {
		var err error
		if s, err = w.leaver(ctx, key, s); err != nil || s == nil {
			return nil, err
		}
		p := &guard.PodPlan{Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: s.UID, Node: s.Node, Action: guard.ActionEvict}
		err = d.remove(ctx, p)
		a, why := classify(p, err), ""
		switch {
		case a.kind == answerAccepted:
			w.emit(PodEvicted{Node: s.Node, Pod: s.Pod})
			return s, nil
		case a.kind == answerGone, a.kind == answerConflict:
			why = goneByNow
		case a.kind == answerForbidden, a.kind == answerBadPod:
			why = a.what
		case apierrors.HasStatusCause(err, metav1.CauseType(guard.NoKeeper)):
			since = w.Clock.Now()
		case w.Clock.Since(since) >= evictWithin:
			why = heldText(&a)
		}
		if why != "" {
			w.notEvicted(key, s, why)
			return nil, nil
		}
		w.emit(ReturnPending{
			Node: w.name, For: fmt.Sprintf("pod %s of node/%s is %s", s.Pod, s.Node, heldText(&a)), Timeout: w.opts.WaitTimeout,
		})
		if err := w.await(ctx, deadline, retryAfter(a, tries)); err != nil {
			w.notEvicted(key, s, heldText(&a))
			return nil, err
		}
	}
}

const goneByNow = "it is gone or another one by now"

func heldText(a *answer) string { return "held by " + a.by + ": " + a.what }

func (w *restoring) notEvicted(key guard.Key, s *leaving, why string) {
	w.warn(fmt.Sprintf("%s: pod %s of node/%s is not evicted: %s; nothing is moved to %s", key, s.Pod, s.Node, why, w.name))
}

// leaver is the pod to evict at the next try: the one of the last try, or, where the gate keeps that one by now, another. nil
// when a pod came to the node by itself; and, with a warning, when there is none to evict.
func (w *restoring) leaver(ctx context.Context, key guard.Key, last *leaving) (*leaving, error) {
	s := last
	for picked := s == nil; ; picked = true {
		if picked {
			spare, snapshot, err := w.spare(ctx, key)
			if err != nil || spare == nil {
				return nil, err
			}
			s = &leaving{Spare: spare, snapshot: snapshot}
		}
		var err error
		if s.before, err = w.podsOf(ctx, s.snapshot, key); err != nil {
			return nil, err
		}
		for _, pod := range s.before {
			if pod.Spec.NodeName == w.name {
				return nil, nil
			}
		}
		pod, ok := s.before[s.UID]
		switch {
		case !ok:
			w.notEvicted(key, s, goneByNow)
			return nil, nil
		case picked || pod.Annotations[guard.AnnotationKeeper] == "":
			return s, nil
		}
	}
}

// podsOf are the pods that a Service selects and that live, by UID.
func (w *restoring) podsOf(ctx context.Context, snapshot *cluster.Snapshot, key guard.Key) (map[types.UID]*corev1.Pod, error) {
	svc, ok := snapshot.RawService(key)
	if !ok {
		return nil, nil
	}
	list, err := w.Client.CoreV1().Pods(key.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(svc.Spec.Selector).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", key, err)
	}
	out := map[types.UID]*corev1.Pod{}
	for i := range list.Items {
		if p := &list.Items[i]; comesTo(p, svc) {
			out[p.UID] = p
		}
	}
	return out, nil
}

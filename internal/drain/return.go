package drain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

func joined(parts []string) string { return strings.Join(parts, "; ") }

// hook undoes one withdrawal by a call, when the node may be back in that rotation. It returns why the node stays out
// although a pod was coming; a Service that nothing comes for stays out with a warning.
func (w *restoring) hook(ctx context.Context, deadline *stopper, set, hookName, service string) (string, error) {
	started := w.Clock.Now()
	hook, ok := w.Hooks.Hook(hookName)
	if !ok {
		w.hookFailed = true
		return fmt.Sprintf("%s out of %s: there is no such hook here", service, hookName), nil
	}
	for poll := 0; ; poll++ {
		if poll%renewPolls == renewPolls-1 {
			if err := w.renew(ctx); err != nil {
				return "", err
			}
		}
		snapshot, err := w.Load(ctx, []string{w.name})
		if err != nil {
			return "", err
		}
		svc, there := snapshot.RawService(keyOf(service))
		if !there {
			w.warn(fmt.Sprintf("%s is gone; whether %s still leaves %s out for it, nobody looked", service, hookName, w.name))
			return "", w.forget(ctx, set)
		}
		may, coming := w.mayReturn(snapshot, svc)
		if may {
			if err := w.renew(ctx); err != nil {
				return "", err // another run drains the node: nobody may send to it
			}
			if err := w.callRestore(ctx, hook, svc); err != nil {
				if ctx.Err() != nil {
					return "", err
				}
				w.hookFailed = true
				return fmt.Sprintf("%s out of %s: %v", service, hookName, err), nil
			}
			w.returned(service, hookName, "", w.Clock.Since(started))
			return "", w.forget(ctx, set)
		}
		if coming == "" {
			w.out.Services = append(w.out.Services, RestoredService{Service: service, Hook: hookName, Detail: "no pod of it on the node"})
			w.warn(fmt.Sprintf("%s stays out of %s on %s: no pod of it is there, and nothing moves one back", service, hookName, w.name))
			return "", nil
		}
		if err := deadline.pause(ctx, w.Clock, restorePoll); err != nil {
			if errors.Is(err, errWaited) {
				w.out.Services = append(w.out.Services, RestoredService{Service: service, Hook: hookName, Detail: coming + " is not Ready"})
				why := "no Ready pod on the node after " + w.opts.WaitTimeout.String() + " (" + coming + ")"
				if coming == theNode {
					why = "the node is not Ready after " + w.opts.WaitTimeout.String()
				}
				return fmt.Sprintf("%s out of %s: %s", service, hookName, why), nil
			}
			return "", err
		}
	}
}

// renewPolls is after how many polls the claim is renewed while the uncordon waits.
const renewPolls = 10

// restoreWithin bounds one call of a hook that puts a node back; hooks have their own, shorter times.
const restoreWithin = 2 * time.Minute

// theNode stands for the node itself where something has to become Ready first.
const theNode = "the node"

// renew says in the claim that this run lives, and fails when the claim is another's by now.
func (w *restoring) renew(ctx context.Context) error {
	return w.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { c.Renewed = w.timeNow() })
}

func (w *restoring) callRestore(ctx context.Context, hook lbhooks.Hook, svc *corev1.Service) error {
	ctx, cancel := context.WithTimeout(ctx, restoreWithin)
	defer cancel()
	return hook.Restore(ctx, lbhooks.Target{Service: svc, Node: w.held.Node()})
}

func (w *restoring) forget(ctx context.Context, set string) error {
	return w.held.Update(ctx, func(c *claim.Claim, _ *claim.State) { c.Remove(set) })
}

// mayReturn reports whether the node may be sent to again for a Service, and if not, a pod of it that is coming there.
func (w *restoring) mayReturn(snapshot *cluster.Snapshot, svc *corev1.Service) (may bool, coming string) {
	ix := snapshot.Index(w.Hooks, []string{w.name})
	facts, ok := ix.Service(guard.Key{Namespace: svc.Namespace, Name: svc.Name})
	if !ok || !facts.External {
		// Of policy Cluster: the node forwards as soon as it is Ready.
		if node, ok := snapshot.RawNode(w.name); ok && !nodeReady(node) {
			return false, theNode
		}
		return true, ""
	}
	if facts.Rotation.Follows {
		return true, ""
	}
	cover := guard.Cover(facts)
	if state, _ := cover.State(w.name); state == guard.StateServing {
		return true, ""
	}
	return false, comingPod(ix, svc, w.name)
}

// comingPod names a pod of the Service that is bound to the node, lives, and is not Ready yet.
func comingPod(ix guard.Index, svc *corev1.Service, node string) string {
	if len(svc.Spec.Selector) == 0 {
		return ""
	}
	selector := labels.SelectorFromSet(svc.Spec.Selector)
	for pod := range ix.Pods(node) {
		over := pod.DeletionTimestamp != nil || guard.Finished(pod)
		if !over && pod.Namespace == svc.Namespace && selector.Matches(labels.Set(pod.Labels)) {
			return "pod " + pod.Name
		}
	}
	return ""
}

func (w *restoring) returned(service, hookName, detail string, after time.Duration) {
	w.out.Services = append(w.out.Services, RestoredService{Service: service, Hook: hookName, Back: true, Detail: detail})
	w.emit(Returned{Node: w.name, Service: service, Hook: hookName, Detail: detail, After: after})
}

func (w *restoring) warn(text string) {
	w.out.Warnings = append(w.out.Warnings, text)
	w.emit(Warned{Text: text})
}

// report says, for the Services that the label was set for, that the node may be sent to again, and warns of those that
// have nothing on the node any more.
func (w *restoring) report(was *claim.Claim, snapshot *cluster.Snapshot) {
	now := w.held.Claim()
	unlabelled := w.held.Was.Has(claim.SetLabel) && !now.Has(claim.SetLabel)
	ix := snapshot.Index(w.Hooks, []string{w.name})
	for _, service := range slices.Sorted(maps.Keys(was.Services)) {
		hookName := was.Services[service].Hook
		facts, ok := ix.Service(keyOf(service))
		if !ok || was.Has(claim.HookSet(hookName, service)) {
			continue
		}
		if slices.ContainsFunc(w.out.Services, func(s RestoredService) bool { return s.Service == service }) {
			continue
		}
		detail := "label removed"
		if facts.Rotation.Follows {
			detail += "; " + hookName + " sends only where a pod runs"
		}
		if unlabelled && facts.Rotation.Removal == guard.RemovalLabel {
			w.returned(service, hookName, detail, 0)
		}
		cover := guard.Cover(facts)
		if state, _ := cover.State(w.name); facts.External && state == guard.StateEmpty && comingPod(ix, rawOf(snapshot, service), w.name) == "" {
			w.warn(service + " served from " + w.name + " before the drain and does not now; nothing moves a pod back")
		}
	}
}

func rawOf(snapshot *cluster.Snapshot, service string) *corev1.Service {
	if svc, ok := snapshot.RawService(keyOf(service)); ok {
		return svc
	}
	return &corev1.Service{}
}

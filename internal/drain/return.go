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

	"github.com/safedrain/safedrain/internal/claim"
	"github.com/safedrain/safedrain/internal/cluster"
	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// returnPoll is the time between two looks at what a node waits for; it grows up to returnMaxPoll while nothing changes.
const (
	returnPoll    = 250 * time.Millisecond
	returnMaxPoll = 5 * time.Second
)

// restoreWithin bounds one call of a hook that puts a node back; hooks have their own, shorter times.
const restoreWithin = 2 * time.Minute

var errWaited = errors.New("waited long enough")

func joined(parts []string) string { return strings.Join(parts, "; ") }

// absence is one thing that keeps the node out of rotation: the label, or a hook's withdrawal for one Service.
type absence struct {
	set     string // its name in the claim
	hook    string // "" for the label
	service string // namespace/name; "" for the label
}

// absences lists what the claim still has.
func (w *restoring) absences() []absence {
	c := w.held.Claim()
	var out []absence
	for _, set := range c.Set {
		if hook, service, ok := claim.ParseHookSet(set); ok {
			out = append(out, absence{set, hook, service})
		} else if set == claim.SetLabel {
			out = append(out, absence{set: set})
		}
	}
	return out
}

// putBack ends every absence as soon as the node can serve, and clears the claim when nothing is left of it. It returns
// what stays out, and why.
func (w *restoring) putBack(ctx context.Context) ([]string, error) {
	deadline := newStopper()
	defer deadline.follow(w.stop)()
	// A pod that is there is not left out for want of the time that its kube-proxy has to have.
	defer deadline.after(w.Clock, max(w.opts.WaitTimeout, 2*proxyLag), errWaited)()
	w.proxy = &nodeProxy{Runner: w.Runner, usable: map[guard.Key]time.Time{}}
	w.done, w.how = map[string]bool{}, map[guard.Key]string{}
	was := w.held.Claim()
	last, stays, err := w.comeBack(ctx, deadline)
	if err != nil {
		return nil, err
	}
	w.report(&was, last.snapshot)
	return stays, w.close(ctx)
}

// comeBack looks again and again, until every absence is over or the time is. It returns the last look.
func (w *restoring) comeBack(ctx context.Context, deadline *stopper) (l *look, stays []string, err error) {
	started := w.Clock.Now()
	renewed, over, before := started, false, ""
	for delay := returnPoll; ; delay = min(delay+delay/2, returnMaxPoll) {
		if l, err = w.look(ctx); err != nil {
			return l, nil, err
		}
		var waits []string
		for _, a := range w.absences() {
			if w.done[a.set] {
				continue
			}
			wait, stay, err := w.tryReturn(ctx, l, a, returning{started, over})
			if err != nil {
				return l, nil, err
			}
			waits, stays = appendText(waits, wait), appendText(stays, stay)
		}
		if len(waits) == 0 {
			return l, stays, nil
		}
		if now := joined(waits); now != before {
			before, delay = now, returnPoll
		}
		if err := deadline.pause(ctx, w.Clock, delay); errors.Is(err, errWaited) {
			over = true
		} else if err != nil {
			return l, nil, err
		}
		if w.Clock.Since(renewed) >= claim.RenewEvery {
			renewed = w.Clock.Now()
			if err := w.renew(ctx); err != nil {
				return l, nil, err
			}
		}
	}
}

func appendText(all []string, text string) []string {
	if text == "" {
		return all
	}
	return append(all, text)
}

// returning is how far the waiting is.
type returning struct {
	since time.Time
	over  bool // nothing is waited for any more
}

// tryReturn ends an absence if the node can serve. Otherwise it says for what it waits, or, when the time is over, what
// stays out.
func (w *restoring) tryReturn(ctx context.Context, l *look, a absence, at returning) (wait, stay string, err error) {
	r, err := w.readiness(ctx, l, a)
	if err != nil {
		return "", "", err
	}
	elapsed := w.Clock.Since(at.since)
	switch {
	case r.waits == "":
	case !at.over:
		w.emit(ReturnPending{
			Node: w.name, Service: r.service, Hook: r.hook, For: r.waits, Elapsed: elapsed, Timeout: w.opts.WaitTimeout,
		})
		return r.waits, "", nil
	case r.firm:
		w.done[a.set] = true
		after := fmt.Sprintf("%s, after %s", r.waits, w.opts.WaitTimeout)
		if a.hook == "" {
			return "", fmt.Sprintf("labelled %s: %s", lbhooks.ExcludeLabel, r.about(after)), nil
		}
		w.out.Services = append(w.out.Services, RestoredService{Service: a.service, Hook: a.hook, Detail: r.waits})
		return "", fmt.Sprintf("%s out of %s: %s", a.service, a.hook, after), nil
	default:
		w.warn(fmt.Sprintf("%s: %s, after %s; %s is back without it", r.service, r.waits, w.opts.WaitTimeout, w.name))
	}
	if a.hook == "" {
		return "", "", w.held.Update(ctx, claim.Include)
	}
	stay, err = w.restoreHook(ctx, l, a, r, elapsed)
	return "", stay, err
}

// restoreHook undoes one withdrawal by a call. It returns why the node stays out; a Service that nothing comes for stays
// out with a warning.
func (w *restoring) restoreHook(ctx context.Context, l *look, a absence, r readiness, elapsed time.Duration) (string, error) {
	w.done[a.set] = true
	svc, there := l.snapshot.RawService(keyOf(a.service))
	if !there {
		w.warn(fmt.Sprintf("%s is gone; whether %s still leaves %s out for it, nobody looked", a.service, a.hook, w.name))
		return "", w.forget(ctx, a.set)
	}
	hook, ok := w.Hooks.Hook(a.hook)
	if !ok {
		w.hookFailed = true
		return fmt.Sprintf("%s out of %s: there is no such hook here", a.service, a.hook), nil
	}
	if r.empty {
		w.out.Services = append(w.out.Services, RestoredService{Service: a.service, Hook: a.hook, Detail: "no pod of it on the node"})
		w.warn(fmt.Sprintf("%s stays out of %s on %s: no pod of it is there, and nothing moves one back", a.service, a.hook, w.name))
		return "", nil
	}
	if err := w.renew(ctx); err != nil {
		return "", err // another run drains the node: nobody may send to it
	}
	if err := w.callRestore(ctx, hook, svc); err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		w.hookFailed = true
		return fmt.Sprintf("%s out of %s: %v", a.service, a.hook, err), nil
	}
	w.returned(a.service, a.hook, r.how, elapsed)
	return "", w.forget(ctx, a.set)
}

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
		if how := w.how[facts.Key]; how != "" {
			detail = "label removed; " + how
		}
		if unlabelled && facts.Rotation.Removal == guard.RemovalLabel {
			w.returned(service, hookName, detail, 0)
		}
		cover := guard.Cover(facts)
		if state, _ := cover.State(w.name); facts.External && state == guard.StateEmpty && boundPod(ix, rawOf(snapshot, service), w.name) == "" {
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

package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
)

// How long a claim must stand still, by own observation, before its run counts as dead, and how often it is looked at.
// A live run renews its claim every [RenewEvery].
const (
	DeadAfter  = 60 * time.Second
	RenewEvery = 20 * time.Second
	lookEvery  = 2 * time.Second
)

// undoWithin bounds the undoing of a claim after the context of a run has ended.
const undoWithin = 10 * time.Second

// Claimer claims nodes for one run.
type Claimer struct {
	Nodes    Nodes
	Clock    clock.WithTicker
	Run      string
	Holder   string
	TakeOver bool // take claims of other runs at once, dead or not
	// Known, if set, returns a node as it was read before, which saves reading it again: a patch of one that changed since
	// fails, and then it is read.
	Known func(name string) (*corev1.Node, bool)
	// Waiting, if set, is told that a claim of another run is being watched for [DeadAfter].
	Waiting func(node string, c Claim)

	// sleep replaces waiting by the clock, for tests that schedule every step.
	sleep func(ctx context.Context, d time.Duration) error
}

// Ticket is a claim of another run that was there first.
type Ticket struct {
	Run    string
	Holder string
	Nodes  []string // sorted
}

// Earlier is what stood when this run's ticket was committed: the only claims of others that count for it. Later tickets
// see this run's and judge themselves against it.
type Earlier struct{ Tickets []Ticket }

// Nodes lists the nodes of all earlier tickets, sorted.
func (e Earlier) Nodes() []string {
	var all []string
	for _, t := range e.Tickets {
		all = append(all, t.Nodes...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Has reports whether a run is among the earlier ones.
func (e Earlier) Has(run string) bool {
	return slices.ContainsFunc(e.Tickets, func(t Ticket) bool { return t.Run == run })
}

// Conflict is what a Judge returns when this run's nodes alone would do, but not together with the earlier ones.
type Conflict struct{ Cause error }

func (e *Conflict) Error() string { return e.Cause.Error() }

// Unwrap returns the guard's reason.
func (e *Conflict) Unwrap() error { return e.Cause }

// Judge asks the guard, on facts read after the call, whether the nodes of this run may leave beside the earlier ones.
type Judge func(ctx context.Context, earlier Earlier) error

// Acquire claims and cordons every node of a run, or none. Which of two conflicting runs goes on is decided by the order
// in which the API server committed their tickets: the ticket is the one patch of the first node by name that names all
// nodes, and the list of nodes at exactly its resourceVersion shows every earlier ticket and no later one.
//
// Errors are *LostTo, *TakenOver, what judge returned, or the API's; after each of them the nodes are as they were.
func (c *Claimer) Acquire(ctx context.Context, names []string, judge Judge) ([]*Held, Earlier, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return nil, Earlier{}, errors.New("no node to claim")
	}
	a := &attempt{c: c, names: names, nodes: map[string]*corev1.Node{}, free: map[string]bool{}}
	earlier, err := a.run(ctx, judge)
	if err != nil {
		return nil, earlier, errors.Join(err, a.undo(ctx))
	}
	return a.held, earlier, nil
}

// attempt is one Acquire.
type attempt struct {
	c     *Claimer
	names []string
	nodes map[string]*corev1.Node // as last read
	free  map[string]bool         // annotations of other runs that may be overwritten
	held  []*Held                 // claimed so far
}

func (a *attempt) run(ctx context.Context, judge Judge) (Earlier, error) {
	if err := a.readAll(ctx); err != nil {
		return Earlier{}, err
	}
	if err := a.settle(ctx); err != nil {
		return Earlier{}, err
	}
	ticket, err := a.take(ctx, a.names[0], Claimed)
	if err != nil {
		return Earlier{}, err
	}
	earlier, err := a.earlier(ctx, ticket.Node().ResourceVersion)
	if err != nil {
		return earlier, err
	}
	if err := judged(judge(ctx, earlier), earlier); err != nil {
		return earlier, err
	}
	for _, name := range a.names[1:] {
		if _, err := a.take(ctx, name, Granted); err != nil {
			return earlier, err
		}
	}
	if len(a.names) > 1 {
		if err := judged(judge(ctx, earlier), earlier); err != nil {
			return earlier, err
		}
	}
	a.catchUp(ticket)
	return earlier, ticket.Update(ctx, func(cl *Claim, _ *State) { cl.Phase = Granted })
}

// catchUp takes over what judge may have read of the node that bears the ticket: controllers write a node as soon as it is
// cordoned, and a patch of what it was before would fail.
func (a *attempt) catchUp(ticket *Held) {
	if a.c.Known == nil {
		return
	}
	node, ok := a.c.Known(ticket.Name())
	if !ok || node.ResourceVersion == "" {
		return
	}
	if _, err := ticket.mine(node); err == nil {
		ticket.see(node)
	}
}

// judged names the winner of a conflict.
func judged(err error, earlier Earlier) error {
	var conflict *Conflict
	if !errors.As(err, &conflict) {
		return err
	}
	lost := &LostTo{Cause: conflict.Cause, Nodes: earlier.Nodes()}
	if len(earlier.Tickets) > 0 {
		lost.Run, lost.Holder = earlier.Tickets[0].Run, earlier.Tickets[0].Holder
	}
	return lost
}

// readAll reads the nodes. The first one is read in any case: that shows, before anything changes, that this user may, and
// what was set could be undone.
func (a *attempt) readAll(ctx context.Context) error {
	for i, name := range a.names {
		if a.c.Known != nil && i > 0 {
			if node, ok := a.c.Known(name); ok && node.ResourceVersion != "" {
				a.nodes[name] = node
				continue
			}
		}
		node, err := a.c.Nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read node %q: %w", name, err)
		}
		a.nodes[name] = node
	}
	return nil
}

// take writes the claim on one node and cordons it.
func (a *attempt) take(ctx context.Context, name string, phase Phase) (*Held, error) {
	for range conflictTries {
		if err := a.await(ctx, name, phase); err != nil {
			return nil, err
		}
		h, next, state := a.prepare(name, phase)
		text := next.String()
		a.held = append(a.held, h)
		after, err := apply(ctx, a.c.Nodes, h.node, state, &text)
		if err == nil {
			h.see(after)
			return h, nil
		}
		if !apierrors.IsConflict(err) {
			return nil, fmt.Errorf("claim node %q: %w", name, err)
		}
		a.held = a.held[:len(a.held)-1]
		if a.nodes[name], err = a.c.Nodes.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, fmt.Errorf("read node %q: %w", name, err)
		}
	}
	return nil, fmt.Errorf("claim node %q: it changed %d times in a row under the patch; run the command again", name, conflictTries)
}

// prepare builds the claim on a node out of what stands there; a claim that is taken up keeps what it has set.
func (a *attempt) prepare(name string, phase Phase) (*Held, *Claim, State) {
	node := a.nodes[name]
	h := newHeld(a.c, name, node)
	h.before, h.AlreadyCordoned = stateOf(node), node.Spec.Unschedulable
	next := &Claim{Set: []string{}}
	// A claim that cannot be read was refused before.
	if was, err := Of(node); err == nil && was != nil {
		text := node.Annotations[Annotation]
		h.Was, h.beforeClaim, next = was, &text, was.clone()
		next.Free = nil
		for key, s := range next.Services {
			if was.Run != a.c.Run {
				next.Services[key] = Service{Hook: s.Hook}
			}
		}
	}
	next.Run, next.Holder, next.Nodes, next.Phase = a.c.Run, a.c.Holder, a.names, phase
	next.Renewed, next.Ended = a.c.now(), nil
	state := stateOf(node)
	cordon(next, &state)
	h.mineCordoned = !h.before.Cordoned
	return h, next, state
}

// undo puts back every node that was claimed, the last one first.
func (a *attempt) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	var all []error
	for _, h := range slices.Backward(a.held) {
		// Whether a patch that failed was committed is not known: read first.
		if _, err := h.read(ctx); err != nil {
			all = append(all, ignoreNotFound(err))
			continue
		}
		var taken *TakenOver
		if err := h.back(ctx); err != nil && !errors.As(err, &taken) {
			all = append(all, ignoreNotFound(err))
		}
	}
	return errors.Join(all...)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Adopt takes the claim on a node for its undoing, whoever holds it: a person who types uncordon means it. It returns nil
// when the node has no claim. A live run finds out before its next step.
func (c *Claimer) Adopt(ctx context.Context, name string) (*Held, error) {
	h := newHeld(c, name, nil)
	node, err := h.read(ctx)
	if err != nil {
		return nil, err
	}
	for range conflictTries {
		was, err := Of(node)
		if err != nil || was == nil {
			return nil, err
		}
		h.Was, h.before, h.AlreadyCordoned = was, stateOf(node), node.Spec.Unschedulable
		next := was.clone()
		next.Run, next.Holder, next.Phase, next.Renewed, next.Ended = c.Run, c.Holder, Closing, c.now(), nil
		text := next.String()
		after, err := apply(ctx, c.Nodes, node, h.before, &text)
		if err == nil {
			h.see(after)
			return h, nil
		}
		if !apierrors.IsConflict(err) {
			return nil, fmt.Errorf("patch node %q: %w", name, err)
		}
		if node, err = h.read(ctx); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("patch node %q: it changed %d times in a row under the patch; run the command again", name, conflictTries)
}

func (c *Claimer) now() *time.Time {
	t := c.Clock.Now().UTC().Truncate(time.Second)
	return &t
}

func (c *Claimer) pause(ctx context.Context, d time.Duration) error {
	if c.sleep != nil {
		return c.sleep(ctx, d)
	}
	t := c.Clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

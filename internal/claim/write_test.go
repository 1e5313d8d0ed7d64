package claim

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

// slowAPI lets patches through when it is told to.
type slowAPI struct {
	*modelAPI
	let   chan struct{} // closed: patches go through
	begun chan struct{} // has a value for each patch
}

func (s *slowAPI) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions,
	subresources ...string,
) (*corev1.Node, error) {
	s.begun <- struct{}{}
	select {
	case <-s.let:
		return s.modelAPI.Patch(ctx, name, pt, data, opts, subresources...)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// slowHeld is a claim whose patches wait from now on.
func slowHeld(t *testing.T) (*Held, *slowAPI) {
	t.Helper()
	api := &slowAPI{modelAPI: newModelAPI(plainNodes(1)...), let: make(chan struct{}), begun: make(chan struct{}, 100)}
	close(api.let)
	c := &Claimer{Nodes: api, Clock: clocktesting.NewFakeClock(metav1.Now().Time), Run: "r"}
	held, _, err := c.Acquire(t.Context(), []string{"n1"}, (&world{}).judge(&actor{}))
	if err != nil {
		t.Fatal(err)
	}
	api.let, api.begun = make(chan struct{}), make(chan struct{}, 100)
	return held[0], api
}

// queued waits until so many changes are queued behind the patch that is under way.
func queued(t *testing.T, h *Held, count int) {
	t.Helper()
	for {
		h.mu.Lock()
		n := len(h.queue)
		h.mu.Unlock()
		if n == count {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func mark(name string) func(*Claim, *State) {
	return func(c *Claim, _ *State) {
		if c.Services == nil {
			c.Services = map[string]Service{}
		}
		c.Services[name] = Service{Hook: "h"}
	}
}

// TestChangesShareAPatch: many changes at the same time are two patches, the one under way and one of all others.
func TestChangesShareAPatch(t *testing.T) {
	const many = 50
	h, api := slowHeld(t)
	outcome := make(chan error, many)
	for i := range many {
		go func() { outcome <- h.Update(t.Context(), mark(fmt.Sprintf("default/s%d", i))) }()
		if i == 0 {
			<-api.begun // it is under way before the next one comes
		}
	}
	queued(t, h, many-1)
	close(api.let)
	for range many {
		if err := <-outcome; err != nil {
			t.Error(err)
		}
	}
	c, err := Of(api.node("n1"))
	if err != nil || len(c.Services) != many {
		t.Errorf("%d of %d Services are in the claim, %v", len(c.Services), many, err)
	}
	if more := len(api.begun); more != 1 {
		t.Errorf("%d patches after the first, want 1", more)
	}
}

// TestImpatientWriter: whoever writes for others and gives up leaves their changes to them.
func TestImpatientWriter(t *testing.T) {
	h, api := slowHeld(t)
	first, giveUp := context.WithCancel(t.Context())
	waiting, leave := context.WithCancel(t.Context())
	outcome := map[string]chan error{"first": make(chan error), "second": make(chan error), "third": make(chan error)}
	go func() { outcome["first"] <- h.Update(first, mark("default/first")) }()
	<-api.begun
	go func() { outcome["second"] <- h.Update(t.Context(), mark("default/second")) }()
	queued(t, h, 1)
	go func() { outcome["third"] <- h.Update(waiting, mark("default/third")) }()
	queued(t, h, 2)
	leave()
	if err := <-outcome["third"]; !errors.Is(err, context.Canceled) {
		t.Errorf("who stopped waiting: %v", err)
	}
	giveUp()
	if err := <-outcome["first"]; !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up writing: %v", err)
	}
	close(api.let)
	if err := <-outcome["second"]; err != nil {
		t.Errorf("who waited: %v", err)
	}
	c, err := Of(api.node("n1"))
	if _, there := c.Services["default/second"]; err != nil || !there || len(c.Services) != 1 {
		t.Errorf("%+v, %v: want the second change alone", c.Services, err)
	}
}

// TestNothingAfterTheEnd: a change that is queued behind the end of the claim finds it gone.
func TestNothingAfterTheEnd(t *testing.T) {
	h, api := slowHeld(t)
	outcome := make(chan error, 3)
	go func() { outcome <- h.Update(t.Context(), mark("default/first")) }()
	<-api.begun
	go func() { outcome <- h.Clear(t.Context()) }()
	queued(t, h, 1)
	go func() { outcome <- h.Update(t.Context(), mark("default/late")) }()
	queued(t, h, 2)
	close(api.let)
	late := 0
	for range 3 {
		var over *TakenOver
		if err := <-outcome; errors.As(err, &over) {
			late++
		} else if err != nil {
			t.Error(err)
		}
	}
	if _, claimed := api.node("n1").Annotations[Annotation]; claimed || late != 1 {
		t.Errorf("claimed: %t, and %d changes came too late, want 1", claimed, late)
	}
}

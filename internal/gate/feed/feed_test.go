package feed

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/safedrain/safedrain/pkg/guard"
)

// What a list brings is made small as it comes, and handed on when the list is whole.
func TestFeedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		events := watch.NewFake()
		made, have := 0, 0
		sink := newSink(func(*corev1.Pod) taken {
			made++
			return func() { have++ }
		}, func(guard.Key) { have-- })
		f := New(nil, nil, nil, slog.New(slog.DiscardHandler))
		var running sync.WaitGroup
		f.reflect(ctx, &running, &reflection{name: "pods", example: &corev1.Pod{}, into: sink, from: &cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return nil, errors.New("no LIST here")
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return events, nil },
		}})
		for i, name := range []string{"a", "b"} {
			p := pod(name)
			p.ResourceVersion = strconv.Itoa(i + 1)
			events.Add(p)
		}
		synctest.Wait()
		if made != 2 || have != 0 || sink.synced.Load() {
			t.Errorf("before the end: %d made small, %d handed on, synced %v", made, have, sink.synced.Load())
		}
		end := &corev1.Pod{}
		end.ResourceVersion, end.Annotations = "3", map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		events.Action(watch.Bookmark, end)
		synctest.Wait()
		if made != 2 || have != 2 || !sink.synced.Load() {
			t.Errorf("after it: %d made small, %d handed on, synced %v", made, have, sink.synced.Load())
		}
		cancel()
		running.Wait()
	})
}

// A panic over an object ends neither the process nor the feed: until a LIST went through again nothing counts as read.
func TestFeedPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		watches := make(chan *watch.FakeWatcher, 9)
		have, faults, listed := map[string]bool{}, 0, []corev1.Pod{*pod("a")}
		sink := newSink(func(p *corev1.Pod) taken {
			return func() {
				if p.Name == "bad" && faults < 2 {
					faults++
					panic("a fault")
				}
				have[p.Name] = true
			}
		}, func(key guard.Key) {
			if delete(have, key.Name); key.Name == "bad" {
				panic("a fault at the end")
			}
		})
		f := New(nil, nil, nil, slog.New(slog.DiscardHandler))
		var running sync.WaitGroup
		f.reflect(ctx, &running, &reflection{name: "pods", example: &corev1.Pod{}, into: sink, after: sink.clear, from: &cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: listed}, nil
			},
			WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if o.SendInitialEvents != nil {
					return nil, errors.New("no LIST by a watch here")
				}
				events := watch.NewFake()
				watches <- events
				return events, nil
			},
		}})
		synctest.Wait()
		if !sink.synced.Load() || !have["a"] {
			t.Fatalf("synced %v, have %v", sink.synced.Load(), have)
		}
		bad := pod("bad")
		bad.ResourceVersion = "2"
		listed = append(listed, *bad)
		(<-watches).Add(bad)
		for range 2 { // the event, and the first LIST after it
			synctest.Wait()
			if sink.synced.Load() {
				t.Errorf("after %d panics what may be incomplete counts as read", faults)
			}
			time.Sleep(6 * time.Second)
		}
		synctest.Wait()
		if !sink.synced.Load() || !have["bad"] || faults != 2 {
			t.Errorf("after %d panics: synced %v, have %v", faults, sink.synced.Load(), have)
		}
		cancel()
		running.Wait()
	})
}

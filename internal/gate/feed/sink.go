package feed

import (
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/safedrain/safedrain/pkg/guard"
)

// sink takes the objects of one kind from a reflector and hands them on. It keeps their keys only, so that it can tell what
// is gone after a new LIST. A reflector calls it from one goroutine.
type sink[T any] struct {
	take   func(T) taken
	remove func(guard.Key)
	known  map[guard.Key]struct{}
	synced atomic.Bool
}

// taken hands on an object that was made small.
type taken func()

var (
	_ target                  = (*sink[any])(nil)
	_ cache.TransformingStore = (*sink[any])(nil)
)

func newSink[T any](take func(T) taken, remove func(guard.Key)) *sink[T] {
	return &sink[T]{take: take, remove: remove, known: map[guard.Key]struct{}{}}
}

// waiting is an object between its arrival in a list and the end of that list, when all are handed on together: of a large
// cluster no list is ever held whole.
type waiting struct {
	metav1.ObjectMeta // key and resourceVersion, which who holds it asks for
	taken             taken
}

// Transformer makes an object of a list small.
func (s *sink[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.accept(obj) }
}

func (s *sink[T]) accept(obj any) (*waiting, error) {
	if w, ok := obj.(*waiting); ok {
		return w, nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	typed, ok := obj.(T)
	if !ok {
		return nil, fmt.Errorf("%s/%s is a %T", m.GetNamespace(), m.GetName(), obj)
	}
	w := &waiting{taken: s.take(typed)}
	w.Namespace, w.Name, w.ResourceVersion = m.GetNamespace(), m.GetName(), m.GetResourceVersion()
	return w, nil
}

func keyOf(obj any) (guard.Key, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return guard.Key{}, err
	}
	return guard.Key{Namespace: m.GetNamespace(), Name: m.GetName()}, nil
}

// Add takes a new object.
func (s *sink[T]) Add(obj any) error {
	w, err := s.accept(obj)
	if err != nil {
		return err
	}
	s.known[guard.Key{Namespace: w.Namespace, Name: w.Name}] = struct{}{}
	w.taken()
	return nil
}

// Update takes a changed object.
func (s *sink[T]) Update(obj any) error { return s.Add(obj) }

// Delete forgets an object.
func (s *sink[T]) Delete(obj any) error {
	key, err := keyOf(obj)
	if err != nil {
		return err
	}
	s.drop(key)
	return nil
}

func (s *sink[T]) drop(key guard.Key) {
	delete(s.known, key)
	s.remove(key)
}

// Replace takes all the objects there are.
func (s *sink[T]) Replace(list []any, _ string) error {
	there := make(map[guard.Key]struct{}, len(list))
	for i, obj := range list {
		key, err := keyOf(obj)
		if err != nil {
			return err
		}
		there[key] = struct{}{}
		if err := s.Add(obj); err != nil {
			return err
		}
		list[i] = nil // the store has it in its own form
	}
	for key := range s.known {
		if _, ok := there[key]; !ok {
			s.drop(key)
		}
	}
	s.synced.Store(true)
	return nil
}

// lost says that what was taken may be incomplete until the next Replace.
func (s *sink[T]) lost() { s.synced.Store(false) }

// Resync does nothing: the store is what it is.
func (s *sink[T]) Resync() error { return nil }

// clear forgets every object: their kind is not served any more.
func (s *sink[T]) clear() {
	for key := range s.known {
		s.drop(key)
	}
}

package cluster

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// fakeMatcher answers with a fixed rotation and keeps what it was asked.
type fakeMatcher struct {
	rotation lbhooks.Rotation
	hooks    []lbhooks.Description
	asked    []string
	look     func(*corev1.Service, lbhooks.Objects)
}

func (m *fakeMatcher) Match(svc *corev1.Service, objects lbhooks.Objects) lbhooks.Rotation {
	m.asked = append(m.asked, svc.Namespace+"/"+svc.Name)
	if m.look != nil {
		m.look(svc, objects)
	}
	return m.rotation
}

func (m *fakeMatcher) Descriptions() []lbhooks.Description { return m.hooks }

// unknown is the rotation of a Service that no hook fronts.
func unknown() *fakeMatcher {
	return &fakeMatcher{rotation: lbhooks.Rotation{
		Removal: lbhooks.RemovalNone, Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true},
	}}
}

// read reads a text as if it came from stdin.
func read(t *testing.T, text string) *Snapshot {
	t.Helper()
	s, err := Read(context.Background(), []string{"-"}, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

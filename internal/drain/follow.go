package drain

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// errFollowEnded says that a watch ended, as each does from time to time.
var errFollowEnded = errors.New("the watch ended")

// follow ends the work on a node as soon as somebody deletes it, takes its claim or undoes what the run set on it: one
// watch while the run lasts. Without the right to watch that is found out when the claim is renewed.
func (n *nodeRun) follow(ctx context.Context) {
	for tries := 1; ; tries++ {
		began := n.Clock.Now()
		err := n.followNode(ctx)
		switch {
		case ctx.Err() != nil, n.isFinished(), apierrors.IsForbidden(err):
			return
		case definite(err):
			n.stop.end(err)
			return
		case n.Clock.Since(began) > passingMax:
			tries = 1
		}
		if n.stop.pause(ctx, n.Clock, jitter(doubled(passingWait, tries, passingMax))) != nil {
			return
		}
	}
}

// followNode watches the node until the watch ends or something stands against going on. A watch without a resourceVersion
// begins with the node as it is, so nothing is missed between two.
func (n *nodeRun) followNode(ctx context.Context) error {
	w, err := n.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, n.name).String(),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-w.ResultChan():
			node, isNode := e.Object.(*corev1.Node)
			switch {
			case !ok, !isNode:
				return errFollowEnded
			case e.Type == watch.Deleted:
				return errNodeDeleted
			}
			if err := n.held.Saw(node); definite(err) {
				return err
			}
		}
	}
}

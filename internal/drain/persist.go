package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// persist carries out a call that a begun drain cannot do without, over failures that may pass: a restarting API server,
// a connection that broke, a limit on requests. It gives up when the work is to stop, and after ten minutes.
func (n *nodeRun) persist(ctx context.Context, call func(context.Context) error) error {
	start := n.Clock.Now()
	for tries := 1; ; tries++ {
		err := call(ctx)
		if !passing(err) || ctx.Err() != nil || n.Clock.Since(start) > passingFor {
			return err
		}
		if tries == 3 {
			n.emit(Warned{Text: fmt.Sprintf("node/%s: %v; trying on", n.name, err)})
		}
		var after time.Duration
		if s, ok := apierrors.SuggestsClientDelay(err); ok {
			after = time.Duration(s) * time.Second
		}
		wait := jitter(max(after, doubled(passingWait, tries, passingMax)))
		if why := n.stop.pause(ctx, n.Clock, wait); why != nil {
			return errors.Join(why, err)
		}
	}
}

// passing reports whether a failure of the API may pass by itself.
func passing(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || definite(err) {
		return false
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code >= 500 || status.Status().Code == 429
	}
	var (
		inURL *url.Error
		inNet net.Error
	)
	return errors.As(err, &inURL) || errors.As(err, &inNet) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded)
}

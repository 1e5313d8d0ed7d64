package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const (
	pageSize = 500
	// maxParallel bounds the LISTs in flight: decoding them is what takes the time, and the server is not flooded.
	maxParallel = 8
)

// Load lists what a judgement of the cluster needs: a number of paged LISTs that depends on the scope and on the kinds of
// hooks that are served, and not on the size of the cluster. It returns a *Forbidden that names every missing permission
// when one is missing that nothing can do without, and a *NotFound when a node of the scope does not exist. Kinds that
// only hooks need are optional: see [Snapshot.Missing] and [Snapshot.Unavailable].
func Load(ctx context.Context, c *Clients, hooks []lbhooks.Description, scope Scope) (*Snapshot, error) {
	l := &loader{clients: c, scope: scope}
	l.into.knowsDaemons = true
	if !scope.AllPods && !scope.Workloads {
		l.remembered = c.knownDaemonSets()
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallel)
	for _, list := range l.kinds() {
		group.Go(func() error { return list(gctx) })
	}
	group.Go(func() error { return l.hooks(gctx, hooks) })
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, v := range l.into.missing {
		if v.Needed {
			return nil, &Forbidden{User: l.user, Missing: distinct(l.into.missing)}
		}
	}
	if l.into.daemonSets == nil {
		l.into.knownDaemons = l.remembered
	}
	snap := l.into.seal()
	if err := snap.Resolve(scope.Nodes); err != nil {
		return nil, err
	}
	if err := l.holds(ctx, snap); err != nil {
		return nil, fmt.Errorf("read what a hold needs: %w", err)
	}
	if err := l.placement(ctx, snap); err != nil {
		return nil, fmt.Errorf("read where pods can be placed: %w", err)
	}
	return snap, nil
}

// loader fills a listing; each LIST owns its field, and mu guards what they share.
type loader struct {
	clients *Clients
	scope   Scope
	into    listing

	remembered map[guard.Key]*appsv1.DaemonSet // of an earlier load; nil: they are listed
	again      sync.Once
	againErr   error

	mu   sync.Mutex
	user string
}

// pages carries out one paged LIST. next lists one page, keeps what it needs of it, and returns the token of the page
// after it; restart forgets what was kept. A list that expired on the server while it was paged is begun once more.
func (l *loader) pages(ctx context.Context, v Verb, opts metav1.ListOptions,
	next func(context.Context, metav1.ListOptions) (string, error), restart func(),
) error {
	opts.Limit = max(0, cmp.Or(l.scope.PageSize, pageSize))
	restarted := false
	for {
		token, err := next(ctx, opts)
		switch {
		case apierrors.IsResourceExpired(err) && opts.Continue != "" && !restarted:
			restarted = true
			opts.Continue = ""
			restart()
			continue
		case apierrors.IsForbidden(err):
			l.deny(v, err)
			restart()
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", v, err)
		case token == "":
			return nil
		}
		opts.Continue = token
	}
}

// forbiddenUser finds the user in the API server's own words.
var forbiddenUser = regexp.MustCompile(`User "([^"]+)" cannot`)

// deny records a permission that is missing.
func (l *loader) deny(v Verb, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.into.missing = append(l.into.missing, v)
	var status apierrors.APIStatus
	if l.user == "" && errors.As(err, &status) {
		if m := forbiddenUser.FindStringSubmatch(status.Status().Message); m != nil {
			l.user = m[1]
		}
	}
}

package balancers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

const (
	requestTimeout = 900 * time.Millisecond // see package load
	// inARow is how many requests a node have to be answered in a row, before a balancer counts as carrying a Service.
	inARow = 8
)

// Request makes one request on a connection of its own from a host and returns which pod answered.
func Request(ctx context.Context, from *dataplane.Host, to netip.AddrPort) (dataplane.Answer, error) {
	var answer dataplane.Answer
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+"/", http.NoBody)
	if err != nil {
		return answer, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: from.DialContext, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return answer, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return answer, fmt.Errorf("status %s from %s", resp.Status, to)
	}
	return answer, json.NewDecoder(resp.Body).Decode(&answer)
}

// answering waits until requests of the client are answered, from every node that should: a balancer may know a Service
// before the kube-proxies do.
func answering(ctx context.Context, b Balancer, svc *corev1.Service, client *dataplane.Host) error {
	what := fmt.Sprintf("answers of service %s/%s through %s", svc.Namespace, svc.Name, b.Traits().Name)
	return controlplane.Poll(ctx, startTimeout, what, func(ctx context.Context) (bool, string, error) {
		nodes, err := b.Shown(ctx, svc)
		if err != nil {
			return false, "", err
		}
		seen := map[string]int{}
		for range inARow * len(nodes) {
			answer, err := Request(ctx, client, b.Target(svc))
			if err != nil {
				return false, "", err
			}
			seen[answer.Node]++
		}
		silent := slices.DeleteFunc(nodes, func(node string) bool { return seen[node] > 0 })
		return len(silent) == 0, fmt.Sprintf("no answer from %v", silent), nil
	})
}

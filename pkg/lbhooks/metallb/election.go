package metallb

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// canServe is MetalLB's rule of a usable endpoint, internal/k8s/epslices EndpointCanServe: ready, where nil is true, or
// serving. So an endpoint that terminates and still serves keeps the announcement.
func canServe(c discoveryv1.EndpointConditions) bool {
	return c.Ready == nil || *c.Ready || (c.Serving != nil && *c.Serving)
}

// elect returns the node that announces an address by L2 among candidates, speaker/layer2_controller.go: the highest
// score of preferredNodeSelectors (v0.16.2), then the lowest sha256 of node + "#" + address, of the first address of the
// Service. It returns "" when there are no candidates.
func elect(candidates []string, address netip.Addr, score func(node string) int64) string {
	if len(candidates) == 0 {
		return ""
	}
	hash := func(node string) []byte {
		sum := sha256.Sum256([]byte(node + "#" + address.String()))
		return sum[:]
	}
	return slices.MinFunc(candidates, func(a, b string) int {
		return cmp.Or(cmp.Compare(score(b), score(a)), bytes.Compare(hash(a), hash(b)))
	})
}

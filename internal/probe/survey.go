package probe

import (
	"context"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/guard"
)

// looks is how often at most a port that disagrees is looked at again.
const looks = 3

// Reasons for which a port is not counted.
const (
	changed    = "changed while it was probed"
	onlyOnce   = "seen otherwise once only: the time for all probes was up"
	noNode     = "virtual node: no proxy of Kubernetes runs there"
	unprovable = ": silence is a usual answer, so no probe can prove it"
)

// Survey probes the rows of an audit.
type Survey struct {
	Prober *Prober
	Place  Place
	// Address is where a node is probed in a family.
	Address func(node string, family corev1.IPFamily) (netip.Addr, bool)
	// Reload reads the cluster again, so that a change is not taken for a contradiction.
	Reload func(context.Context) (guard.Index, error)
	// Wait is the time before a port that disagrees is looked at again: a proxy lags behind the API.
	Wait time.Duration
}

// Plan lists the ports of every row of an audit, with what the rules predict of each, and why some are not to be probed.
func (s *Survey) Plan(ix guard.Index, report *guard.CoverageReport) []guard.Probe {
	var out []guard.Probe
	for i := range report.Services {
		row := &report.Services[i]
		svc, ok := ix.Service(row.Key())
		if !ok || !svc.External {
			continue
		}
		predictor := guard.Predict(svc)
		for k := range row.Nodes {
			node, ok := ix.Node(row.Nodes[k].Name)
			if !ok {
				continue
			}
			for _, p := range predictor.Ports(node.Name) {
				p.NotCounted = s.forbids(node, &p)
				if addr, ok := s.Address(node.Name, p.Family); ok && p.NotCounted == "" {
					p.Address = netip.AddrPortFrom(addr, uint16(p.Number)).String() //nolint:gosec // the API server validates port numbers
				} else if p.NotCounted == "" {
					p.NotCounted = "the node has no " + string(p.Family) + " address"
				}
				out = append(out, guard.Probe{Service: svc.Key, Node: node.Name, PortProbe: p})
			}
		}
	}
	return out
}

// forbids says why a port is not to be probed.
func (s *Survey) forbids(node *guard.NodeFacts, p *guard.PortProbe) string {
	switch protocol := p.Protocol(); {
	case node.Virtual:
		return noNode
	case s.Place.Forbids(node.Name) != "":
		return s.Place.Forbids(node.Name)
	case protocol == corev1.ProtocolUDP:
		return "UDP" + unprovable
	case protocol != corev1.ProtocolTCP:
		return string(protocol) + " is not probed"
	}
	return ""
}

// Run makes the probes of a plan. A port that disagrees is looked at again, after a wait and with the cluster read before
// and after: it stays so only where it disagrees twice with one unchanged prediction.
func (s *Survey) Run(ctx context.Context, probes []guard.Probe) error {
	var all []int
	for i := range probes {
		if probes[i].NotCounted == "" {
			all = append(all, i)
		}
	}
	if err := s.observe(ctx, probes, all); err != nil {
		return err
	}
	open := doubtful(probes, all)
	for range looks {
		if len(open) == 0 {
			return nil
		}
		var err error
		if open, err = s.again(ctx, probes, open); err != nil {
			return err
		}
	}
	for _, i := range open {
		probes[i].NotCounted = changed
	}
	return nil
}

// doubtful lists the probes that disagree, in families in which some node answers.
func doubtful(probes []guard.Probe, of []int) []int {
	silent := guard.Silent(probes)
	return slices.DeleteFunc(slices.Clone(of), func(i int) bool {
		return !probes[i].Disagrees() || slices.Contains(silent, probes[i].Family)
	})
}

// observe probes some of the ports once.
func (s *Survey) observe(ctx context.Context, probes []guard.Probe, which []int) error {
	targets := make([]Target, 0, len(which))
	for _, i := range which {
		p := &probes[i]
		addr, err := netip.ParseAddrPort(p.Address)
		if err != nil {
			return err
		}
		targets = append(targets, Target{Service: p.Service, Address: addr, HealthCheck: p.Port == guard.PortHealthCheck})
	}
	seen, err := s.Prober.Run(ctx, targets)
	if err != nil {
		return err
	}
	for k, i := range which {
		p := &probes[i]
		switch {
		case seen[k].Answer == "" && p.Observed != "":
			p.NotCounted = onlyOnce
			continue
		case seen[k].Answer == "":
			p.NotCounted = seen[k].Detail
			continue
		case seen[k].Answer == p.Observed:
			p.Times++
		default:
			p.Times = 1
		}
		p.Observed, p.Detail, p.NotCounted = seen[k].Answer, seen[k].Detail, s.Place.Doubts(p.Port)
	}
	return nil
}

// again looks once more at ports that disagree and returns those that are still open: their prediction changed meanwhile.
func (s *Survey) again(ctx context.Context, probes []guard.Probe, open []int) ([]int, error) {
	if err := wait(ctx, s.Wait); err != nil {
		return nil, err
	}
	before, err := s.predict(ctx, probes, open)
	if err != nil {
		return nil, err
	}
	if err := s.observe(ctx, probes, open); err != nil {
		return nil, err
	}
	after, err := s.predict(ctx, probes, open)
	if err != nil {
		return nil, err
	}
	var still []int
	for k, i := range open {
		p := &probes[i]
		same := before[k] == p.Predicted && after[k] == p.Predicted
		if after[k] == "" {
			p.NotCounted = changed
			continue
		}
		p.Predicted = after[k]
		if p.Disagrees() && !same {
			still = append(still, i)
		}
	}
	return still, nil
}

// predict reads the cluster again and predicts some of the ports; "" where the port or the Service is gone.
func (s *Survey) predict(ctx context.Context, probes []guard.Probe, which []int) ([]guard.Answer, error) {
	ix, err := s.Reload(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]guard.Answer, len(which))
	predictors := map[guard.Key]*guard.Predictor{}
	for k, i := range which {
		p := &probes[i]
		predictor, known := predictors[p.Service]
		if !known {
			if svc, ok := ix.Service(p.Service); ok && svc.External {
				predictor = guard.Predict(svc)
			}
			predictors[p.Service] = predictor
		}
		if predictor == nil {
			continue
		}
		for _, now := range predictor.Ports(p.Node) {
			if now.Port == p.Port && now.Family == p.Family && now.Number == p.Number {
				out[k] = now.Predicted
			}
		}
	}
	return out, nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

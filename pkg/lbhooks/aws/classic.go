package aws

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancing"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// States of DescribeInstanceHealth, and the description of an instance that is being deregistered while its connections
// are drained: AWS documents that it gets no new requests.
const (
	inService    = "InService"
	outOfService = "OutOfService"
	deregisters  = "deregistration currently in progress"
)

// proveClassic makes one observation of a Classic Load Balancer, which names all of its instances in one answer.
func (h *Hook) proveClassic(ctx context.Context, f *fleet, t lbhooks.Target) (lbhooks.Proof, error) {
	id := instanceOf(t.Node)
	if id == "" {
		return lbhooks.Proof{}, lbhooks.Unavailable(Name, fmt.Sprintf("node %q has no EC2 instance in its providerID (%q)", t.Node.Name, t.Node.Spec.ProviderID), nil)
	}
	client, err := h.api.instances(ctx, f.region)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	answer, err := client.DescribeInstanceHealth(ctx, &elasticloadbalancing.DescribeInstanceHealthInput{LoadBalancerName: &f.classic})
	if err != nil {
		if isGone(err) {
			h.forget(t)
		}
		return lbhooks.Proof{}, failed(actionInstances, anything, err)
	}
	state, others := absent, 0
	leaving := false
	for i := range answer.InstanceStates {
		s := &answer.InstanceStates[i]
		going := strings.Contains(value(s.Description), deregisters)
		switch {
		case value(s.InstanceId) == id:
			state, leaving = value(s.State), going
		case value(s.State) == inService && !going:
			others++
		}
	}
	settle := h.settleFor(false)
	proof := lbhooks.Proof{Evidence: fmt.Sprintf("%s: %s, %d others in service", f.classic, state, others)}
	if leaving {
		proof.Evidence += ", " + deregisters
		leaving = settle > 0 && h.options.Text(optionProof) != proofAbsent
	}
	if others == 0 {
		proof.Evidence += ": nobody would serve"
		return proof, nil
	}
	if state == absent || state == outOfService || leaving {
		proof.Out, proof.Settle = true, &settle
	}
	return proof, nil
}

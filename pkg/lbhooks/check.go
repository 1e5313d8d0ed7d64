package lbhooks

import "context"

// Sight is what a look at a node's health check port came to.
type Sight string

// Passing: the port says that a ready endpoint of the Service is there. Failing: it says that none is. Unreachable: it
// does not answer from here, which is no answer. Odd: anything that is not to be believed.
const (
	SightPassing     Sight = "passing"
	SightFailing     Sight = "failing"
	SightUnreachable Sight = "unreachable"
	SightOdd         Sight = "odd"
)

// CheckWitness is a hook that can look at healthCheckNodePort, whoever fronts the Service. The proof of a hold is the
// time of the balancer's check after the port began to fail.
type CheckWitness interface {
	// Look asks the node's port once. detail is one line for people; the error is only that of a context.
	Look(ctx context.Context, t Target) (s Sight, detail string, err error)
}

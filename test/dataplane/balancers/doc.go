// Package balancers puts real load balancers in front of a data plane lab: HAProxy in three ways, and MetalLB by L2 and by
// BGP. Each runs as it does in production, with its own health checks, elections and sessions; a [Balancer] says what
// clients dial, what the balancer itself shows of its rotation, and how it is told to leave a node out.
//
// Between HAProxy's socket and whoever works it stands a [Relay], which can be made to ignore, to lie or to hang.
// MetalLB's faults are those of its speakers and of its status objects.
package balancers

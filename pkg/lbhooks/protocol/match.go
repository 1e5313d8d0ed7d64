package protocol

import "github.com/safedrain/safedrain/pkg/lbhooks"

// Rotation is that of a Service whose balancer only the hook knows: it sends to any node until it is told otherwise,
// whether or not there is an endpoint. Which nodes these are, the annotation safedrain.dev/nodes says; else all that could be.
func Rotation(hook, evidence string) lbhooks.Rotation {
	return lbhooks.Rotation{
		Hook: hook, Evidence: evidence, Removal: lbhooks.RemovalHook, Provable: true,
		Rest: lbhooks.Seat{In: lbhooks.Unknown, Eligible: true, Why: hook + " is asked when the node is to leave"},
	}
}

// NotConfigured is the rotation of a Service that names a hook that nobody has configured here: it cannot do anything.
func NotConfigured(hook string, cause error) lbhooks.Rotation {
	r := Rotation(hook, "")
	r.Removal, r.Provable, r.Broken = lbhooks.RemovalNone, false, cause.Error()
	return r
}

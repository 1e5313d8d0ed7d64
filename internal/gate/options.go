package gate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedrain/safedrain/internal/gate/admission"
)

// Options say how the gate runs. Mode and Scale have no default; the defaults of the rest are in [DefaultOptions].
type Options struct {
	Mode  admission.Mode        // of the cluster; namespaces, Services and nodes may say otherwise
	Scale admission.ScalePolicy // what enforcing means for scale-downs

	WebhookPort    int
	HealthAddress  string
	MetricsAddress string // "0": no metrics

	Namespace string // where the gate runs
	Service   string // by which the API servers reach it
	Identity  string // of this replica

	CertDir       string   // tls.crt and tls.key that somebody else keeps; "": the gate keeps its own
	CertSecret    string   // where its own are
	CertHosts     []string // further names and addresses that its own are for
	Configuration string   // name of the webhook configurations that are to trust its own
	ClientCAFile  string   // authorities of callers; "": any caller is answered

	LeaderElect bool
	Lease       string
	Deadline    time.Duration // of one review
	// ShutdownDelay is how long the gate goes on answering after it was told to end and says that it is not ready.
	ShutdownDelay time.Duration

	Certificates CertificateTimes
}

// CertificateTimes are how long the gate's own certificates live and how fast they are replaced.
type CertificateTimes struct {
	Authority time.Duration // life of an authority
	Serving   time.Duration // life of the serving certificate
	Settle    time.Duration // how long a new authority is trusted before it signs
	Overlap   time.Duration // how long the old one is trusted after that
	Every     time.Duration // how often they are looked at
}

// DefaultOptions returns the options that need not be said.
func DefaultOptions() Options {
	return Options{ //nolint:gosec // the name of a Secret, not one
		WebhookPort:    9443,
		HealthAddress:  ":8081",
		MetricsAddress: ":8080",
		Service:        "safedrain-gate",
		CertSecret:     "safedrain-gate-tls",
		Configuration:  "safedrain-gate",
		LeaderElect:    true,
		Lease:          "safedrain-gate",
		Deadline:       5 * time.Second,
		ShutdownDelay:  10 * time.Second,
		Certificates: CertificateTimes{
			Authority: 365 * 24 * time.Hour,
			Serving:   90 * 24 * time.Hour,
			Settle:    5 * time.Minute,
			Overlap:   24 * time.Hour,
			Every:     time.Minute,
		},
	}
}

// maxDeadline is the timeout of the webhooks less the time that the answer travels.
const maxDeadline = 9 * time.Second

// Check returns every mistake in the options.
func (o *Options) Check() error {
	var wrong []error
	wrong = append(wrong, chosen("mode", string(o.Mode), modes), chosen("scale", string(o.Scale), scales))
	if o.Namespace == "" {
		wrong = append(wrong, errors.New("--namespace: say in which namespace the gate runs"))
	}
	if o.Deadline <= 0 || o.Deadline > maxDeadline {
		wrong = append(wrong, fmt.Errorf("--deadline=%s: at most %s, since the API server waits for 10s", o.Deadline, maxDeadline))
	}
	if o.CertDir != "" && len(o.CertHosts) > 0 {
		wrong = append(wrong, errors.New("--cert-host is about certificates that the gate makes: not with --cert-dir"))
	}
	if o.ShutdownDelay < 0 {
		wrong = append(wrong, fmt.Errorf("--shutdown-delay=%s: not negative", o.ShutdownDelay))
	}
	return errors.Join(wrong...)
}

// choice is one value of a flag without default.
type choice struct{ value, means string }

var (
	modes = []choice{
		{string(admission.Enforce), "refuse what would make a blackhole"},
		{string(admission.Warn), "only say so"},
		{string(admission.Off), "judge nothing"},
	}
	scales = []choice{
		{string(admission.ScaleClamp), "a scale-down stops at the floor"},
		{string(admission.ScaleDeny), "one below the floor is refused"},
		{string(admission.ScaleWarn), "only say so"},
		{string(admission.ScaleOff), "judge none"},
	}
)

// chosen returns an error that lists the values unless one of them was chosen.
func chosen(flag, value string, of []choice) error {
	if slices.ContainsFunc(of, func(c choice) bool { return c.value == value }) {
		return nil
	}
	lines := make([]string, len(of))
	for i, c := range of {
		lines[i] = c.value + " (" + c.means + ")"
	}
	list := strings.Join(lines[:len(lines)-1], ", ") + " or " + lines[len(lines)-1]
	if value == "" {
		return fmt.Errorf("--%s is missing and has no default: %s", flag, list)
	}
	return fmt.Errorf("--%s=%s: there are %s", flag, value, list)
}

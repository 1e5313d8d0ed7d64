// Package httphook is the hook http: a server of the operator that works a balancer which nothing else knows, asked over
// HTTP or HTTPS.
//
// The server is configured by whoever runs safedrain. A Service only chooses among the servers that are configured.
package httphook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// Name of the hook; further ones are configured under names of their own.
const Name = "http"

// Names of the options.
const (
	optionURL        = "url"
	optionTokenFile  = "token-file"
	optionCAFile     = "ca-file"
	optionCertFile   = "cert-file"
	optionKeyFile    = "key-file"
	optionServerName = "server-name"
	optionTimeout    = "timeout"
	optionRetries    = "retries"
	optionSettle     = "settle"
)

// Defaults of the options.
const (
	defaultTimeout = lbhooks.DefaultCall
	defaultRetries = 3
)

// Options are those that the hook knows.
func Options() []lbhooks.Option {
	return []lbhooks.Option{
		{Name: optionURL, Kind: lbhooks.OptionText, Check: checkURL, Usage: "where requests are sent, https://host/path; http:// too, but no token goes over it to another machine"},
		{Name: optionTokenFile, Kind: lbhooks.OptionFile, Usage: "file with the bearer token, read again when it changes"},
		{Name: optionCAFile, Kind: lbhooks.OptionFile, Usage: "file with the certificates (PEM) that may sign the server's, in place of the system's"},
		{Name: optionCertFile, Kind: lbhooks.OptionFile, Usage: "file with the client's certificate (PEM)"},
		{Name: optionKeyFile, Kind: lbhooks.OptionFile, Usage: "file with the client's key (PEM)"},
		{Name: optionServerName, Kind: lbhooks.OptionText, Usage: "name that the server's certificate has to bear, if not the host of the URL"},
		{Name: optionTimeout, Kind: lbhooks.OptionDuration, Check: notZero, Usage: "how long one action may take, its retries included (default 10s)"},
		{Name: optionRetries, Kind: lbhooks.OptionNumber, Check: fewRetries, Usage: "how often a call is repeated that failed in a way that passes, at most 10 (default 3)"},
		{Name: optionSettle, Kind: lbhooks.OptionDuration, Usage: "time to wait after a proof, unless the server says one (default 0s)"},
	}
}

func checkURL(value string) error {
	u, err := url.Parse(value)
	switch {
	case err != nil:
		return errors.New("not a URL")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return errors.New("not a URL of http or https")
	case u.User != nil:
		return errors.New("a password does not belong in a URL: give a token-file or a client certificate")
	case u.Fragment != "":
		return errors.New("a URL with a fragment")
	}
	return nil
}

func notZero(value string) error {
	if d, err := time.ParseDuration(value); err == nil && d == 0 {
		return errors.New("must be longer than 0s")
	}
	return nil
}

func fewRetries(value string) error {
	if len(value) > 2 || len(value) == 2 && value != "10" {
		return errors.New("at most 10")
	}
	return nil
}

// Hook is one configured server.
type Hook struct {
	name    string
	options lbhooks.Options
	offline bool
	// retryWait is the time before the first repetition.
	retryWait time.Duration
	connect   func() (*http.Client, error)
	token     tokenFile
}

var (
	_ lbhooks.Hook         = (*Hook)(nil)
	_ lbhooks.Assertable   = (*Hook)(nil)
	_ lbhooks.Configurable = (*Hook)(nil)
)

// New returns the hook under a name. Offline it is taken at its word whether or not it is configured.
func New(name string, options lbhooks.Options, offline bool) *Hook {
	h := &Hook{
		name: name, options: options, offline: offline, retryWait: 200 * time.Millisecond,
		token: tokenFile{path: options.Text(optionTokenFile)},
	}
	h.connect = sync.OnceValues(h.client)
	return h
}

// Describe names the hook. It reads nothing of the cluster.
func (h *Hook) Describe() lbhooks.Description {
	return lbhooks.Description{Name: h.name, Witness: "answer", Settle: h.options.Duration(optionSettle, 0)}
}

// Configured says whether there is a server to ask, and whether its options go together.
func (h *Hook) Configured() error {
	prefix := h.name + "."
	if !h.options.Has(optionURL) {
		return lbhooks.Unavailable(h.name, "no url is configured here: give --hook-option "+prefix+optionURL+"=https://..., or the --config that has it", nil)
	}
	if h.options.Has(optionCertFile) != h.options.Has(optionKeyFile) {
		return lbhooks.Unavailable(h.name, "a client certificate needs both "+prefix+optionCertFile+" and "+prefix+optionKeyFile, nil)
	}
	u, err := url.Parse(h.options.Text(optionURL))
	if err != nil {
		return lbhooks.Unavailable(h.name, "the url is not one", err)
	}
	if u.Scheme == "http" && h.options.Has(optionTokenFile) && !loopback(u.Hostname()) {
		return lbhooks.Unavailable(h.name, fmt.Sprintf("the token would be sent to %s unencrypted: use https", u.Host), nil)
	}
	if _, err := h.connect(); err != nil {
		return lbhooks.Unavailable(h.name, "its options do not work", err)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Withdraw asks the server to take the node out.
func (h *Hook) Withdraw(ctx context.Context, t lbhooks.Target) error {
	_, err := h.call(ctx, protocol.Withdraw, t)
	return err
}

// Restore asks the server to put the node back.
func (h *Hook) Restore(ctx context.Context, t lbhooks.Target) error {
	_, err := h.call(ctx, protocol.Restore, t)
	return err
}

package httphook

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// Prove asks the server once. Only an answer that says out, and on what evidence, means that the node is out.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	body, err := h.call(ctx, protocol.Prove, t)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	answer, err := protocol.ParseAnswer(body)
	if err != nil {
		return lbhooks.Proof{}, h.wrong(protocol.Prove, t, err)
	}
	proof, err := answer.Proof()
	if err != nil {
		return lbhooks.Proof{}, h.wrong(protocol.Prove, t, err)
	}
	return proof, nil
}

// wrong puts the call before an error.
func (h *Hook) wrong(action protocol.Action, t lbhooks.Target, err error) error {
	return fmt.Errorf("%s: %s node %q for %s/%s: %w", h.name, action, t.Node.Name, t.Service.Namespace, t.Service.Name, err)
}

// statusError is the error of an answer that is not a success.
func (h *Hook) statusError(action protocol.Action, t lbhooks.Target, code int, body []byte) error {
	words := protocol.Line(string(body))
	if words != "" {
		words = ": " + words
	}
	what := fmt.Sprintf("the server answers %d %s%s", code, http.StatusText(code), words)
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return lbhooks.Unavailable(h.name, what+"; check the token or the certificate", nil)
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone, http.StatusNotImplemented:
		return lbhooks.Unavailable(h.name, what+"; check the url", nil)
	}
	return h.wrong(action, t, errors.New(what))
}

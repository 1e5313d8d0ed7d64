package execcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// Exit codes of the command, beside 0. Those of a shell that cannot start a program count as ExitCannot.
const (
	ExitStillIn = 75 // to prove: the node is still in rotation
	ExitIdle    = 76 // to prove: the same, but nothing is sent to it now: the balancer's own check of it fails
	ExitCannot  = 77 // it cannot work here: no credentials, no permission; asking again does not help
	ExitConfig  = 78 // the same: it is not configured

	exitNotExecutable = 126
	exitNotFound      = 127
)

// act calls the command for an action whose success is exit code 0.
func (h *Hook) act(ctx context.Context, action protocol.Action, t lbhooks.Target) error {
	out, err := h.call(ctx, action, t)
	if err != nil {
		return err
	}
	if out.code != 0 {
		return h.failed(action, t, out)
	}
	return nil
}

// Prove calls the command once. Only exit code 0 together with a line of evidence means that the node is out; a JSON
// answer that says otherwise wins.
func (h *Hook) Prove(ctx context.Context, t lbhooks.Target) (lbhooks.Proof, error) {
	out, err := h.call(ctx, protocol.Prove, t)
	if err != nil {
		return lbhooks.Proof{}, err
	}
	if out.code != 0 && out.code != ExitStillIn && out.code != ExitIdle {
		return lbhooks.Proof{}, h.failed(protocol.Prove, t, out)
	}
	proof, err := observation(out)
	if err != nil {
		return lbhooks.Proof{}, fmt.Errorf("%s: %s node %q for %s: %w", h.name, protocol.Prove, t.Node.Name, serviceOf(t), err)
	}
	return proof, nil
}

// observation reads what the command printed: a JSON answer, or lines of which the last is the evidence.
func observation(out *output) (lbhooks.Proof, error) {
	gone, idle := out.code == 0, out.code == ExitIdle
	text := strings.TrimSpace(out.stdout.text())
	if out.stdout.cut {
		return lbhooks.Proof{}, fmt.Errorf("the command printed more than %d bytes", protocol.MaxAnswer)
	}
	if !strings.HasPrefix(text, "{") {
		proof := lbhooks.Proof{Out: gone, Idle: idle, Evidence: protocol.LastLine(text)}
		switch {
		case proof.Evidence != "":
		case gone:
			return lbhooks.Proof{}, errors.New("the command ended with 0 and printed nothing: it has to print what it saw")
		default:
			proof.Evidence = "the command says that the node is still in rotation"
		}
		return proof, nil
	}
	answer, err := protocol.ParseAnswer([]byte(text))
	if err != nil {
		return lbhooks.Proof{}, err
	}
	proof, err := answer.Proof()
	if err == nil && proof.Out != gone {
		err = fmt.Errorf("the command ended with %d and its answer says out: %t", out.code, proof.Out)
	}
	if err != nil {
		return lbhooks.Proof{}, err
	}
	proof.Idle = proof.Idle || idle
	return proof, nil
}

// failed is the error of a call that ended with a code of failure; the command's last words are in it.
func (h *Hook) failed(action protocol.Action, t lbhooks.Target, out *output) error {
	words := protocol.LastLine(out.stderr.text())
	if words == "" {
		words = "nothing on stderr"
	}
	what := fmt.Sprintf("%s of node %q for %s ended with code %d: %s", action, t.Node.Name, serviceOf(t), out.code, words)
	switch out.code {
	case ExitCannot, ExitConfig, exitNotExecutable, exitNotFound:
		return lbhooks.Unavailable(h.name, what, nil)
	}
	return fmt.Errorf("%s: %s", h.name, what)
}

func serviceOf(t lbhooks.Target) string { return t.Service.Namespace + "/" + t.Service.Name }

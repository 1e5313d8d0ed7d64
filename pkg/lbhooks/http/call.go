package httphook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/protocol"
)

// Headers of a request besides the usual ones.
const (
	headerKey    = "Idempotency-Key"
	headerAction = "Safedrain-Action"
)

// maxWait bounds the time between two repetitions that the hook chooses itself; Retry-After may ask for more.
const maxWait = 3 * time.Second

// call sends one action until it is answered or the retries are used up, and returns the body of a success.
func (h *Hook) call(ctx context.Context, action protocol.Action, t lbhooks.Target) ([]byte, error) {
	if err := h.Configured(); err != nil {
		return nil, err
	}
	client, err := h.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.options.Duration(optionTimeout, defaultTimeout))
	defer cancel()
	request, err := h.request(ctx, action, t)
	if err != nil {
		return nil, err
	}
	response, err := h.retrying(client).Do(request)
	if err != nil {
		if why := context.Cause(ctx); why != nil && !errors.Is(err, why) {
			err = fmt.Errorf("%w: %w", why, err)
		}
		return nil, h.wrong(action, t, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, protocol.MaxAnswer+1))
	switch {
	case err != nil:
		return nil, h.wrong(action, t, fmt.Errorf("read the answer: %w", err))
	case response.StatusCode < 200 || response.StatusCode > 299:
		return nil, h.statusError(action, t, response.StatusCode, body)
	case len(body) > protocol.MaxAnswer:
		return nil, h.wrong(action, t, fmt.Errorf("the answer is longer than %d bytes", protocol.MaxAnswer))
	}
	return body, nil
}

// request writes the call. It is a POST to the one URL whatever the action; the key is the same for its repetitions.
func (h *Hook) request(ctx context.Context, action protocol.Action, t lbhooks.Target) (*retryablehttp.Request, error) {
	document := protocol.NewRequest(h.name, action, t)
	body, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("%s: write the request: %w", h.name, err)
	}
	request, err := retryablehttp.NewRequestWithContext(ctx, http.MethodPost, h.options.Text(optionURL), body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.name, err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "safedrain")
	request.Header.Set(headerKey, document.Key)
	request.Header.Set(headerAction, string(action))
	return request, h.authorize(request.Request)
}

// authorize puts the token of the moment into a request.
func (h *Hook) authorize(request *http.Request) error {
	token, err := h.token.read()
	if err != nil {
		return lbhooks.Unavailable(h.name, "the token cannot be read", err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return nil
}

// retrying is the client of one call: failures that pass are repeated, after a time that doubles or that the server asks
// for. A repetition that could not be made in the time that is left is not waited for.
func (h *Hook) retrying(client *http.Client) *retryablehttp.Client {
	return &retryablehttp.Client{
		HTTPClient: client, RetryMax: h.options.Number(optionRetries, defaultRetries),
		RetryWaitMin: h.retryWait, RetryWaitMax: maxWait,
		CheckRetry: worthRepeating, Backoff: retryablehttp.DefaultBackoff, ErrorHandler: retryablehttp.PassthroughErrorHandler,
		PrepareRetry: h.authorize,
	}
}

// worthRepeating decides after one attempt. Certificates, redirects and refusals do not mend themselves.
func worthRepeating(ctx context.Context, response *http.Response, err error) (bool, error) {
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil {
		again, _ := retryablehttp.DefaultRetryPolicy(ctx, nil, err)
		return again && !errors.Is(err, errRedirect), nil
	}
	switch code := response.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests:
	case code >= 500 && code != http.StatusNotImplemented:
	default:
		return false, nil
	}
	return inTime(ctx, response), nil
}

// inTime reports whether the server asks to come back before the context's deadline.
func inTime(ctx context.Context, response *http.Response) bool {
	deadline, ok := ctx.Deadline()
	if !ok {
		return true
	}
	after := response.Header.Get("Retry-After")
	seconds, err := strconv.Atoi(after)
	if err != nil {
		when, err := http.ParseTime(after)
		return err != nil || when.Before(deadline)
	}
	return time.Now().Add(time.Duration(seconds) * time.Second).Before(deadline)
}

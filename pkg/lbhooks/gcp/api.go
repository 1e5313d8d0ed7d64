package gcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"

	"golang.org/x/oauth2/google"
	"google.golang.org/api/googleapi"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// Where the API is, and what may be done with a token.
const (
	endpoint = "https://compute.googleapis.com/compute/v1/"
	scope    = "https://www.googleapis.com/auth/compute.readonly"
)

// maxBody is more bytes than a page of any answer has.
const maxBody = 32 << 20

// SDK replaces what Google's libraries would find by themselves; the zero value replaces nothing.
type SDK struct {
	Client   *http.Client // nil: one with the application default credentials
	Endpoint string       // "": Google's
}

// The answers of Compute Engine, as far as the hook reads them. The generated client of that API is left out on purpose: it
// would nearly double the size of the program, docs/adr/0004.
type (
	backendService struct {
		Backends []struct {
			Group string `json:"group"`
		} `json:"backends"`
	}
	healthStatus struct {
		Instance    string `json:"instance"`
		HealthState string `json:"healthState"`
	}
	healthAnswer struct {
		HealthStatus []healthStatus `json:"healthStatus"`
	}
	targetPool struct {
		Instances []string `json:"instances"`
	}
	memberPage struct {
		Items []struct {
			Instance        string `json:"instance"` // of an instance group
			NetworkEndpoint struct {
				Instance string `json:"instance"`
			} `json:"networkEndpoint"` // of a NEG
		} `json:"items"`
		NextPageToken string `json:"nextPageToken"`
	}
)

// api calls Compute Engine. Its client is built when it is first needed.
type api struct {
	sdk SDK

	mu     sync.Mutex
	client *http.Client
}

func (a *api) ready(ctx context.Context) (*http.Client, error) {
	a.mu.Lock()
	have := a.client
	a.mu.Unlock()
	if have != nil {
		return have, nil
	}
	client := a.sdk.Client
	if client == nil {
		// the client outlives this call, so it must not hang on its context
		var err error
		if client, err = google.DefaultClient(context.WithoutCancel(ctx), scope); err != nil {
			return nil, lbhooks.Unavailable(Name, "no credentials: run gcloud auth application-default login, set GOOGLE_APPLICATION_CREDENTIALS, or give this pod an identity", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client == nil {
		a.client = client
	}
	return a.client, nil
}

// call is one request: GET without a body, POST with one.
type call struct {
	path       string // below the endpoint
	query      url.Values
	body       any
	permission string // of IAM that it needs
}

// do makes a call and reads its answer.
func (a *api) do(ctx context.Context, c call, into any) error {
	client, err := a.ready(ctx)
	if err != nil {
		return err
	}
	if err := a.send(ctx, client, c, into); err != nil {
		return failed(c.permission, resourceOf(c.path), err)
	}
	return nil
}

func (a *api) send(ctx context.Context, client *http.Client, c call, into any) error {
	method, body := http.MethodGet, []byte(nil)
	if c.body != nil {
		raw, err := json.Marshal(c.body)
		if err != nil {
			return err
		}
		method, body = http.MethodPost, raw
	}
	base := a.sdk.Endpoint
	if base == "" {
		base = endpoint
	}
	req, err := http.NewRequestWithContext(ctx, method, base+c.path+"?"+c.query.Encode(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(req) //nolint:bodyclose // CloseBody does
	if err != nil {
		return err
	}
	defer googleapi.CloseBody(answer)
	if err := googleapi.CheckResponse(answer); err != nil {
		return err
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, answer.Body, maxBody)).Decode(into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

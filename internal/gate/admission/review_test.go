package admission

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNoReview: whatever is no review of an eviction is told so, and nothing else happens.
func TestNoReview(t *testing.T) {
	spoil := func(change func(*admissionv1.AdmissionReview)) []byte { return review("p", change) }
	for name, tc := range map[string]struct {
		body   []byte
		change func(*http.Request)
		want   int
	}{
		"nothing":             {nil, nil, 400},
		"garbage":             {[]byte("\x00\xff{"), nil, 400},
		"half of a review":    {review("p")[:40], nil, 400},
		"an array":            {[]byte("[]"), nil, 400},
		"too deep":            {bytes.Repeat([]byte(`{"request":`), 100_000), nil, 400},
		"more than is read":   {append([]byte(`{"apiVersion":"`), bytes.Repeat([]byte("x"), maxBody)...), nil, 413},
		"as much as is read":  {append(append([]byte(`{"apiVersion":"`), bytes.Repeat([]byte("x"), maxBody-17)...), `"}`...), nil, 400},
		"a GET":               {review("p"), func(r *http.Request) { r.Method = http.MethodGet }, 405},
		"no content type":     {review("p"), func(r *http.Request) { r.Header.Del("Content-Type") }, 415},
		"YAML":                {review("p"), func(r *http.Request) { r.Header.Set("Content-Type", "application/yaml") }, 415},
		"an older review":     {spoil(func(r *admissionv1.AdmissionReview) { r.APIVersion = "admission.k8s.io/v1beta1" }), nil, 400},
		"another kind":        {spoil(func(r *admissionv1.AdmissionReview) { r.Kind = "ConversionReview" }), nil, 400},
		"no request":          {spoil(func(r *admissionv1.AdmissionReview) { r.Request = nil }), nil, 400},
		"no UID":              {spoil(func(r *admissionv1.AdmissionReview) { r.Request.UID = "" }), nil, 400},
		"a deletion":          {spoil(func(r *admissionv1.AdmissionReview) { r.Request.Operation = admissionv1.Delete }), nil, 400},
		"another subresource": {spoil(func(r *admissionv1.AdmissionReview) { r.Request.SubResource = "binding" }), nil, 400},
		"another resource":    {spoil(func(r *admissionv1.AdmissionReview) { r.Request.Resource.Resource = "nodes" }), nil, 400},
		"another object": {spoil(func(r *admissionv1.AdmissionReview) {
			r.Request.Kind = metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}
		}), nil, 400},
		"an Eviction of v2": {spoil(func(r *admissionv1.AdmissionReview) { r.Request.Kind.Version = "v2" }), nil, 400},
		"no object":         {spoil(func(r *admissionv1.AdmissionReview) { r.Request.Object.Raw = nil }), nil, 400},
		"an object of text": {spoil(func(r *admissionv1.AdmissionReview) { r.Request.Object.Raw = []byte(`"x"`) }), nil, 400},
		"no pod":            {spoil(func(r *admissionv1.AdmissionReview) { r.Request.Name, r.Request.Object.Raw = "", []byte(`{}`) }), nil, 400},
		"no namespace":      {spoil(func(r *admissionv1.AdmissionReview) { r.Request.Namespace = "" }), nil, 400},
	} {
		t.Run(name, func(t *testing.T) {
			w := edge("s")
			code, r := post(w.evictions(Enforce).Handler(Serving{}), tc.body, func(req *http.Request) {
				if tc.change != nil {
					tc.change(req)
				}
			})
			if code != tc.want || r != nil {
				t.Errorf("status %d, want %d, response %+v", code, tc.want, r)
			}
			if w.reads != 0 || len(w.noted) != 0 {
				t.Errorf("%d reads, notes %v", w.reads, w.noted)
			}
		})
	}
}

// TestReviewsOfOthers: reviews that are unusual and right are answered.
func TestReviewsOfOthers(t *testing.T) {
	w := edge("s")
	unknown := bytes.Replace(review("k"), []byte(`{`), []byte(`{"new":{"a":[1]},`), 1)
	unknown = bytes.Replace(unknown, []byte(`"request":{`), []byte(`"request":{"new":true,`), 1)
	for name, body := range map[string][]byte{
		"fields of a newer API server": unknown,
		"policy/v1beta1":               review("k", func(r *admissionv1.AdmissionReview) { r.Request.Kind.Version = "v1beta1" }),
		"the name in the object alone": review("k", func(r *admissionv1.AdmissionReview) { r.Request.Name = "" }),
	} {
		code, r := post(w.evictions(Enforce).Handler(Serving{}), body)
		if code != http.StatusOK || r == nil || r.Allowed || !strings.Contains(r.Result.Message, "kept on n1") {
			t.Errorf("%s: status %d, %+v", name, code, r)
		}
	}
}

// FuzzReview: no body makes the gate fail, and what it allows it can name.
func FuzzReview(f *testing.F) {
	f.Add(review("p"))
	f.Add(review("k", func(r *admissionv1.AdmissionReview) { r.Request.DryRun = new(bool) }))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"}}`))
	h := edge("s").evictions(Enforce).Handler(Serving{})
	f.Fuzz(func(t *testing.T, body []byte) {
		code, r := post(h, body)
		if code == http.StatusOK && (r == nil || r.UID == "" || !r.Allowed && r.Result.Code != http.StatusTooManyRequests) || code >= 500 {
			t.Errorf("status %d, %+v", code, r)
		}
	})
}

package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// maxBody bounds a review: the API server takes objects of 3 MiB at most, and a review holds two of them.
const maxBody = 7 << 20

// badReview is a request that is no review which this path answers. The API server then goes by the failurePolicy.
type badReview struct {
	code int // HTTP status
	what string
}

func (e *badReview) Error() string { return e.what }

func bad(code int, format string, args ...any) error {
	return &badReview{code: code, what: fmt.Sprintf(format, args...)}
}

// decode reads an AdmissionReview. Fields that it does not know are left out: a newer API server may send some.
func decode(w http.ResponseWriter, req *http.Request) (*admissionv1.AdmissionRequest, error) {
	if req.Method != http.MethodPost {
		return nil, bad(http.StatusMethodNotAllowed, "method %s: reviews are posted", req.Method)
	}
	if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != runtime.ContentTypeJSON {
		return nil, bad(http.StatusUnsupportedMediaType, "content type %q: reviews are %s", req.Header.Get("Content-Type"), runtime.ContentTypeJSON)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, bad(http.StatusRequestEntityTooLarge, "more than %d MiB", maxBody>>20)
	case err != nil:
		return nil, bad(http.StatusBadRequest, "the body ends early: %v", err)
	}
	var review admissionv1.AdmissionReview
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &review); err != nil {
		return nil, bad(http.StatusBadRequest, "not JSON of an AdmissionReview: %v", err)
	}
	switch {
	case review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview":
		return nil, bad(http.StatusBadRequest, "%q of %q: reviews are AdmissionReview of %s", review.Kind, review.APIVersion, admissionv1.SchemeGroupVersion)
	case review.Request == nil || review.Request.UID == "":
		return nil, bad(http.StatusBadRequest, "an AdmissionReview without a request")
	}
	return review.Request, nil
}

// encode writes the response to a review.
func encode(w http.ResponseWriter, response *admissionv1.AdmissionResponse) error {
	review := admissionv1.AdmissionReview{Response: response}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	return json.NewEncoder(w).Encode(review)
}

// Package sweep sizes the tests that try random inputs against Kubernetes' own code: a part of them in every run of the
// tests, and as many as the claims of the documents rest on where [EnvFull] asks for it, as `make sweep` does.
package sweep

import (
	"os"
	"strconv"
	"testing"
)

const (
	// EnvFull is "1" where everything is to be tried, or how many times that.
	EnvFull = "SAFEDRAIN_TEST_SWEEP"
	// EnvSeed is the seed that a failure named, to try its inputs again.
	EnvSeed = "SAFEDRAIN_TEST_SEED"
)

// Size is the number of inputs to try.
func Size(t testing.TB, part, full int) int {
	t.Helper()
	if times := number(t, EnvFull); times != nil {
		return int(*times) * full
	}
	return part
}

// Seed is that of [EnvSeed], or else another: a random one where every run is to try other inputs.
func Seed(t testing.TB, otherwise uint64) uint64 {
	t.Helper()
	if seed := number(t, EnvSeed); seed != nil {
		return *seed
	}
	return otherwise
}

func number(t testing.TB, name string) *uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return &n
}

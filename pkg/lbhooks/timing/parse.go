package timing

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

const example = `write "interval=10s,unhealthy=3,timeout=5s"`

// Parse reads the annotation safedrain.dev/health-check: interval, a duration; unhealthy, the failures in a row after
// which the balancer takes the node out; timeout, a duration, the interval when it is left out.
func Parse(text string) (lbhooks.HealthCheck, error) {
	hc := lbhooks.HealthCheck{Source: "annotation " + lbhooks.AnnotationHealthCheck}
	seen := map[string]bool{}
	for _, part := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok {
			return lbhooks.HealthCheck{}, fmt.Errorf("%q is not key=value: %s", strings.TrimSpace(part), example)
		}
		if seen[key] {
			return lbhooks.HealthCheck{}, fmt.Errorf("%q is given twice: %s", key, example)
		}
		seen[key] = true
		if err := set(&hc, key, value); err != nil {
			return lbhooks.HealthCheck{}, err
		}
	}
	for _, key := range []string{"interval", "unhealthy"} {
		if !seen[key] {
			return lbhooks.HealthCheck{}, fmt.Errorf("%s is missing: %s", key, example)
		}
	}
	if !seen["timeout"] {
		hc.Timeout = hc.Interval
	}
	return hc, nil
}

func set(hc *lbhooks.HealthCheck, key, value string) error {
	switch key {
	case "interval", "timeout":
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 || d > time.Hour || (d == 0 && key == "interval") {
			return fmt.Errorf("%s %q is not a duration of at most an hour: %s", key, value, example)
		}
		if key == "interval" {
			hc.Interval = d
		} else {
			hc.Timeout = d
		}
	case "unhealthy":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > 1000 {
			return fmt.Errorf("unhealthy %q is not a number from 1 to 1000: %s", value, example)
		}
		hc.Unhealthy = n
	default:
		return fmt.Errorf("unknown key %q: %s", key, example)
	}
	return nil
}

// Package pressure tells how busy this machine is. Beyond a limit a time says more about the machine than about what was
// measured on it; whether a request was answered still counts.
package pressure

import (
	"fmt"
	"os"
)

// TooMuch is the share of time, in percent, in which something waits for a processor, above which times are not judged. The
// lab alone stays below it on two cores.
const TooMuch = 75

// CPU is how much of the last ten seconds something on this machine waited for a processor, in percent; 0 where the kernel
// does not tell.
func CPU() float64 {
	file, err := os.Open("/proc/pressure/cpu")
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }()
	var percent float64
	if _, err := fmt.Fscanf(file, "some avg10=%f", &percent); err != nil {
		return 0
	}
	return percent
}

// Busy reports whether times are not to be judged now.
func Busy() bool { return CPU() > TooMuch }

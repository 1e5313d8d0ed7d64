package experiments

import (
	"fmt"
	"os"
)

// tooMuch is the share of time, in percent, in which something waits for a processor, above which times say more about
// this machine than about a drain. The lab alone stays below it on two cores.
const tooMuch = 75

// pressure is how much of the last ten seconds something on this machine waited for a processor, in percent; 0 where the
// kernel does not tell.
func pressure() float64 {
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

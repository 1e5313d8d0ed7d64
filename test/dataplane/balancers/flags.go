package balancers

import (
	"encoding/json"
	"slices"
	"strings"
)

const (
	commandFlag = "--hook-option=exec.command="
	socketsVar  = "HAPROXY_SOCKETS="
)

// Flags are those of several ways in one command of safedrain, each once. The ways of several HAProxies become one hook
// that works all their sockets.
func Flags(ways ...Way) []string {
	var flags []string
	at := -1 // the place of the joined hook
	var command []string
	for _, way := range ways {
		for _, flag := range way.Flags {
			value, isCommand := strings.CutPrefix(flag, commandFlag)
			if !isCommand {
				if !slices.Contains(flags, flag) {
					flags = append(flags, flag)
				}
				continue
			}
			var argv []string
			if json.Unmarshal([]byte(value), &argv) != nil {
				argv = []string{value}
			}
			if at < 0 {
				at, command, flags = len(flags), argv, append(flags, "")
				continue
			}
			joinSockets(command, argv)
		}
	}
	if at >= 0 {
		joined, err := json.Marshal(command)
		if err != nil {
			joined = nil // strings are always written
		}
		flags[at] = commandFlag + string(joined)
	}
	return flags
}

// joinSockets adds the sockets of one command to another.
func joinSockets(command, more []string) {
	is := func(arg string) bool { return strings.HasPrefix(arg, socketsVar) }
	i, j := slices.IndexFunc(command, is), slices.IndexFunc(more, is)
	if i < 0 || j < 0 {
		return
	}
	have := strings.Fields(strings.TrimPrefix(command[i], socketsVar))
	for _, socket := range strings.Fields(strings.TrimPrefix(more[j], socketsVar)) {
		if !slices.Contains(have, socket) {
			have = append(have, socket)
		}
	}
	command[i] = socketsVar + strings.Join(have, " ")
}

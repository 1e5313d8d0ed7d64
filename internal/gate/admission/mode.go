package admission

// Mode is what the gate does about what would make a blackhole.
type Mode string

// The modes, from the strictest on.
const (
	Enforce Mode = "enforce" // refuses it
	Warn    Mode = "warn"    // lets it pass, and says so
	Off     Mode = "off"     // does not judge it
)

var strictness = map[Mode]int{Enforce: 2, Warn: 1, Off: 0}

// known reports whether a word is a mode.
func (m Mode) known() bool { _, ok := strictness[m]; return ok }

// stricter reports whether m is stricter than o.
func (m Mode) stricter(o Mode) bool { return strictness[m] > strictness[o] }

// ModeOf is the mode for one Service: what its annotation safedrain.dev/gate says, else that of its namespace, else the
// cluster's. A word that is no mode says nothing, so that a mistyped one neither opens nor closes the gate.
func ModeOf(cluster Mode, namespace, service string) Mode {
	for _, m := range []Mode{Mode(service), Mode(namespace)} {
		if m.known() {
			return m
		}
	}
	return cluster
}

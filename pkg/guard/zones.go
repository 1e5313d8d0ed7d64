package guard

import (
	"fmt"
	"slices"
	"strings"
)

// zones warns when the loss takes the last backend of a zone away from a balancer whose backends are in more than one:
// some balancers keep a group a zone, drop a group that is empty without letting its connections end, and send a zone's
// clients to that zone alone. Announcers know no zones, and of a balancer that nobody knows nothing is said.
func (j *judgement) zones() {
	if r := &j.svc.Rotation; r.Hook == "" || r.ZoneBlind {
		return
	}
	before, after := j.backendsByZone()
	if len(before) < 2 {
		return
	}
	var lost, nodes []string
	for _, zone := range sortedKeys(before) {
		if after[zone] == 0 {
			lost, nodes = append(lost, zone), append(nodes, before[zone]...)
		}
	}
	if len(lost) == 0 || len(lost) == len(before) { // with no zone left there is nothing left at all: LastEndpoint says so
		return
	}
	slices.Sort(nodes)
	j.add(Finding{
		Code: ZoneLosesLastBackend, Severity: Warn, Nodes: nodes,
		Message: fmt.Sprintf("the last backend in zone %s goes: a balancer that balances within zones loses the Service there, and may cut its connections",
			strings.Join(lost, ", ")),
		Advice: "add a replica in that zone first, or balance across zones",
	})
}

// backendsByZone groups by zone the nodes that serve and that the balancer sends to or could: those of the loss that
// lose a port, and for each zone the number that stay. Nodes without a zone count for none.
func (j *judgement) backendsByZone() (before map[string][]string, after map[string]int) {
	before, after = map[string][]string{}, map[string]int{}
	for _, name := range j.cover.Nodes() {
		n, ok := j.ix.Node(name)
		if !ok || n.Zone == "" || !j.eligible(name) {
			continue
		}
		lost := slices.Contains(j.lost, name)
		switch {
		case lost && before[n.Zone] == nil:
			before[n.Zone] = []string{name}
		case lost:
			before[n.Zone] = append(before[n.Zone], name)
		case before[n.Zone] == nil:
			before[n.Zone] = []string{}
		}
		if !lost && j.stays(name) {
			after[n.Zone]++
		}
	}
	return before, after
}

package aws_test

import (
	"encoding/xml"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// wanted reads the targets of a call.
func wanted(form url.Values) []target {
	var out []target
	for i := 1; ; i++ {
		prefix := fmt.Sprintf("Targets.member.%d.", i)
		if !form.Has(prefix + "Id") {
			return out
		}
		port, _ := strconv.Atoi(form.Get(prefix + "Port"))
		out = append(out, target{id: form.Get(prefix + "Id"), port: port, zone: form.Get(prefix + "AvailabilityZone"), quic: form.Get(prefix + "QuicServerId")})
	}
}

func (c *cloud) deregister(form url.Values, _ string) (any, *answer) {
	g := c.group(form.Get("TargetGroupArn"))
	if g == nil {
		return nil, noGroup
	}
	for _, w := range wanted(form) {
		for _, t := range g.targets {
			if t.id == w.id && t.port == w.port {
				t.state, t.reason, t.gone = "draining", "Target.DeregistrationInProgress", time.Now().Add(g.delay)
			}
		}
	}
	return nil, nil
}

func (c *cloud) register(form url.Values, _ string) (any, *answer) {
	g := c.group(form.Get("TargetGroupArn"))
	if g == nil {
		return nil, noGroup
	}
	for _, w := range wanted(form) {
		g.targets = slices.DeleteFunc(g.targets, func(t *target) bool { return t.id == w.id && t.port == w.port && t.state == "draining" })
		if !slices.ContainsFunc(g.targets, func(t *target) bool { return t.id == w.id && t.port == w.port }) {
			w.state = "healthy"
			g.targets = append(g.targets, &w)
		}
	}
	return nil, nil
}

type xmlInstance struct {
	InstanceID  string `xml:"InstanceId"`
	State       string
	ReasonCode  string
	Description string
}

type xmlInstances struct {
	XMLName xml.Name      `xml:"InstanceStates"`
	Member  []xmlInstance `xml:"member"`
}

func (c *cloud) describeInstances(form url.Values, _ string) (any, *answer) {
	all, ok := c.classic[form.Get("LoadBalancerName")]
	if !ok {
		return nil, &answer{status: 400, code: "LoadBalancerNotFound", message: "There is no ACTIVE Load Balancer named '" + form.Get("LoadBalancerName") + "'"}
	}
	var out xmlInstances
	for _, i := range all {
		out.Member = append(out.Member, xmlInstance{i.id, i.state, "N/A", i.text})
	}
	return out, nil
}

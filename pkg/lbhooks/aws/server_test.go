package aws_test

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// tg is a target group of the cloud.
type tg struct {
	arn, name, protocol, kind string
	balancers                 []string
	tags                      map[string]string
	targets                   []*target
	delay                     time.Duration // deregistration delay
}

// target is one registered target. Past its deadline it is gone.
type target struct {
	id, zone, state, reason, quic string
	port                          int
	gone                          time.Time // zero: stays
}

// instance is an instance of a Classic Load Balancer.
type instance struct{ id, state, text string }

// answer is what the cloud says instead of the truth: an error of the protocol, or a call that hangs.
type answer struct {
	status        int
	code, message string
	hang          bool
}

// cloud is Elastic Load Balancing with state, behind both of its query protocols: versions 2015-12-01 and 2012-06-01.
type cloud struct {
	mu      sync.Mutex
	groups  []*tg
	classic map[string][]instance
	page    int                 // groups in a page
	faults  map[string][]answer // by action, "" for all: one answer after the other
	forever *answer
	calls   []string            // "ACTION region"
	after   func(action string) // called after an action took effect, under the lock
}

func newCloud() *cloud {
	return &cloud{classic: map[string][]instance{}, page: 400, faults: map[string][]answer{}}
}

func arnOf(region, name string) string {
	return "arn:aws:elasticloadbalancing:" + region + ":123456789012:targetgroup/" + name + "/" + fmt.Sprintf("%016x", len(name)*7919)
}

func balancerARN(region, name, id string) string {
	return "arn:aws:elasticloadbalancing:" + region + ":123456789012:loadbalancer/net/" + name + "/" + id
}

// whole sends each request with a body of its own. The SDK closes the body as soon as it has an answer; where the connection
// still looks whether the body has ended, that ends the connection, and the call is made twice.
type whole struct{ http.RoundTripper }

func (w whole) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	return w.RoundTripper.RoundTrip(r)
}

// TestMain hides the caller's own settings of AWS: the SDK would take a certificate bundle, and refuse our client for it.
func TestMain(m *testing.M) {
	for _, setting := range os.Environ() {
		if name, _, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "AWS_") {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// options point the SDK at a server that speaks for the cloud, with keys that are there and retries that do not wait.
func options(endpoint string) []func(*config.LoadOptions) error {
	return []func(*config.LoadOptions) error{
		config.WithBaseEndpoint(endpoint), config.WithRegion("eu-west-1"),
		config.WithHTTPClient(&http.Client{Transport: whole{http.DefaultTransport}}),
		config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", "secret", "")),
		config.WithRetryer(func() awssdk.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) {
				o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return time.Millisecond, nil })
			})
		}),
	}
}

func (c *cloud) serve(t *testing.T) []func(*config.LoadOptions) error {
	t.Helper()
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	return options(server.URL)
}

func (c *cloud) fail(action string, answers ...answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[action] = append(c.faults[action], answers...)
}

func (c *cloud) always(a *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forever = a
}

// count returns how often an action was called.
func (c *cloud) count(action string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, call := range c.calls {
		if strings.HasPrefix(call, action+" ") {
			n++
		}
	}
	return n
}

func (c *cloud) fault(action string) *answer {
	if c.forever != nil {
		return c.forever
	}
	for _, key := range []string{action, ""} {
		if queue := c.faults[key]; len(queue) > 0 {
			c.faults[key] = queue[1:]
			return &queue[0]
		}
	}
	return nil
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil || r.Method != http.MethodPost {
		http.Error(w, "not a query", http.StatusBadRequest)
		return
	}
	action, region := r.Form.Get("Action"), signedRegion(r)
	c.mu.Lock()
	c.calls = append(c.calls, action+" "+region)
	fault := c.fault(action)
	c.mu.Unlock()
	switch {
	case fault != nil && fault.hang:
		<-r.Context().Done()
		return
	case fault != nil:
		fail(w, fault.status, fault.code, fault.message)
		return
	case region == "":
		fail(w, http.StatusForbidden, "MissingAuthenticationToken", "Request is missing Authentication Token")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	act := map[string]func(url.Values, string) (any, *answer){
		"2015-12-01 DescribeTargetGroups":   c.describeGroups,
		"2015-12-01 DescribeTags":           c.describeTags,
		"2015-12-01 DescribeTargetHealth":   c.describeHealth,
		"2015-12-01 DeregisterTargets":      c.deregister,
		"2015-12-01 RegisterTargets":        c.register,
		"2012-06-01 DescribeInstanceHealth": c.describeInstances,
	}[r.Form.Get("Version")+" "+action]
	if act == nil {
		fail(w, http.StatusBadRequest, "InvalidAction", "no such action: "+r.Form.Get("Version")+" "+action)
		return
	}
	result, wrong := act(r.Form, region)
	if wrong != nil {
		fail(w, wrong.status, wrong.code, wrong.message)
		return
	}
	if c.after != nil {
		c.after(action)
	}
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(w, `<%[1]sResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/%s/"><%[1]sResult>`, action, r.Form.Get("Version"))
	if result != nil {
		_ = xml.NewEncoder(w).Encode(result)
	}
	fmt.Fprintf(w, `</%[1]sResult><ResponseMetadata><RequestId>0f8f</RequestId></ResponseMetadata></%[1]sResponse>`, action)
}

// signedRegion is the region in the scope of the request's signature.
func signedRegion(r *http.Request) string {
	_, scope, ok := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	parts := strings.Split(scope, "/")
	if !ok || len(parts) < 5 || parts[3] != "elasticloadbalancing" {
		return ""
	}
	return parts[2]
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<ErrorResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><Error><Type>Sender</Type><Code>%s</Code><Message>`, code)
	_ = xml.EscapeText(w, []byte(message))
	fmt.Fprint(w, `</Message></Error><RequestId>0f8f</RequestId></ErrorResponse>`)
}

// list reads a list of the query protocol: NAME.member.1, NAME.member.2.
func list(form url.Values, name string) []string {
	var out []string
	for i := 1; form.Has(fmt.Sprintf("%s.member.%d", name, i)); i++ {
		out = append(out, form.Get(fmt.Sprintf("%s.member.%d", name, i)))
	}
	return out
}

func (c *cloud) group(arn string) *tg {
	for _, g := range c.groups {
		if g.arn == arn {
			return g
		}
	}
	return nil
}

var noGroup = &answer{status: 400, code: "TargetGroupNotFound", message: "One or more target groups not found"}

type members[T any] struct {
	Member []T `xml:"member"`
}

type xmlGroup struct {
	TargetGroupArn, TargetGroupName, Protocol, TargetType string
	LoadBalancerArns                                      members[string]
}

type xmlGroups struct {
	XMLName xml.Name   `xml:"TargetGroups"`
	Member  []xmlGroup `xml:"member"`
}

type xmlGroupsPage struct {
	Groups     xmlGroups
	NextMarker string `xml:",omitempty"`
}

func (p xmlGroupsPage) MarshalXML(e *xml.Encoder, _ xml.StartElement) error {
	if err := e.Encode(p.Groups); err != nil || p.NextMarker == "" {
		return err
	}
	return e.EncodeElement(p.NextMarker, xml.StartElement{Name: xml.Name{Local: "NextMarker"}})
}

func (c *cloud) describeGroups(form url.Values, region string) (any, *answer) {
	var in []*tg
	for _, g := range c.groups {
		if strings.Contains(g.arn, ":"+region+":") {
			in = append(in, g)
		}
	}
	var page xmlGroupsPage
	if arns := list(form, "TargetGroupArns"); len(arns) > 0 {
		for _, arn := range arns {
			i := slices.IndexFunc(in, func(g *tg) bool { return g.arn == arn })
			if i < 0 {
				return nil, noGroup
			}
			page.Groups.Member = append(page.Groups.Member, xmlOf(in[i]))
		}
		return page, nil
	}
	from, _ := strconv.Atoi(form.Get("Marker"))
	to := min(from+c.page, len(in))
	for _, g := range in[from:to] {
		page.Groups.Member = append(page.Groups.Member, xmlOf(g))
	}
	if to < len(in) {
		page.NextMarker = strconv.Itoa(to)
	}
	return page, nil
}

func xmlOf(g *tg) xmlGroup {
	return xmlGroup{g.arn, g.name, g.protocol, g.kind, members[string]{g.balancers}}
}

type xmlTag struct{ Key, Value string }

type xmlTags struct {
	ResourceArn string
	Tags        members[xmlTag]
}

type xmlTagList struct {
	XMLName xml.Name  `xml:"TagDescriptions"`
	Member  []xmlTags `xml:"member"`
}

func (c *cloud) describeTags(form url.Values, _ string) (any, *answer) {
	arns := list(form, "ResourceArns")
	if len(arns) > 20 {
		return nil, &answer{status: 400, code: "ValidationError", message: "at most 20"}
	}
	var out xmlTagList
	for _, arn := range arns {
		g := c.group(arn)
		if g == nil {
			return nil, noGroup
		}
		d := xmlTags{ResourceArn: arn}
		for k, v := range g.tags {
			d.Tags.Member = append(d.Tags.Member, xmlTag{k, v})
		}
		out.Member = append(out.Member, d)
	}
	return out, nil
}

type xmlTarget struct {
	ID               string `xml:"Id"`
	Port             int
	AvailabilityZone string `xml:",omitempty"`
	QuicServerID     string `xml:"QuicServerId,omitempty"`
}

type xmlState struct {
	State  string
	Reason string `xml:",omitempty"`
}

type xmlHealth struct {
	Target       xmlTarget
	TargetHealth xmlState
}

type xmlHealthList struct {
	XMLName xml.Name    `xml:"TargetHealthDescriptions"`
	Member  []xmlHealth `xml:"member"`
}

func (c *cloud) describeHealth(form url.Values, _ string) (any, *answer) {
	g := c.group(form.Get("TargetGroupArn"))
	if g == nil {
		return nil, noGroup
	}
	g.targets = slices.DeleteFunc(g.targets, func(t *target) bool { return !t.gone.IsZero() && !time.Now().Before(t.gone) })
	var out xmlHealthList
	for _, t := range g.targets {
		out.Member = append(out.Member, xmlHealth{xmlTarget{t.id, t.port, t.zone, t.quic}, xmlState{t.state, t.reason}})
	}
	return out, nil
}

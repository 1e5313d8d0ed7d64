package aws_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/pkg/lbhooks/aws"
)

// Which errors of AWS end a wait, and what they name.
func TestErrors(t *testing.T) {
	const denied = "User: arn:aws:iam::123456789012:user/x is not authorized to perform: elasticloadbalancing:DescribeTargetHealth because no identity-based policy allows it"
	for name, test := range map[string]struct {
		answers   []answer
		permanent bool
		says      string // in the error, "" for none
		calls     int    // of DescribeTargetHealth
	}{
		"denied":                   {answers: []answer{{status: 403, code: "AccessDenied", message: denied}}, permanent: true, says: "not allowed elasticloadbalancing:DescribeTargetHealth on *", calls: 1},
		"expired":                  {answers: []answer{{status: 403, code: "ExpiredToken", message: "expired"}}, permanent: true, says: "the credentials expired: log in again", calls: 1},
		"no such key":              {answers: []answer{{status: 403, code: "InvalidClientTokenId", message: "invalid"}}, permanent: true, says: "no such access key", calls: 1},
		"wrong secret":             {answers: []answer{{status: 403, code: "SignatureDoesNotMatch", message: "calculated"}}, permanent: true, says: "the secret is wrong", calls: 1},
		"throttled, then fine":     {answers: []answer{{status: 400, code: "Throttling", message: "Rate exceeded"}, {status: 503, code: "ServiceUnavailable"}}, calls: 3},
		"throttled for long":       {answers: repeated(answer{status: 400, code: "ThrottlingException", message: "Rate exceeded"}, 3), says: "ThrottlingException: Rate exceeded", calls: 3},
		"down for long":            {answers: repeated(answer{status: 503, code: "ServiceUnavailable", message: "down"}, 3), says: "ServiceUnavailable", calls: 3},
		"internal, then fine":      {answers: []answer{{status: 500, code: "InternalFailure", message: "oops"}}, calls: 2},
		"not there":                {answers: []answer{{status: 400, code: "TargetGroupNotFound", message: "gone"}}, says: "TargetGroupNotFound", calls: 1},
		"an error nobody knows of": {answers: []answer{{status: 400, code: "NewError", message: "two\nlines"}}, says: "NewError: two lines", calls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloud()
			cloud.groups = []*tg{nlb("g", onNode("healthy"), other("healthy"))}
			cloud.fail("DescribeTargetHealth", test.answers...)
			hook, _ := newHook(t, cloud.serve(t), nil)
			_, err := hook.Prove(t.Context(), lbhooks.Target{Service: service(class(nlbClass), hosted(nlbHost)), Node: node("n1")})
			if test.says == "" {
				if err != nil {
					t.Error(err)
				}
			} else if err == nil || errors.Is(err, lbhooks.ErrUnavailable) != test.permanent || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v; want permanent %t, %q", err, test.permanent, test.says)
			}
			if got := cloud.count("DescribeTargetHealth"); got != test.calls {
				t.Errorf("%d calls, want %d", got, test.calls)
			}
		})
	}
}

func repeated(a answer, n int) []answer { return slices.Repeat([]answer{a}, n) }

// Each call names its own action when it is denied.
func TestForbidden(t *testing.T) {
	for action, svc := range map[string]*corev1.Service{
		"DescribeTargetGroups":   service(class(nlbClass), hosted(nlbHost)),
		"DescribeTags":           service(class(nlbClass)),
		"DescribeTargetHealth":   service(class(nlbClass), hosted(nlbHost)),
		"DescribeInstanceHealth": service(hosted(clbHost)),
		"DeregisterTargets":      byHand(),
		"RegisterTargets":        byHand(),
	} {
		t.Run(action, func(t *testing.T) {
			cloud := newCloud()
			cloud.groups = []*tg{nlb("g", onNode("healthy"), other("healthy"))}
			cloud.fail(action, answer{status: 403, code: "AccessDenied", message: "no"})
			hook, _ := newHook(t, cloud.serve(t), map[string]string{"deregister": "true"})
			at := lbhooks.Target{Service: svc, Node: node("n1")}
			err := hook.Withdraw(t.Context(), at)
			if err == nil {
				_, err = hook.Prove(t.Context(), at)
			}
			if err == nil {
				err = hook.Restore(t.Context(), at)
			}
			var denied *aws.Forbidden
			if !errors.As(err, &denied) || !errors.Is(err, lbhooks.ErrUnavailable) || denied.Action != "elasticloadbalancing:"+action {
				t.Fatalf("%v, want it to name %s", err, action)
			}
			if want := map[bool]string{true: cloud.groups[0].arn, false: "*"}[strings.HasSuffix(action, "registerTargets") || action == "RegisterTargets" || action == "DeregisterTargets"]; denied.Resource != want {
				t.Errorf("resource %q, want %q", denied.Resource, want)
			}
		})
	}
}

// The published policies grant what the hook calls, and no more: reads, and with the option deregister writes too.
func TestPolicy(t *testing.T) {
	reads := map[string][]string{"SafedrainProve on *": aws.ReadActions()}
	both := maps.Clone(reads)
	both["SafedrainDeregister on arn:aws:elasticloadbalancing:*:*:targetgroup/*/*"] = aws.WriteActions()
	for file, want := range map[string]map[string][]string{"aws.json": reads, "aws-deregister.json": both} {
		if diff := cmp.Diff(want, statements(t, file)); diff != "" {
			t.Errorf("%s: -want +got\n%s", file, diff)
		}
	}
}

// statements are the actions of a published policy, by the name of their statement and its resource.
func statements(t *testing.T, file string) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "iam", file))
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Statement []struct {
			Sid, Effect string
			Action      []string
			Resource    string
		}
	}
	if err := json.Unmarshal(raw, &policy); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, s := range policy.Statement {
		if s.Effect != "Allow" {
			t.Errorf("%s: effect %q", s.Sid, s.Effect)
		}
		got[s.Sid+" on "+s.Resource] = s.Action
	}
	return got
}

// Without credentials or a region nothing is tried for long, and the error says what to do.
func TestNoCredentials(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
		"AWS_WEB_IDENTITY_TOKEN_FILE": "", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "",
	} {
		t.Setenv(name, value)
	}
	at := lbhooks.Target{Service: service(class(nlbClass)), Node: node("n1", func(n *corev1.Node) { n.Spec.ProviderID = "aws:///i-n1" })}
	hook, _ := newHook(t, nil, nil)
	if _, err := hook.Prove(t.Context(), at); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "no credentials") {
		t.Errorf("%v, want: no credentials", err)
	}
	missing := hook.Check(t.Context(), []lbhooks.Target{at, at})
	if len(missing) != 1 || missing[0].Optional || missing[0].Forbidden || !strings.Contains(missing[0].What, "no credentials") {
		t.Errorf("%+v", missing)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "x")
	hook, _ = newHook(t, nil, nil)
	if _, err := hook.Prove(t.Context(), at); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "no region: set AWS_REGION") {
		t.Errorf("%v, want: no region", err)
	}
	hook, _ = newHook(t, []func(*config.LoadOptions) error{config.WithSharedConfigProfile("nobody")}, nil)
	if _, err := hook.Prove(t.Context(), at); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("%v, want: no such profile", err)
	}
}

// A node that is no instance of EC2 cannot be a target, and nobody claims to have proven anything of it.
func TestNoInstance(t *testing.T) {
	cloud := newCloud()
	hook, _ := newHook(t, cloud.serve(t), nil)
	bare := node("n1", func(n *corev1.Node) { n.Spec.ProviderID, n.Status.Addresses = "eks-hybrid:///x/y/mi-1", nil })
	for _, svc := range []*corev1.Service{service(class(nlbClass), hosted(nlbHost)), service(hosted(clbHost))} {
		if _, err := hook.Prove(t.Context(), lbhooks.Target{Service: svc, Node: bare}); !errors.Is(err, lbhooks.ErrUnavailable) || !strings.Contains(err.Error(), "providerID") {
			t.Errorf("%v, want ErrUnavailable", err)
		}
	}
}

// Check reads what a proof reads, names each denied action once, and is content otherwise.
func TestCheck(t *testing.T) {
	cloud := newCloud()
	cloud.groups = []*tg{nlb("g", onNode("healthy"), other("healthy"))}
	hook, _ := newHook(t, cloud.serve(t), nil)
	var all []lbhooks.Target
	for range 40 {
		all = append(all, lbhooks.Target{Service: service(class(nlbClass), hosted(nlbHost)), Node: node("n1")})
	}
	if missing := hook.Check(t.Context(), all); len(missing) > 0 {
		t.Errorf("%+v", missing)
	}
	if n := cloud.count("DescribeTargetHealth"); n != 5 {
		t.Errorf("%d of 40 were looked at, want 5", n)
	}
	cloud.always(&answer{status: 403, code: "AccessDenied", message: "no"})
	want := []lbhooks.Missing{{What: "not allowed elasticloadbalancing:DescribeTargetHealth on *", Why: "safedrain hooks aws --iam prints the least policy", Forbidden: true}}
	if diff := cmp.Diff(want, hook.Check(t.Context(), all)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

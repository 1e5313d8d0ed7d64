package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/pkg/guard"
)

// cause is the label of a block of reasons. The order of causes is the order of blocks.
type cause string

const (
	causeUnsafe   cause = "UNSAFE"
	causeBudget   cause = "BUDGET"
	causeUnproven cause = "UNPROVEN"
	causeHook     cause = "HOOK"
	causeAsked    cause = "ASKED"
	causeFlag     cause = "FLAG"
	causeWarn     cause = "WARN"
)

var causes = []cause{causeUnsafe, causeBudget, causeUnproven, causeHook, causeAsked, causeFlag, causeWarn}

// reason is a finding with its subject.
type reason struct {
	guard.Finding
	subject string // namespace/name of the Service, budget or pod, or the nodes
	service *guard.ServicePlan
}

// elsewhere names the nodes of a finding about a Service that are not those of its plan's changes.
func (r *reason) elsewhere() string {
	if r.service == nil || r.Code != guard.ExistingBlackhole && r.Code != guard.NotAdvertised {
		return ""
	}
	return " on " + andMore(r.Nodes)
}

// blocks reports whether the reason alone makes a plan refused.
func (r *reason) blocks() bool {
	return r.Severity.AtLeast(guard.SeverityUnproven) && !r.Accepted
}

func (r *reason) cause() cause {
	if !r.blocks() {
		return causeWarn
	}
	switch r.Code {
	case guard.BudgetNever, guard.BudgetMultiple, guard.BudgetBroken:
		return causeBudget
	case guard.RotationUnproven:
		return causeUnproven
	case guard.HookUnavailable:
		return causeHook
	case guard.UnmanagedPod, guard.LocalStorage, guard.DaemonSetPod:
		return causeFlag
	case guard.DoNotEvict:
		return causeAsked
	}
	if r.Severity == guard.SeverityUnproven {
		return causeUnproven
	}
	return causeUnsafe
}

// reasons lists the findings of a plan that block it or warn, with their subjects.
func reasons(p *guard.DrainPlan) []reason {
	var out []reason
	for i := range p.Services {
		s := &p.Services[i]
		for _, f := range s.Findings {
			out = append(out, reason{f, s.Key().String(), s})
		}
	}
	for i := range p.Withdraw {
		for _, f := range p.Withdraw[i].Findings {
			out = append(out, reason{f, p.Withdraw[i].Key().String(), nil})
		}
	}
	for _, f := range p.Findings {
		out = append(out, reason{f, cmp.Or(f.Budget, f.Pod, strings.Join(slashed(ranges(f.Nodes)), ", ")), nil})
	}
	return slices.DeleteFunc(out, func(r reason) bool { return !r.Severity.AtLeast(guard.Warn) || r.Accepted })
}

// group is reasons of one cause that need the same words.
type group struct {
	cause   cause
	code    guard.Code
	reasons []reason
}

// most is the number of reasons of one code that are printed one by one; more of them are one line.
const most = 3

// grouped sorts reasons by cause and puts those together that one line can say.
func grouped(rs []reason) []group {
	var out []group
	for _, c := range causes {
		byCode := map[guard.Code][]reason{}
		for _, r := range rs {
			if r.cause() == c {
				byCode[r.Code] = append(byCode[r.Code], r)
			}
		}
		codes := make([]guard.Code, 0, len(byCode))
		for code := range byCode {
			codes = append(codes, code)
		}
		slices.Sort(codes)
		for _, code := range codes {
			out = append(out, split(c, code, byCode[code])...)
		}
	}
	return out
}

// split keeps few reasons apart and many together; reasons for a missing flag are always one.
func split(c cause, code guard.Code, rs []reason) []group {
	if c == causeFlag || len(rs) > most {
		return []group{{c, code, rs}}
	}
	var out []group
	for _, r := range rs {
		out = append(out, group{c, code, []reason{r}})
	}
	return out
}

// headline says in a few words what stands against a plan, gravest first.
func headline(rs []reason) string {
	n := map[cause]int{}
	flags := map[string]bool{}
	var unsafe []reason
	for i := range rs {
		r := &rs[i]
		c := r.cause()
		switch c {
		case causeUnsafe:
			unsafe = append(unsafe, *r)
		case causeFlag:
			flags[r.Accept] = true
		}
		n[c]++
	}
	var parts []string
	if len(unsafe) > 0 {
		parts = append(parts, unsafeWords(unsafe))
	}
	say := func(c cause, one, many string) {
		if n[c] == 1 {
			parts = append(parts, "1 "+one)
		} else if n[c] > 1 {
			parts = append(parts, fmt.Sprintf("%d %s", n[c], many))
		}
	}
	say(causeBudget, "budget never allows it", "budgets never allow it")
	say(causeUnproven, "Service unproven", "Services unproven")
	say(causeHook, "hook cannot work", "Services whose hook cannot work")
	say(causeAsked, "pod asks to be left alone", "pods ask to be left alone")
	if len(flags) > 0 {
		parts = append(parts, count(len(flags), "flag")+" missing")
	}
	return strings.Join(parts, ", ")
}

// unsafeWords names what waiting cannot help.
func unsafeWords(rs []reason) string {
	subjects := map[string]bool{}
	for _, r := range rs {
		subjects[r.subject] = true
	}
	if len(subjects) > 1 {
		return fmt.Sprintf("%d Services unsafe", len(subjects))
	}
	switch r := rs[0]; r.Code {
	case guard.LastEndpoint:
		return r.subject + " would have no endpoint left"
	case guard.NoEligibleNode:
		return r.subject + " would have no endpoint where its balancer sends"
	case guard.HookConflict:
		return r.subject + " is claimed by two hooks"
	case guard.UnsupportedBalancer:
		return r.subject + " is behind a balancer that cannot do this"
	default:
		return r.subject + " " + r.Message
	}
}

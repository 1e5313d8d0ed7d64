package hookset

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/safedrain/safedrain/pkg/lbhooks"
)

// rule is a checked rule of the configuration.
type rule struct {
	namespaces, names []string // globs; empty: all
	selector          labels.Selector
	class             string
	reason            string // "config rule 1"

	hook    string
	settle  *time.Duration
	timeout time.Duration
}

// rule checks one rule.
func (s *Settings) rule(c *configRule) (rule, error) {
	r := rule{namespaces: c.Namespaces, names: c.Names, class: c.LoadBalancerClass, hook: c.Hook, selector: labels.Everything()}
	var err error
	if c.Selector != "" {
		if r.selector, err = labels.Parse(c.Selector); err != nil {
			return rule{}, fmt.Errorf("selector %q is not a label selector: write app=web", c.Selector)
		}
	}
	for _, glob := range slices.Concat(r.namespaces, r.names) {
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			return rule{}, fmt.Errorf("%q is not a name or a glob of names", glob)
		}
	}
	if c.Hook != "" && !s.known(c.Hook) {
		return rule{}, fmt.Errorf("hook %q: %s", c.Hook, s.unknown())
	}
	if c.Settle != "" {
		d, err := duration("settle", c.Settle)
		if err != nil {
			return rule{}, err
		}
		r.settle = &d
	}
	if c.Timeout != "" {
		if r.timeout, err = duration("timeout", c.Timeout); err != nil {
			return rule{}, err
		}
		if r.timeout == 0 {
			return rule{}, errors.New("timeout must be longer than 0s")
		}
	}
	if r.hook == "" && r.settle == nil && r.timeout == 0 {
		return rule{}, errors.New("it says nothing: give a hook, settle or timeout")
	}
	return r, nil
}

func duration(field, value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s %q is not a duration: write 60s", field, value)
	}
	return d, nil
}

// selects reports whether a rule is about a Service.
func (r *rule) selects(svc *corev1.Service) bool {
	class := ""
	if svc.Spec.LoadBalancerClass != nil {
		class = *svc.Spec.LoadBalancerClass
	}
	return oneOf(r.namespaces, svc.Namespace) && oneOf(r.names, svc.Name) &&
		(r.class == "" || r.class == class) && r.selector.Matches(labels.Set(svc.Labels))
}

func oneOf(globs []string, name string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(glob string) bool {
		ok, err := path.Match(glob, name)
		return err == nil && ok
	})
}

// ruleOf returns the first rule that is about a Service; nil when none is.
func (s *Settings) ruleOf(svc *corev1.Service) *rule {
	for i := range s.rules {
		if s.rules[i].selects(svc) {
			return &s.rules[i]
		}
	}
	return nil
}

// times puts what a rule says of times into a rotation, where the Service's own annotation does not.
func (r *rule) times(rot *lbhooks.Rotation) {
	if r == nil {
		return
	}
	if rot.Settle == nil && r.settle != nil {
		rot.Settle, rot.SettleBy = r.settle, r.reason
	}
	if r.timeout > 0 {
		rot.Timeout = r.timeout
	}
}

package hookset_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/lbhooks/hooktest"
)

// The example of the page is a configuration, and does what the page says.
func TestDocumentedConfig(t *testing.T) {
	const page = "../../docs/hooks/config.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(text))
	if block == nil {
		t.Fatalf("no example in %s", page)
	}
	s, err := hookset.ReadSettings(hookset.Flags{Config: configFile(t, block[1])})
	if err != nil {
		t.Fatal(err)
	}
	set := hookset.New(hookset.Deps{Settings: s})
	for namespace, want := range map[string]string{"shop": "partner", "shop-eu": "partner", "test": "", "other": "edge"} {
		svc := &corev1.Service{}
		svc.Namespace, svc.Name, svc.Spec.Type = namespace, "web", corev1.ServiceTypeNodePort
		if namespace == "other" {
			svc.Labels = map[string]string{"tier": "edge"}
		}
		if r := set.Match(svc, &hooktest.Objects{}); r.Hook != want {
			t.Errorf("%s: hook %q, want %q", namespace, r.Hook, want)
		}
	}
}

// Every hook has a page, which docs/hooks.md names, and every page of a balancer says the same things in the same order.
func TestDocumentedBalancers(t *testing.T) {
	index, err := os.ReadFile("../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(`\[([a-z0-9, -]+)\]\(hooks/([a-z-]+\.md)\)`).FindAllStringSubmatch(string(index), -1)
	pages := map[string]string{}
	for _, link := range links {
		for _, name := range strings.Split(link[1], ", ") {
			pages[name] = link[2]
		}
	}
	sections := []string{"What a drain does today", "What safedrain does", "What it proves", "Permissions", "Timings and limits", "Example"}
	for _, name := range hookset.New(hookset.Deps{}).Names() {
		page, ok := pages[name]
		if !ok {
			t.Errorf("docs/hooks.md has no page for %s", name)
			continue
		}
		text, err := os.ReadFile("../../docs/hooks/" + page)
		if err != nil {
			t.Fatal(err)
		}
		want := sections
		if name == "exec" || name == "http" { // protocols, not balancers
			want = []string{"Permissions", "Limits"}
		}
		rest := string(text)
		for _, section := range want {
			_, after, found := strings.Cut(rest, "\n## "+section+"\n")
			if !found {
				t.Errorf("docs/hooks/%s has no section %q, or not in its place", page, section)
			}
			rest = after
		}
	}
}

// Every option of a hook is on its page.
func TestDocumentedHooks(t *testing.T) {
	for name, page := range map[string]string{
		"aws": "aws", "azure": "azure", "exec": "exec", "gcp": "gcp", "http": "http", "kube-vip": "kube-vip", "metallb-l2": "metallb",
	} {
		text, err := os.ReadFile("../../docs/hooks/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		_, err = hookset.ReadSettings(hookset.Flags{Options: []string{name + ".?=x"}})
		_, known, ok := strings.Cut(err.Error(), "known: ")
		if !ok {
			t.Fatal(err)
		}
		for _, option := range strings.Split(known, ", ") {
			if !strings.Contains(string(text), "`"+option+"`") {
				t.Errorf("docs/hooks/%s.md lacks the option %s", page, option)
			}
		}
	}
}

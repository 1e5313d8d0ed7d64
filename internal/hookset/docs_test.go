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

// Every option of exec and http is on its page.
func TestDocumentedHooks(t *testing.T) {
	for _, name := range []string{"exec", "http"} {
		text, err := os.ReadFile("../../docs/hooks/" + name + ".md")
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
				t.Errorf("docs/hooks/%s.md lacks the option %s", name, option)
			}
		}
	}
}

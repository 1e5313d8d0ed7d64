package cli

import (
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/safedrain/safedrain/pkg/guard"
	"github.com/safedrain/safedrain/pkg/guard/mend"
)

// component is a kustomize Component: patches to put into git.
type component struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Patches    []componentPatch `json:"patches"`
}

type componentPatch struct {
	Patch  string      `json:"patch"`
	Target patchTarget `json:"target"`
}

type patchTarget struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// printFixes prints what mends the findings of an audit: kubectl's commands, or with -o json|yaml a kustomize Component.
func (r *auditRun) printFixes(report *guard.CoverageReport) error {
	fixes := mend.Of(report.Hazards)
	out := r.app.streams.Out
	switch r.output {
	case formatJSON:
		for i := range fixes.Without {
			r.app.warn(withoutText(&fixes.Without[i]))
		}
		c, err := componentOf(&fixes)
		if err != nil {
			return err
		}
		return writeDocument(out, r.output, c, nil)
	case formatYAML:
		c, err := componentOf(&fixes)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(escaping{out}, fixComments(&fixes)); err != nil {
			return err
		}
		return writeDocument(out, r.output, c, nil)
	}
	text, err := fixCommands(&fixes)
	if err != nil {
		return err
	}
	_, err = io.WriteString(escaping{out}, text)
	return err
}

// fixCommands are commands that apply the patches, for a POSIX shell; what is not mended is a comment.
func fixCommands(f *mend.Fixes) (string, error) {
	var b strings.Builder
	for i := range f.Patches {
		p := &f.Patches[i]
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(patchComment(p))
		if p.First != nil {
			if err := writeCommand(&b, &p.Target, p.First); err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "kubectl -n %s rollout status %s/%s\n", p.Target.Namespace, strings.ToLower(p.Target.Kind), p.Target.Name)
		}
		if err := writeCommand(&b, &p.Target, p.Body); err != nil {
			return "", err
		}
	}
	for i := range f.Without {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("# " + withoutText(&f.Without[i]) + "\n")
	}
	if b.Len() == 0 {
		return "# nothing to mend by a patch\n", nil
	}
	return b.String(), nil
}

func writeCommand(b *strings.Builder, t *mend.Target, patch map[string]any) error {
	text, err := yaml.Marshal(patch)
	if err != nil {
		return fmt.Errorf("write a patch of %s %s: %w", strings.ToLower(t.Kind), t.Key, err)
	}
	fmt.Fprintf(b, "kubectl -n %s patch %s %s --patch-file=/dev/stdin <<'EOF'\n%sEOF\n", t.Namespace, strings.ToLower(t.Kind), t.Name, text)
	return nil
}

// patchComment says what a patch is for.
func patchComment(p *mend.Patch) string {
	codes := make([]string, len(p.Mends))
	for i, c := range p.Mends {
		codes[i] = string(c)
	}
	services := make([]string, len(p.For))
	for i, k := range p.For {
		services[i] = k.String()
	}
	noun := "Service "
	if len(services) > 1 {
		noun = "Services "
	}
	text := fmt.Sprintf("# %s %s: %s; %s%s\n", strings.ToLower(p.Target.Kind), p.Target.Key, strings.Join(codes, ", "), noun, strings.Join(services, ", "))
	for _, n := range p.Notes {
		text += "#   " + n + "\n"
	}
	return text
}

func withoutText(w *mend.Without) string {
	codes := make([]string, len(w.Codes))
	for i, c := range w.Codes {
		codes[i] = string(c)
	}
	return fmt.Sprintf("no safe patch for %s %s, %s: %s", strings.ToLower(w.Target.Kind), w.Target.Key, strings.Join(codes, ", "), w.Why)
}

// fixComments stand before a Component in YAML.
func fixComments(f *mend.Fixes) string {
	var b strings.Builder
	for i := range f.Patches {
		p := &f.Patches[i]
		b.WriteString(patchComment(p))
		if p.First != nil {
			b.WriteString("#   not at once: the rollout of this patch alone would not end; `audit --fix` prints the commands of the two steps\n")
		}
	}
	for i := range f.Without {
		b.WriteString("# " + withoutText(&f.Without[i]) + "\n")
	}
	return b.String()
}

// componentOf writes each patch as the part of the object that it changes.
func componentOf(f *mend.Fixes) (*component, error) {
	c := &component{APIVersion: "kustomize.config.k8s.io/v1alpha1", Kind: "Component", Patches: []componentPatch{}}
	for i := range f.Patches {
		t := &f.Patches[i].Target
		object := map[string]any{
			"apiVersion": strings.TrimPrefix(t.Group+"/"+t.Version, "/"), "kind": t.Kind,
			"metadata": map[string]any{"namespace": t.Namespace, "name": t.Name},
		}
		for k, v := range f.Patches[i].Body {
			object[k] = v
		}
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("write a patch of %s %s: %w", strings.ToLower(t.Kind), t.Key, err)
		}
		c.Patches = append(c.Patches, componentPatch{string(text), patchTarget{t.Group, t.Version, t.Kind, t.Namespace, t.Name}})
	}
	return c, nil
}

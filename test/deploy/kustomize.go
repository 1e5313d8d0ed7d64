package deploy

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Kustomize renders a directory as `kubectl kustomize` does.
func Kustomize(dir string) ([]byte, error) { return build(filesys.MakeFsOnDisk(), dir) }

func build(files filesys.FileSystem, dir string) ([]byte, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified // the files say it
	objects, err := krusty.MakeKustomizer(options).Run(files, dir)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", dir, err)
	}
	return objects.AsYaml()
}

// Composition is an install as a user writes it: an overlay and the components that are added to it.
type Composition struct {
	Overlay    string
	Components []string
}

// Kustomization is the file that the user writes.
func (c Composition) Kustomization() string {
	var b strings.Builder
	b.WriteString("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
	fmt.Fprintf(&b, "resources:\n- ../overlays/%s\n", c.Overlay)
	if len(c.Components) > 0 {
		b.WriteString("components:\n")
	}
	for _, name := range c.Components {
		fmt.Fprintf(&b, "- ../components/%s\n", name)
	}
	b.WriteString("sortOptions: {order: legacy}\n") // the webhooks last
	return b.String()
}

// Render renders the composition of what lies below dir, deploy/kustomize.
func (c Composition) Render(dir string) ([]byte, error) {
	const root, user = "/kustomize", "/kustomize/user"
	files := filesys.MakeFsInMemory()
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return files.WriteFile(path.Join(root, filepath.ToSlash(name)), content)
	})
	if err == nil {
		err = files.WriteFile(path.Join(user, "kustomization.yaml"), []byte(c.Kustomization()))
	}
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", dir, err)
	}
	return build(files, user)
}

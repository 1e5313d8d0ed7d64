package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Environment variables that say where the programs are.
const (
	// EnvBin names a directory of ready programs; nothing is built then.
	EnvBin = "SAFEDRAIN_TEST_BIN"
	// EnvCache names the directory in which built programs are kept instead of the user's cache directory.
	EnvCache = "SAFEDRAIN_TEST_CACHE"
	// EnvKeep, when not empty, keeps the working directory of a cluster after it ended.
	EnvKeep = "SAFEDRAIN_TEST_KEEP"
)

// The programs of the control plane, by the names that they have everywhere.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"

	multiCall = "controlplane"
	kubectl   = "kubectl"
)

// Programs knows the executables of the control plane.
type Programs struct {
	dir string
}

// Binaries finds the programs of the control plane and kubectl, and builds them when they are not there. They come from,
// in this order: the directory named by SAFEDRAIN_TEST_BIN, with the programs under their own names or the multi-call
// program `controlplane`; the cache, keyed by the pinned versions; a build, which takes about 15 minutes on two cores.
func Binaries(ctx context.Context) (*Programs, error) {
	if dir := os.Getenv(EnvBin); dir != "" {
		p := &Programs{dir: dir}
		for _, name := range []string{Etcd, APIServer, ControllerManager, Scheduler, Kwok} {
			if _, _, err := p.command(name); err != nil {
				return nil, fmt.Errorf("%s: %w", EnvBin, err)
			}
		}
		return p, nil
	}
	dir, err := build(ctx)
	if err != nil {
		return nil, fmt.Errorf("build the control plane: %w", err)
	}
	return &Programs{dir: dir}, nil
}

// Dir is the directory in which the programs are.
func (p *Programs) Dir() string { return p.dir }

// Kubectl is the path of a kubectl of the same version as the control plane.
func (p *Programs) Kubectl() (string, error) {
	path := filepath.Join(p.dir, kubectl)
	if !executable(path) {
		return "", fmt.Errorf("no executable %q in %q", kubectl, p.dir)
	}
	return path, nil
}

// command returns what to execute for a program: its own file, or the multi-call program with its name as the first argument.
func (p *Programs) command(name string) (path string, args []string, err error) {
	if path := filepath.Join(p.dir, name); executable(path) {
		return path, nil, nil
	}
	if path := filepath.Join(p.dir, multiCall); executable(path) {
		return path, []string{name}, nil
	}
	return "", nil, fmt.Errorf("neither %q nor %q is an executable in %q", name, multiCall, p.dir)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

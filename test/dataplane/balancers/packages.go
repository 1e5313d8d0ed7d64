package balancers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/safedrain/safedrain/test/dataplane"
)

// frrDir is where Debian puts the daemons of FRR.
const frrDir = "/usr/lib/frr"

// packages are the Debian packages that a balancer needs beside those of the lab, by a program of each.
var packages = map[string]map[string]string{
	HAProxyHealthCheck: haproxyPackages,
	HAProxyTCP:         haproxyPackages,
	NodePort:           haproxyPackages,
	MetalLBL2:          {"arping": "arping"},
	MetalLBBGP:         {filepath.Join(frrDir, "bgpd"): "frr", filepath.Join(frrDir, "zebra"): "frr"},
}

// The worked example of a hook, which works HAProxy here, talks to its socket with socat.
var haproxyPackages = map[string]string{"haproxy": "haproxy", "socat": "socat"}

// ErrMissing is what [Requirements] returns when programs are missing. Its text names the packages.
var ErrMissing = errors.New("programs of the balancers are missing")

// Requirements says what balancers lack on this machine, with the command that installs it; nil when nothing.
func Requirements(names ...string) error {
	if err := dataplane.Requirements(); err != nil {
		return err
	}
	var missing, install []string
	for _, name := range names {
		for program, pkg := range packages[name] {
			if !found(program) {
				missing, install = append(missing, filepath.Base(program)), append(install, pkg)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	slices.Sort(install)
	return fmt.Errorf("%w: %s; install them with `RUNLEVEL=1 apt-get install %s`, so that none starts by itself, or `make dataplane-packages`",
		ErrMissing, strings.Join(slices.Compact(missing), ", "), strings.Join(slices.Compact(install), " "))
}

// found looks for a program by its path, or by its name where root finds programs.
func found(program string) bool {
	if filepath.IsAbs(program) {
		info, err := os.Stat(program)
		return err == nil && info.Mode()&0o111 != 0
	}
	if _, err := exec.LookPath(program); err == nil {
		return true
	}
	_, err := exec.LookPath(filepath.Join("/usr/sbin", program)) // Debian keeps it out of some users' PATH
	return err == nil
}

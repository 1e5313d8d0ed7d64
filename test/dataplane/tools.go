package dataplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

// tools are the programs that a lab runs, and the Debian package of each.
var tools = map[string]string{
	"ip": "iproute2", "nft": "nftables", "iptables": "iptables", "ip6tables": "iptables", "conntrack": "conntrack", "nsenter": "util-linux",
}

// errNotRoot is returned by everything that needs root. Tests skip on it.
var errNotRoot = errors.New("the data plane lab makes network namespaces and needs root: run it as root")

// EnvForm asks for the tests that need a lab, and for the experiments: "short" or "full". They take minutes and root, so
// nothing else runs them.
const EnvForm = "DATAPLANE"

// ForTests says why tests do not start a lab here, or returns nil.
func ForTests() error {
	if os.Getenv(EnvForm) == "" {
		return errors.New("tests on the data plane take minutes and root: `make dataplane` runs them")
	}
	return Requirements()
}

// Requirements says what is missing on this machine for a lab, or returns nil.
func Requirements() error {
	if runtime.GOOS != "linux" {
		return errors.New("the data plane lab is made of network namespaces, which only Linux has")
	}
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	var missing, packages []string
	for tool, pkg := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing, packages = append(missing, tool), append(packages, pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	slices.Sort(packages)
	return fmt.Errorf("the data plane lab needs %s: install the Debian packages %s",
		strings.Join(missing, ", "), strings.Join(slices.Compact(packages), " "))
}

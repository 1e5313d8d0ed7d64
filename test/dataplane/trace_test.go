package dataplane_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
)

// envOwner makes the test binary a process that owns a lab of that name until it is killed.
const envOwner = "SAFEDRAIN_TEST_LAB_OWNER"

// own starts a lab and waits to be killed.
func own(name string) int {
	lab, err := dataplane.Up(context.Background(), dataplane.Options{Name: name, Nodes: 1})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, lab.Dir)
	select {}
}

// traces lists what is left of a lab on this machine: namespaces, interfaces, processes, files; sorted.
func traces(t *testing.T, lab, dir, bridge string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/run/netns/sdlab-" + lab + "-*", "/run/safedrain-dataplane/" + lab + ".json", dir} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, files...)
	}
	links, err := filepath.Glob("/sys/class/net/" + bridge + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if name := filepath.Base(link); name == bridge || strings.HasPrefix(name, bridge+".") {
			found = append(found, name)
		}
	}
	found = append(found, processes(t, dir)...)
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "sdlab-"+lab+"-") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	slices.Sort(found)
	return found
}

// processes lists those whose command line or working directory names the directory of a lab.
func processes(t *testing.T, dir string) []string {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // ended meanwhile
		}
		cwd, _ := os.Readlink(filepath.Join(filepath.Dir(file), "cwd")) // unreadable when it has just ended
		if bytes.Contains(line, []byte(dir)) || strings.HasPrefix(cwd, dir) {
			found = append(found, fmt.Sprintf("%s: %q in %q", filepath.Dir(file), line, cwd))
		}
	}
	return found
}

// settings are those of the machine that labs change while they are up.
func settings(t *testing.T) map[string]string {
	t.Helper()
	values := map[string]string{}
	for _, path := range []string{"/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"} {
		value, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		values[path] = strings.TrimSpace(string(value))
	}
	for _, path := range []string{"/run/netns", "/run/safedrain-dataplane"} {
		_, err := os.Stat(path)
		values[path] = fmt.Sprint(err == nil)
	}
	return values
}

// bridge is the name of a lab's bridge.
func bridge(lab *dataplane.Lab) string { return fmt.Sprintf("sdlab%d", lab.Gateway().As4()[1]-64) }

// TestSideBySide shows that two labs do not meet, and that nothing is left of them when they are down.
func TestSideBySide(t *testing.T) {
	if err := dataplane.ForTests(); err != nil {
		t.Skip(err)
	}
	_, err := os.Stat("/run/safedrain-dataplane")
	alone := err != nil // no other process has a lab just now
	before := settings(t)
	var places []*place
	var gone []func() []string
	t.Run("up", func(t *testing.T) {
		for _, mode := range []string{dataplane.NFTables, dataplane.IPTables} {
			p := up(t, dataplane.Options{Nodes: 2, ProxyMode: mode})
			places = append(places, p)
			name, dir, br := p.lab.Name, p.lab.Dir, bridge(p.lab)
			gone = append(gone, func() []string { return traces(t, name, dir, br) })
			if len(traces(t, name, dir, br)) < 10 {
				t.Error("a lab that is up leaves few traces: this test does not see them")
			}
		}
		for i, p := range places {
			e := p.lab.Env(t)
			svc, err := p.lab.Service(t.Context(), e.Namespace, "web")
			if err != nil {
				t.Fatal(err)
			}
			pod := e.Pod("web", "node-1")
			if answer := p.served(t, nodePort(p.lab.Nodes[0].Addr, svc)); answer.Pod != pod.Name || answer.Namespace != e.Namespace {
				t.Errorf("lab %d answers with %+v", i, answer)
			}
		}
		if places[0].lab.Gateway() == places[1].lab.Gateway() {
			t.Errorf("both labs are on %s", places[0].lab.Gateway())
		}
	})
	for _, left := range gone {
		if found := left(); len(found) > 0 {
			t.Errorf("left behind: %s", strings.Join(found, "\n"))
		}
	}
	if _, err := os.Stat("/run/safedrain-dataplane"); alone && err != nil {
		if diff := cmp.Diff(before, settings(t)); diff != "" {
			t.Errorf("settings changed: %s", diff)
		}
	}
}

// TestKilled shows that a lab's processes die with the process that started it, however that ends, and that Sweep removes
// the rest.
func TestKilled(t *testing.T) {
	if err := dataplane.ForTests(); err != nil {
		t.Skip(err)
	}
	name := fmt.Sprintf("kill%d", os.Getpid()%10000)
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), envOwner+"="+name)
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	dir, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(errors.Join(err, owner.Wait()))
	}
	dir = strings.TrimSpace(dir)
	if n := len(processes(t, dir)); n < 6 {
		t.Errorf("%d processes of the lab run, want a control plane, a kube-proxy and an agent", n)
	}
	if err := dataplane.Sweep(t.Context(), name); err == nil {
		t.Error("a lab was swept away while its process runs")
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed
	err = controlplane.Poll(t.Context(), patience, "the lab's processes ended", func(context.Context) (bool, string, error) {
		left := processes(t, dir)
		return len(left) == 0, strings.Join(left, "\n"), nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := dataplane.Sweep(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if found := traces(t, name, dir, "none"); len(found) > 0 {
		t.Errorf("left behind: %s", strings.Join(found, "\n"))
	}
	if err := dataplane.Sweep(t.Context(), name); err == nil {
		t.Error("a lab that is not there was swept away")
	}
}

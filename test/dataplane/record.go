package dataplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
)

// registry is where the labs of this machine are recorded, one file each, so that they take different addresses and what
// a killed process left behind can be found.
const registry = "/run/safedrain-dataplane"

// record is what is known of a lab outside its process.
type record struct {
	Name      string    `json:"name"`
	Number    int       `json:"number"`
	Dir       string    `json:"dir"`
	Owner     process   `json:"owner"`
	Lasting   bool      `json:"lasting"`
	Processes []process `json:"processes"` // those outside the lab's network namespaces
}

func (r *record) file() string { return filepath.Join(registry, r.Name+".json") }

func (r *record) plan() plan { return plan{name: r.Name, number: r.Number} }

func (r *record) write() error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	partial := r.file() + ".partial"
	if err := os.WriteFile(partial, data, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, r.file())
}

// records returns every recorded lab, sorted by name.
func records() ([]*record, error) {
	files, err := filepath.Glob(filepath.Join(registry, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []*record
	for _, file := range files { // Glob sorts
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		r := &record{}
		if err := json.Unmarshal(data, r); err != nil {
			return nil, fmt.Errorf("read %q: %w", file, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// Locks of the registry.
const (
	changing = "changing" // the records and what the labs share
	sweeping = "sweeping" // ending labs of other processes
)

// locked runs f while no other process holds that lock.
func locked(ctx context.Context, name string, f func() error) error {
	var lock *os.File
	err := controlplane.Poll(ctx, 60*time.Second, "lock "+name+" in "+registry, func(context.Context) (held bool, state string, err error) {
		lock, held, err = tryLock(filepath.Join(registry, name))
		return held, "another process holds it", err
	})
	if err != nil {
		return err
	}
	return errors.Join(f(), lock.Close())
}

// tryLock takes a lock if nobody holds it.
func tryLock(path string) (lock *os.File, held bool, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, false, err
	}
	lock, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, err
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, false, lock.Close()
	}
	if err != nil {
		return nil, false, errors.Join(err, lock.Close())
	}
	// The last lab removes the registry: what was locked may be a file that is no longer there.
	mine, err := lock.Stat()
	if err != nil {
		return nil, false, errors.Join(err, lock.Close())
	}
	if now, err := os.Stat(path); err != nil || !os.SameFile(mine, now) {
		return nil, false, lock.Close() // it is tried again
	}
	return lock, true, nil
}

// register gives a new lab its number and writes it down, and prepares what the labs share if it is the first.
func register(ctx context.Context, r *record) error {
	return locked(ctx, changing, func() error {
		all, err := records()
		if err != nil {
			return err
		}
		for _, other := range all {
			if other.Name == r.Name {
				return fmt.Errorf("a lab named %q is there already: end it with Sweep or `down -name %s`", r.Name, r.Name)
			}
		}
		if r.Number, err = freeNumber(all); err != nil {
			return err
		}
		if len(all) == 0 {
			if err := prepareShared(); err != nil {
				return err
			}
		}
		return r.write()
	})
}

// unregister forgets a lab, and puts back what the labs share if it was the last.
func unregister(ctx context.Context, r *record) error {
	return locked(ctx, changing, func() error {
		if err := os.Remove(r.file()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		all, err := records()
		if err != nil || len(all) > 0 {
			return err
		}
		return restoreShared(ctx)
	})
}

// freeNumber returns the lowest number that no lab has and whose addresses this machine does not use otherwise.
func freeNumber(all []*record) (int, error) {
	used, err := localPrefixes()
	if err != nil {
		return 0, err
	}
	for n := range maxLabs {
		whole := plan{number: n}.whole()
		taken := slices.ContainsFunc(all, func(r *record) bool { return r.Number == n }) ||
			slices.ContainsFunc(used, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Overlaps(whole) })
		if !taken {
			return n, nil
		}
	}
	return 0, fmt.Errorf("no address range is left between %s and %s: %d labs are up", plan{}.whole(), plan{number: maxLabs - 1}.whole(), len(all))
}

// localPrefixes are the IPv4 ranges of this machine's interfaces.
func localPrefixes() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var prefixes []netip.Prefix
	for _, addr := range addrs {
		if p, err := netip.ParsePrefix(addr.String()); err == nil && p.Addr().Is4() {
			prefixes = append(prefixes, p.Masked())
		}
	}
	return prefixes, nil
}

// shared is what labs have in common on a machine, as it was before the first of them.
type shared struct {
	BridgeFilter map[string]string `json:"bridgeFilter"` // by the path of the setting
	NetnsDir     bool              `json:"netnsDir"`     // the directory of named network namespaces was there
	NetnsMount   bool              `json:"netnsMount"`   // and it was a mount point
}

var bridgeFilters = []string{"/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"}

const netnsDir = "/run/netns"

// prepareShared keeps the machine's packet filter away from bridges and writes down what was there before.
func prepareShared() error {
	file := filepath.Join(registry, "before")
	if _, err := os.Stat(file); err == nil {
		return quietBridges() // the last lab's process died while it was putting things back
	}
	s := shared{BridgeFilter: map[string]string{}, NetnsMount: mounted(netnsDir)}
	if _, err := os.Stat(netnsDir); err == nil {
		s.NetnsDir = true
	}
	for _, path := range bridgeFilters {
		value, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // bridges are not filtered at all
		}
		if err != nil {
			return err
		}
		s.BridgeFilter[path] = strings.TrimSpace(string(value))
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(file, data, 0o600), quietBridges())
}

func quietBridges() error {
	for _, path := range bridgeFilters {
		if err := os.WriteFile(path, []byte("0"), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// restoreShared puts back what prepareShared changed and removes the registry.
func restoreShared(ctx context.Context) error {
	data, err := os.ReadFile(filepath.Join(registry, "before"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var s shared
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	for path, value := range s.BridgeFilter {
		if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
			return err
		}
	}
	if left, err := os.ReadDir(netnsDir); err == nil && len(left) == 0 {
		if !s.NetnsMount {
			unmount(ctx, netnsDir)
		}
		if !s.NetnsDir {
			_ = os.Remove(netnsDir) // somebody may have made a namespace meanwhile
		}
	}
	return os.RemoveAll(registry)
}

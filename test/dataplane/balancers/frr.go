package balancers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"text/template"

	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/spawn"
)

// Router is a host with FRR that speaks BGP with every node of the lab and forwards over all of its next hops.
type Router struct {
	Host *dataplane.Host

	dir     string
	spawner *spawn.Spawner
	daemons []*daemon
}

var bgpdConfig = template.Must(template.New("bgpd.conf").Parse(`router bgp {{.AS}}
 bgp router-id {{.ID}}
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
{{- range .Nodes}}
 neighbor {{.Addr}} remote-as {{$.ClusterAS}}
 neighbor {{.Addr}} passive
{{- end}}
 address-family ipv4 unicast
  maximum-paths 64
{{- range .Nodes}}
  neighbor {{.Addr}} activate
{{- end}}
 exit-address-family
`))

// StartRouter makes a host with FRR that takes sessions from every node of the lab. It forwards by a hash of addresses and
// ports.
func StartRouter(ctx context.Context, lab *dataplane.Lab) (*Router, error) {
	r := &Router{dir: filepath.Join(lab.Dir, "router")}
	if err := r.makeDir(); err != nil {
		return nil, err
	}
	host, err := lab.AddHost(ctx, "router")
	if err != nil {
		return nil, err
	}
	r.Host = host
	err = dataplane.Sysctl(host.Netns, map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv4/fib_multipath_hash_policy": "1",
		// Clients that are beside the router are not to learn a node's address from it.
		"net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/eth0/send_redirects": "0",
	})
	if err != nil {
		return nil, err
	}
	var config bytes.Buffer
	err = bgpdConfig.Execute(&config, map[string]any{"AS": routerAS, "ClusterAS": clusterAS, "ID": host.Addr, "Nodes": lab.Nodes})
	if err != nil {
		return nil, err
	}
	r.spawner = spawn.New(false)
	zebra := r.file("zebra.sock")
	for _, d := range []struct{ name, config string }{{"zebra", ""}, {"bgpd", config.String()}} {
		file := r.file(d.name + ".conf")
		if err := os.WriteFile(file, []byte(d.config), 0o644); err != nil {
			return nil, err
		}
		process, err := start(r.spawner, host, r.dir, filepath.Join(frrDir, d.name), "-u", "frr", "-g", "frr", "-f", file,
			"-i", r.file(d.name+".pid"), "-z", zebra, "--vty_socket", r.dir, "-P", "0", "--log", "stdout", "--log-level", "informational")
		if err != nil {
			return nil, errors.Join(err, r.Stop(ctx))
		}
		r.daemons = append(r.daemons, process)
		if err := r.waitSocket(ctx, d.name, process); err != nil {
			return nil, errors.Join(err, r.Stop(ctx))
		}
	}
	return r, nil
}

// makeDir makes the directory of FRR's sockets and files, which it wants to own: it gives up root.
func (r *Router) makeDir() error {
	owner, err := user.Lookup("frr")
	if err != nil {
		return fmt.Errorf("FRR is not installed: %w", err)
	}
	uid, uidErr := strconv.Atoi(owner.Uid)
	gid, gidErr := strconv.Atoi(owner.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(r.dir, 0o755), os.Chown(r.dir, uid, gid))
}

// waitSocket waits until a daemon listens for its terminal: then it has read its configuration.
func (r *Router) waitSocket(ctx context.Context, name string, d *daemon) error {
	return controlplane.Poll(ctx, startTimeout, "FRR's "+name, func(context.Context) (bool, string, error) {
		if err := d.ended(); err != nil {
			return false, "", err
		}
		_, err := os.Stat(r.file(name + ".vty"))
		return err == nil, "", err
	})
}

func (r *Router) file(name string) string { return filepath.Join(r.dir, name) }

// NextHops are the addresses to which the router's kernel forwards to a destination, sorted.
func (r *Router) NextHops(ctx context.Context, destination netip.Addr) ([]netip.Addr, error) {
	out, err := r.Host.Run(ctx, "ip", "-json", "route", "show", "to", "match", destination.String(), "table", "main")
	if err != nil {
		return nil, err
	}
	return parseRoutes(out, destination)
}

// parseRoutes reads what `ip -json route` shows, with one gateway or with several next hops.
func parseRoutes(text string, destination netip.Addr) ([]netip.Addr, error) {
	type hop struct {
		Gateway netip.Addr `json:"gateway"`
	}
	var routes []struct {
		hop

		Dst      string `json:"dst"`
		NextHops []hop  `json:"nexthops"`
	}
	if err := json.Unmarshal([]byte(text), &routes); err != nil {
		return nil, fmt.Errorf("routes of the router: %w", err)
	}
	var addrs []netip.Addr
	for _, route := range routes {
		if route.Dst != destination.String() {
			continue
		}
		for _, h := range append(route.NextHops, route.hop) {
			if h.Gateway.IsValid() {
				addrs = append(addrs, h.Gateway)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs, nil
}

// Show runs a command of FRR's terminal, such as "show bgp summary".
func (r *Router) Show(ctx context.Context, command string) (string, error) {
	return r.Host.Run(ctx, program("vtysh"), "--vty_socket", r.dir, "-c", command)
}

// Logs are the last lines of what FRR's daemons wrote.
func (r *Router) Logs() string {
	text := ""
	for _, d := range r.daemons {
		text += fmt.Sprintf("--- last lines of %s\n%s\n", d.log, controlplane.Tail(d.log))
	}
	return text
}

// Stop ends FRR.
func (r *Router) Stop(ctx context.Context) error {
	var errs []error
	for _, d := range r.daemons {
		errs = append(errs, d.stop(ctx))
	}
	r.spawner.Close()
	return errors.Join(errs...)
}

package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/version"
)

// Version is set by the linker for a release; else the version of the module is used.
var Version string

// clientVersion is what a binary knows of itself.
type clientVersion struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// versions is the document of the command version.
type versions struct {
	Client clientVersion `json:"clientVersion"`
	Server *version.Info `json:"serverVersion,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	var output format
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of the cluster",
		Args:  atMost(0),
		RunE: func(*cobra.Command, []string) error {
			return a.printVersion(output, clientOnly)
		},
	}
	cmd.Flags().VarP(&output, "output", "o", "Output format: json, yaml, wide or name.")
	cmd.Flags().BoolVar(&clientOnly, "client", false, "Print the version of this program only, and ask no cluster.")
	return cmd
}

func (a *app) printVersion(output format, clientOnly bool) error {
	v := versions{Client: ownVersion()}
	var failed error
	if !clientOnly {
		v.Server, failed = a.serverVersion()
	}
	out := a.streams.Out
	if output.document() {
		if err := writeDocument(out, output, &v, []string{v.Client.Version}); err != nil {
			return err
		}
		return failed
	}
	fmt.Fprintf(out, "Client Version: %s\n", v.Client.Version)
	if output == formatWide {
		fmt.Fprintf(out, "Commit: %s\nGo Version: %s\nPlatform: %s\n", v.Client.Commit, v.Client.GoVersion, v.Client.Platform)
	}
	if v.Server != nil {
		fmt.Fprintf(out, "Server Version: %s\n", oneLine(v.Server.GitVersion))
	}
	return failed
}

func (a *app) serverVersion() (*version.Info, error) {
	c, err := a.kube.clients()
	if err != nil {
		return nil, err
	}
	info, err := c.Kubernetes.Discovery().ServerVersion()
	if err != nil {
		return nil, &connectError{a.kube, err}
	}
	return info, nil
}

func ownVersion() clientVersion {
	v := clientVersion{Version: Version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	if v.Version == "" && ok {
		v.Version = info.Main.Version
	}
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "v0.0.0-dev"
	}
	return v
}

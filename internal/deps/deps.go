// Package deps keeps modules in go.mod while the tree is being built up.
package deps

import (
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/term"
	_ "k8s.io/cli-runtime/pkg/genericclioptions"
	_ "k8s.io/client-go/dynamic/fake"
	_ "k8s.io/client-go/kubernetes/fake"
	_ "k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	_ "k8s.io/klog/v2"
	_ "k8s.io/kubectl/pkg/cmd/util"
	_ "k8s.io/kubectl/pkg/drain"
	_ "k8s.io/kubectl/pkg/util/completion"
	_ "k8s.io/utils/clock/testing"
	_ "pgregory.net/rapid"
	_ "sigs.k8s.io/yaml"
)

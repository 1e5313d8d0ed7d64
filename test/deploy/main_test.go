package deploy_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/safedrain/safedrain/test/controlplane"
)

const (
	deployDir    = "../../deploy"
	kustomizeDir = deployDir + "/kustomize"
	chartDir     = deployDir + "/chart"

	ownNamespace = "safedrain-system"
)

// cluster limits critical pods to namespaces with a quota, as GKE does, and knows the kinds of cert-manager and of the
// operator of Prometheus.
var cluster *controlplane.Cluster

// criticalByQuota is the configuration of admission that GKE has.
const criticalByQuota = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - scopeName: PriorityClass
        operator: In
        values: [system-cluster-critical, system-node-critical]
`

// auditLog is where the API server says what the gate asked of it.
var auditLog string

// auditGate is the policy of that log.
const auditGate = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["` + serviceAccount + `"]
- level: None
`

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	flag.Parse()
	dir, err := os.MkdirTemp("", "safedrain-deploy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	admission, audit := filepath.Join(dir, "admission.yaml"), filepath.Join(dir, "audit.yaml")
	auditLog = filepath.Join(dir, "audit.log")
	err = errors.Join(os.WriteFile(admission, []byte(criticalByQuota), 0o600), os.WriteFile(audit, []byte(auditGate), 0o600))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var setup error
	options := controlplane.Options{APIServerFlags: []string{
		"--admission-control-config-file=" + admission, "--audit-policy-file=" + audit, "--audit-log-path=" + auditLog,
	}}
	code := controlplane.Main(m, options, func(c *controlplane.Cluster) {
		cluster = c
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		setup = installCRDs(ctx, c)
	})
	if setup != nil {
		fmt.Fprintln(os.Stderr, setup)
		return max(code, 1)
	}
	return code
}

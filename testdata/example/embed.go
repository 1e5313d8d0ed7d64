// Package example carries the example of the README into the binary: one Service in three states, each as a dump of a
// cluster (cluster.yaml, as kubectl get -o yaml writes it) with the manifests that make it (manifests.yaml).
package example

import "embed"

// Files holds before, after and metallb.
//
//go:embed before after metallb
var Files embed.FS

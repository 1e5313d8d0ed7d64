// Package iam is the least rights that hooks need outside the cluster, as the files beside it: the program prints them and
// the documentation links to them.
package iam

import "embed"

// Files are the policies and roles, by their names.
//
//go:embed *.json *.yaml
var Files embed.FS

// Package probetest runs `safedrain audit --probe` where the truth is known: on nodes with the real kube-proxy, in both of
// its modes and both families, from a client, from a node and from a pod. It needs root.
package probetest

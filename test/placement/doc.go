// Package placement compares pkg/guard/placement with kube-scheduler: in process, filter by filter, on random clusters,
// and with the scheduler of a running control plane. It holds tests only.
package placement

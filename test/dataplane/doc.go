// Package dataplane runs a real Kubernetes cluster whose nodes carry packets, on one Linux machine, as root.
//
// In front is the control plane of [controlplane]. Each node is a network namespace on a bridge, with the real kube-proxy
// and an agent in the place of a kubelet, which runs every pod bound to its node as a process in a network namespace of its
// own (see package agent). Hosts are further namespaces on the same segment, outside the cluster: clients, routers,
// balancers. All of it comes up with [Up] and is gone without a trace after [Lab.Down]; what a killed process left
// behind, [Sweep] removes. Several labs run side by side.
package dataplane

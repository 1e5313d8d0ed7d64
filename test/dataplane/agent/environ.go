package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/kubernetes/third_party/forked/golang/expansion"

	"github.com/safedrain/safedrain/test/dataplane"
)

// commandLine returns what a container runs and its whole environment.
func (c *container) commandLine() (argv, env []string, err error) {
	values, err := c.environment()
	if err != nil {
		return nil, nil, err
	}
	lookup := expansion.MappingFuncFor(values)
	for _, word := range append(append([]string{}, c.spec.Command...), c.spec.Args...) {
		argv = append(argv, expansion.Expand(word, lookup))
	}
	if len(c.spec.Command) == 0 {
		// The file may have been replaced by a newer build; this one is still the agent's own.
		argv = append([]string{"/proc/self/exe", "pod"}, argv...)
	}
	for name, value := range values {
		env = append(env, name+"="+value)
	}
	return argv, env, nil
}

// environment is what every container has, what the lab's server reads, and what the spec says over it.
func (c *container) environment() (map[string]string, error) {
	w := c.worker
	values := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": w.dir, "HOSTNAME": w.first.Name, "KUBECONFIG": w.agent.kubeconfig,
		"POD_NAME": w.first.Name, "POD_NAMESPACE": w.first.Namespace, "NODE_NAME": w.agent.node,
	}
	if len(c.spec.Ports) > 0 {
		values[dataplane.EnvPort] = strconv.Itoa(int(c.spec.Ports[0].ContainerPort))
	}
	if len(c.spec.EnvFrom) > 0 {
		return nil, errors.New("envFrom is not supported here")
	}
	for _, e := range c.spec.Env {
		value := expansion.Expand(e.Value, expansion.MappingFuncFor(values))
		if from := e.ValueFrom; from != nil {
			if from.FieldRef == nil {
				return nil, fmt.Errorf("variable %q: only fieldRef is supported here", e.Name)
			}
			var err error
			if value, err = w.field(from.FieldRef.FieldPath); err != nil {
				return nil, fmt.Errorf("variable %q: %w", e.Name, err)
			}
		}
		values[e.Name] = value
	}
	return values, nil
}

var keyed = regexp.MustCompile(`^metadata\.(labels|annotations)\['(.+)'\]$`)

// field returns the value of a field of the pod, as the downward API names it.
func (w *worker) field(path string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m := keyed.FindStringSubmatch(path); m != nil {
		if m[1] == "labels" {
			return w.pod.Labels[m[2]], nil
		}
		return w.pod.Annotations[m[2]], nil
	}
	fields := map[string]string{
		"metadata.name": w.first.Name, "metadata.namespace": w.first.Namespace, "metadata.uid": string(w.first.UID),
		"spec.nodeName": w.agent.node, "spec.serviceAccountName": w.first.Spec.ServiceAccountName,
		"status.hostIP": w.agent.hostIPs[0].String(), "status.hostIPs": join(w.agent.hostIPs),
		"status.podIP": w.addrs[0].String(), "status.podIPs": join(w.addrs),
	}
	value, ok := fields[path]
	if !ok {
		return "", fmt.Errorf("field %q is not supported here", path)
	}
	return value, nil
}

func join(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		texts = append(texts, addr.String())
	}
	return strings.Join(texts, ",")
}

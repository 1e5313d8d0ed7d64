package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probe asks the container whether it is ready until it has ended for good, as its readiness probe says. It goes on while
// the pod terminates, as a kubelet's does.
func (c *container) probe(ctx context.Context) {
	p := c.spec.ReadinessProbe
	timer := time.NewTimer(time.Duration(p.InitialDelaySeconds) * time.Second)
	defer timer.Stop()
	var succeeded, failed int32
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.done:
			return
		case <-timer.C:
		}
		timer.Reset(time.Duration(max(p.PeriodSeconds, 1)) * time.Second)
		if c.check(ctx, p) == nil {
			succeeded, failed = succeeded+1, 0
		} else {
			succeeded, failed = 0, failed+1
		}
		switch {
		case succeeded >= max(p.SuccessThreshold, 1):
			c.setProbed(true)
		case failed >= max(p.FailureThreshold, 1):
			c.setProbed(false)
		}
	}
}

func (c *container) setProbed(ready bool) {
	c.worker.mu.Lock()
	changed := c.probed != ready
	c.probed = ready
	c.worker.mu.Unlock()
	if changed {
		signal(c.worker.publish)
	}
}

// check asks once; an error means not ready.
func (c *container) check(ctx context.Context, p *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(max(p.TimeoutSeconds, 1))*time.Second)
	defer cancel()
	switch {
	case p.HTTPGet != nil:
		return c.get(ctx, p.HTTPGet)
	case p.TCPSocket != nil:
		address, err := c.address(p.TCPSocket.Host, p.TCPSocket.Port)
		if err != nil {
			return err
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	return fmt.Errorf("container %q: only httpGet and tcpSocket probes are supported here", c.spec.Name)
}

// get asks for a page of the container; its status has to be at least 200 and below 400.
func (c *container) get(ctx context.Context, action *corev1.HTTPGetAction) error {
	address, err := c.address(action.Host, action.Port)
	if err != nil {
		return err
	}
	url := "http://" + address + "/" + strings.TrimPrefix(action.Path, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	for _, h := range action.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// address is where the container listens on a port of that number or name.
func (c *container) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = c.worker.addrs[0].String()
	}
	if port.Type == intstr.Int {
		return net.JoinHostPort(host, strconv.Itoa(port.IntValue())), nil
	}
	for _, p := range c.spec.Ports {
		if p.Name == port.StrVal {
			return net.JoinHostPort(host, strconv.Itoa(int(p.ContainerPort))), nil
		}
	}
	return "", fmt.Errorf("container %q has no port named %q", c.spec.Name, port.StrVal)
}

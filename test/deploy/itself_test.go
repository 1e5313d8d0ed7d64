package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/safedrain/safedrain/internal/hookset"
	"github.com/safedrain/safedrain/pkg/lbhooks"
	"github.com/safedrain/safedrain/test/controlplane"
	"github.com/safedrain/safedrain/test/customkinds"
)

// program is safedrain, built of this tree.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "safedrain-deploy-program-")
	if err != nil {
		return "", err
	}
	return controlplane.Safedrain(context.Background(), dir)
})

// asItself runs the gate with the token of its ServiceAccount and the arguments of the Deployment, has it judge, mark and
// withdraw, and looks for anything that it was not allowed: in its log and in the API server's audit log.
func asItself(env *controlplane.Env, objects []*unstructured.Unstructured) {
	defineHookKinds(env)
	g := startGate(env, objects)
	redirect(env, g)
	work(env)
	g.stop()
	for _, line := range g.forbidden() {
		env.Errorf("the gate was not allowed: %s", line)
	}
	denied, done := audited(env)
	for _, d := range denied {
		env.Errorf("the API server refused the gate: %s", d)
	}
	env.Logf("what the gate did: %s", strings.Join(done, ", "))
}

// defineHookKinds makes every kind served that a hook reads, so that the gate reads all of them.
func defineHookKinds(env *controlplane.Env) {
	env.Helper()
	var kinds []customkinds.Kind
	for _, d := range hookset.New(hookset.Deps{}).Descriptions() {
		for _, n := range d.Needs {
			gvr := corev1.SchemeGroupVersion.WithResource(n.Resource)
			gvr.Group, gvr.Version = n.Group, n.Version
			known := slices.ContainsFunc(kinds, func(k customkinds.Kind) bool { return k.GroupVersionResource == gvr })
			if strings.Contains(n.Group, ".") && !strings.HasSuffix(n.Group, ".k8s.io") && !known {
				kinds = append(kinds, customkinds.Kind{GroupVersionResource: gvr, Name: n.Kind, Namespaced: n.Namespaced})
			}
		}
	}
	client := admin(env).dynamic
	if err := customkinds.Define(env.Context(), client, kinds...); err != nil {
		env.Fatal(err)
	}
	ctx := context.WithoutCancel(env.Context())
	env.Cleanup(func() {
		if err := customkinds.Remove(ctx, client, kinds...); err != nil {
			env.Error(err)
		}
	})
}

// gateProcess is a replica of the gate, a process of this machine.
type gateProcess struct {
	env     *controlplane.Env
	cmd     *exec.Cmd
	log     bytes.Buffer
	webhook int
	health  string
}

func startGate(env *controlplane.Env, objects []*unstructured.Unstructured) *gateProcess {
	env.Helper()
	binary, err := program()
	if err != nil {
		env.Fatal(err)
	}
	g := &gateProcess{env: env, webhook: controlplane.FreePort(env), health: fmt.Sprintf("127.0.0.1:%d", controlplane.FreePort(env))}
	d := find(env, objects, "Deployment", "safedrain-gate")
	containers, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
	var args []string
	for _, arg := range containers[0].(map[string]any)["args"].([]any) {
		args = append(args, arg.(string))
	}
	args = append(args, "--kubeconfig="+tokenKubeconfig(env), "--namespace="+ownNamespace, "--cert-host=127.0.0.1", "--shutdown-delay=0s",
		fmt.Sprintf("--webhook-port=%d", g.webhook), "--health-address="+g.health, "--metrics-address=127.0.0.1:0")
	g.cmd = exec.Command(binary, args...)
	g.cmd.Stdout, g.cmd.Stderr = &g.log, &g.log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.cmd.Start(); err != nil {
		env.Fatal(err)
	}
	env.Cleanup(g.stop)
	env.Wait("the gate Ready", func(ctx context.Context) (bool, string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.health+"/readyz?verbose=1", http.NoBody)
		if err != nil {
			return false, "", err
		}
		resp, err := http.DefaultClient.Do(req) //nolint:forbidigo // a call to loopback in a test, which Wait repeats
		if err != nil {
			return false, "", err
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode == http.StatusOK, resp.Status, nil
	})
	return g
}

// stop ends the replica as a kubelet does.
func (g *gateProcess) stop() {
	if g.cmd.ProcessState != nil {
		return
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(2*time.Minute, func() { _ = g.cmd.Process.Kill() })
	defer timer.Stop()
	if err := g.cmd.Wait(); err != nil || g.env.Failed() {
		g.env.Errorf("the gate ended: %v\n%s", err, g.log.String())
	}
}

// forbidden returns the lines of the log that speak of a right.
func (g *gateProcess) forbidden() []string {
	var lines []string
	for _, line := range strings.Split(g.log.String(), "\n") {
		if lower := strings.ToLower(line); strings.Contains(lower, "forbidden") || strings.Contains(lower, "not allowed to") {
			lines = append(lines, line)
		}
	}
	return lines
}

// tokenKubeconfig writes a kubeconfig with a token of the gate's ServiceAccount.
func tokenKubeconfig(env *controlplane.Env) string {
	env.Helper()
	token, err := env.Client.CoreV1().ServiceAccounts(ownNamespace).CreateToken(env.Context(), "safedrain-gate",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		env.Fatal(err)
	}
	config := env.Cluster.Config()
	const name = "gate"
	path := filepath.Join(env.TempDir(), "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: token.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, path)
	if err != nil {
		env.Fatal(err)
	}
	return path
}

// redirect makes the installed webhooks call the process in place of the Service. Its authority stays as the gate wrote it.
func redirect(env *controlplane.Env, g *gateProcess) {
	env.Helper()
	a := admin(env)
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"} {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("admissionregistration.k8s.io/v1")
		u.SetKind(kind)
		resource, err := a.resource(u)
		if err != nil {
			env.Fatal(err)
		}
		env.Wait(kind+" trusts the gate", func(ctx context.Context) (bool, string, error) {
			u, err = resource.Get(ctx, "safedrain-gate", metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			hooks, _, err := unstructured.NestedSlice(u.Object, "webhooks")
			if err != nil {
				return false, "", err
			}
			for _, hook := range hooks {
				client := hook.(map[string]any)["clientConfig"].(map[string]any)
				if bundle, _ := client["caBundle"].(string); bundle == "" {
					return false, "no caBundle", nil
				}
				path, _, _ := unstructured.NestedString(client, "service", "path")
				delete(client, "service")
				client["url"] = fmt.Sprintf("https://127.0.0.1:%d%s", g.webhook, path)
			}
			if err := unstructured.SetNestedSlice(u.Object, hooks, "webhooks"); err != nil {
				return false, "", err
			}
			_, err = resource.Update(ctx, u, metav1.UpdateOptions{})
			return err == nil, "", err
		})
	}
}

// work gives the gate one of everything to do: a keeper to mark, an eviction to refuse and a node to withdraw for it, a
// scale-down to clamp.
func work(env *controlplane.Env) {
	const app = "edge"
	ctx := env.Context()
	nodes := env.Nodes(2)
	env.Service(app, func(s *corev1.Service) {
		s.Annotations = map[string]string{"safedrain.dev/nodes": "kubernetes.io/hostname in (" + strings.Join(nodes, ",") + ")", "safedrain.dev/settle": "1s"}
	})
	for _, name := range []string{"first", "second", "alone"} {
		node := nodes[0]
		if name == "alone" {
			node = nodes[1]
		}
		env.Pod(name, node, func(p *corev1.Pod) { p.Labels = map[string]string{controlplane.AppLabel: app} })
	}
	env.Wait("a keeper marked", func(ctx context.Context) (bool, string, error) {
		list, err := env.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		for i := range list.Items {
			if list.Items[i].Annotations["safedrain.dev/keeper"] != "" {
				return true, "", nil
			}
		}
		return false, "no mark", nil
	})
	env.Wait("the API server asks the gate", func(ctx context.Context) (bool, string, error) { // its view of the webhooks lags
		err := evict(ctx, env, metav1.DryRunAll)
		return apierrors.IsTooManyRequests(err), fmt.Sprint(err), nil
	})
	clamped(env)
	if _, err := env.Client.CoreV1().Nodes().Patch(ctx, nodes[1], types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
		env.Fatal(err)
	}
	env.Wait("the eviction allowed after the withdrawal", func(ctx context.Context) (bool, string, error) {
		err := evict(ctx, env) // the client itself repeats what is refused
		return err == nil, fmt.Sprint(err), nil
	})
	node, err := env.Client.CoreV1().Nodes().Get(ctx, nodes[1], metav1.GetOptions{})
	if err != nil || node.Annotations[lbhooks.AnnotationDrain] == "" {
		env.Errorf("the eviction went on without a withdrawal of %s: %v", nodes[1], err)
	}
}

// clamped: a scale-down of a Deployment behind a Local Service ends at the floor, with the events that say so.
func clamped(env *controlplane.Env) {
	const app = "web"
	nodes := env.Nodes(2)
	env.Service(app, func(s *corev1.Service) {
		s.Annotations = map[string]string{"safedrain.dev/floor": "2", "safedrain.dev/nodes": "kubernetes.io/hostname in (" + strings.Join(nodes, ",") + ")"}
	})
	env.Deployment(app, 3, func(d *appsv1.Deployment) { // one of the nodes has two, so that it gets a keeper
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}},
			}}},
		}}
	})
	env.Wait("a scale-down clamped", func(ctx context.Context) (bool, string, error) {
		api := env.Client.AppsV1().Deployments(env.Namespace)
		for _, replicas := range []int32{3, 1} {
			s, err := api.GetScale(ctx, app, metav1.GetOptions{})
			if err != nil {
				return false, err.Error(), nil
			}
			s.Spec.Replicas, s.ResourceVersion = replicas, ""
			if _, err := api.UpdateScale(ctx, app, s, metav1.UpdateOptions{}); err != nil {
				return false, err.Error(), nil
			}
		}
		d, err := api.Get(ctx, app, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return *d.Spec.Replicas == 2, fmt.Sprintf("%d replicas", *d.Spec.Replicas), nil
	})
	env.Wait("an event of the gate's", func(ctx context.Context) (bool, string, error) {
		opts := metav1.ListOptions{FieldSelector: "reportingComponent=safedrain-gate"} // as the notes of the install say
		list, err := env.Client.CoreV1().Events(env.Namespace).List(ctx, opts)
		return err == nil && len(list.Items) > 0, "none", err
	})
}

// evict asks for the eviction of the pod that is alone on its node.
func evict(ctx context.Context, env *controlplane.Env, dryRun ...string) error {
	return env.Client.CoreV1().Pods(env.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: "alone"}, DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun},
	})
}

// event is what the audit log says of a request.
type event struct {
	Verb      string `json:"verb"`
	ObjectRef *struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	RequestURI     string `json:"requestURI"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// audited reads from the API server's audit log what the gate asked: what was refused for want of a right, and all else by
// verb and resource.
func audited(env *controlplane.Env) (denied, done []string) {
	env.Helper()
	file, err := os.Open(auditLog)
	if err != nil {
		env.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	seen := map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			env.Fatal(errors.Join(err, errors.New(lines.Text())))
		}
		what := e.Verb + " " + e.RequestURI
		if e.ObjectRef != nil {
			what = e.Verb + " " + strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
			if e.ObjectRef.APIGroup != "" {
				what += "." + e.ObjectRef.APIGroup
			}
		}
		if e.ResponseStatus.Code == http.StatusForbidden {
			denied = append(denied, what)
		} else if e.ObjectRef != nil {
			seen[what] = true
		}
	}
	for what := range seen {
		done = append(done, what)
	}
	slices.Sort(done)
	if len(done) == 0 {
		env.Error("the audit log says nothing of the gate")
	}
	return denied, done
}

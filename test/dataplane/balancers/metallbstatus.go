package balancers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/safedrain/safedrain/pkg/lbhooks/metallb"
	"github.com/safedrain/safedrain/test/controlplane"
)

// falseStatus makes status objects of one kind false, for every Service that has any. Speakers correct what they find
// false, or take it over; so a policy of the API server refuses what they would write.
type falseStatus struct {
	metallb *MetalLB
	kind    schema.GroupVersionResource
	name    string // of the kind
}

const (
	policyProbe = "policy-probe" // a node that no policy lets anybody write
	falsePrefix = "false-"       // begins the names of status objects that no speaker wrote
)

// stale keeps the statuses that name the node: they can neither be changed nor deleted.
func (f *falseStatus) stale(ctx context.Context, node string) (func(context.Context) error, error) {
	return f.refuse(ctx, "stale", names("oldObject", node))
}

// lie removes the statuses that name the node, which nobody can write anew, and writes one that names another node for
// each Service that is left with none.
func (f *falseStatus) lie(ctx context.Context, node string) (func(context.Context) error, error) {
	lift, err := f.refuse(ctx, "lies", names("object", node))
	if err != nil {
		return nil, err
	}
	undo := func(ctx context.Context) error { return errors.Join(lift(ctx), f.clear(ctx)) }
	list, err := f.statuses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, errors.Join(err, undo(ctx))
	}
	var errs []error
	named, others := map[labelled]bool{}, map[labelled]bool{}
	for i := range list.Items {
		svc := serviceOf(&list.Items[i])
		if list.Items[i].GetLabels()[metallb.LabelNode] != node {
			others[svc] = true
			continue
		}
		named[svc] = true
		errs = append(errs, f.statuses().Delete(ctx, list.Items[i].GetName(), metav1.DeleteOptions{}))
	}
	for svc := range named {
		if !others[svc] {
			errs = append(errs, f.write(ctx, svc, f.otherThan(node)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, undo(ctx))
	}
	return undo, nil
}

func (f *falseStatus) otherThan(node string) string {
	for _, n := range f.metallb.lab.Nodes {
		if n.Name != node {
			return n.Name
		}
	}
	return ""
}

func (f *falseStatus) statuses() dynamic.ResourceInterface {
	return f.metallb.dynamic.Resource(f.kind).Namespace(metallbNamespace)
}

// labelled is a Service as the labels of a status name it.
type labelled struct{ namespace, name string }

func serviceOf(status *unstructured.Unstructured) labelled {
	l := status.GetLabels()
	return labelled{l[metallb.LabelServiceNamespace], l[metallb.LabelServiceName]}
}

// names is a CEL expression: the label of an object, "object" or "oldObject", names the node.
func names(object, node string) string {
	return fmt.Sprintf("(%[1]s != null && has(%[1]s.metadata.labels) && %[2]q in %[1]s.metadata.labels && %[1]s.metadata.labels[%[2]q] == %[3]q)",
		object, metallb.LabelNode, node)
}

// refuse lets the API server refuse writes of status objects for which the expression is true, and returns when it does.
func (f *falseStatus) refuse(ctx context.Context, suffix, expression string) (lift func(context.Context) error, err error) {
	meta := metav1.ObjectMeta{Name: "test-" + f.kind.Resource + "-" + suffix}
	api := f.metallb.lab.Client.AdmissionregistrationV1()
	lift = func(ctx context.Context) error {
		err := api.ValidatingAdmissionPolicyBindings().Delete(ctx, meta.Name, metav1.DeleteOptions{})
		err = errors.Join(err, api.ValidatingAdmissionPolicies().Delete(ctx, meta.Name, metav1.DeleteOptions{}))
		return errors.Join(err, f.awaitPolicy(ctx, false))
	}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update, admissionv1.Delete},
				Rule: admissionv1.Rule{
					APIGroups: []string{f.kind.Group}, APIVersions: []string{f.kind.Version},
					Resources: []string{f.kind.Resource, f.kind.Resource + "/status"},
				},
			},
		}}},
		Validations: []admissionv1.Validation{{Expression: "!(" + expression + " || " + names("object", policyProbe) + ")"}},
	}}
	if _, err := api.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("refuse writes of %s: %w", f.kind.Resource, err)
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	_, err = api.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err == nil {
		err = f.awaitPolicy(ctx, true)
	}
	if err != nil {
		return nil, errors.Join(err, lift(context.WithoutCancel(ctx)))
	}
	return lift, nil
}

// awaitPolicy waits until a status of the node that no policy lets anybody write is refused, or is not any more.
func (f *falseStatus) awaitPolicy(ctx context.Context, refused bool) error {
	what := fmt.Sprintf("writes of %s refused: %t", f.kind.Resource, refused)
	return controlplane.Poll(ctx, startTimeout, what, func(ctx context.Context) (bool, string, error) {
		u := f.object(labelled{"none", "none"}, policyProbe)
		_, err := f.statuses().Create(ctx, u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			return refused, "refused", nil
		}
		return err == nil && !refused, "taken", err
	})
}

// clear removes what no speaker wrote; a speaker that took it over writes its own then.
func (f *falseStatus) clear(ctx context.Context) error {
	list, err := f.statuses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		name := list.Items[i].GetName()
		if !strings.HasPrefix(name, falsePrefix) {
			continue
		}
		if err := f.statuses().Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// object is a status that names a node, without its status.
func (f *falseStatus) object(svc labelled, node string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": f.kind.GroupVersion().String(), "kind": f.name, "spec": map[string]any{}}}
	u.SetName(falsePrefix + svc.namespace + "-" + svc.name + "-" + node)
	u.SetLabels(labels.Set{metallb.LabelNode: node, metallb.LabelServiceName: svc.name, metallb.LabelServiceNamespace: svc.namespace})
	return u
}

// write makes a status that names a node, as a speaker would. A speaker that takes it over at once is as good.
func (f *falseStatus) write(ctx context.Context, svc labelled, node string) error {
	made, err := f.statuses().Create(ctx, f.object(svc, node), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// A creation drops it.
	made.Object["status"] = map[string]any{"node": node, "serviceName": svc.name, "serviceNamespace": svc.namespace}
	_, err = f.statuses().UpdateStatus(ctx, made, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

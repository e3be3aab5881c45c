// Admission runs the admission policies of a rendered chart on pods, with the API server's own code and without an API server.
//
//	admission MANIFESTS.yaml < PODS.json > RESPONSES.json
//
// MANIFESTS holds MutatingAdmissionPolicy and ValidatingAdmissionPolicy objects without parameters, and their bindings. PODS is a list
// of pods and Deployments; Deployments only get warnings. Each response has the pod after the policies, whether they changed it,
// whether a second round would change it again (as the API server does with `reinvocationPolicy: IfNeeded`), the policies' errors, and
// warnings.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
)

var (
	pods           = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	podKind        = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	deployments    = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	deploymentKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
)

// Response is the result for one pod.
type Response struct {
	Pod       *core.Pod `json:"pod,omitempty"`
	Changed   bool      `json:"changed"`
	Unsettled bool      `json:"unsettled"`
	Errors    []string  `json:"errors"`
	Warnings  []string  `json:"warnings"`
}

// Manifests holds the admission policies and bindings of a rendered chart.
type Manifests struct {
	mutating        []*admissionregistration.MutatingAdmissionPolicy
	mutatingBinding map[string]*admissionregistration.MutatingAdmissionPolicyBinding
	validating      []*admissionregistration.ValidatingAdmissionPolicy
	compiled        map[string]*Compiled
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: admission MANIFESTS.yaml < PODS.json")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file string) error {
	manifests, err := read(file)
	if err != nil {
		return err
	}
	var given []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		return fmt.Errorf("stdin: %w", err)
	}
	responses := []Response{}
	for _, raw := range given {
		response := Response{Errors: []string{}, Warnings: []string{}}
		var kind meta.TypeMeta
		if err := json.Unmarshal(raw, &kind); err != nil {
			return fmt.Errorf("stdin: %w", err)
		}
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if kind.Kind == deploymentKind.Kind {
			deployment := &apps.Deployment{}
			if err := decoder.Decode(deployment); err != nil {
				return fmt.Errorf("stdin: %w", err)
			}
			manifests.validate(deployment, deploymentKind, deployments, &response)
			responses = append(responses, response)
			continue
		}
		pod := &core.Pod{}
		if err := decoder.Decode(pod); err != nil {
			return fmt.Errorf("stdin: %w", err)
		}
		before := pod.DeepCopy()
		after := manifests.mutate(pod, &response)
		response.Changed = !reflect.DeepEqual(before, after)
		again := manifests.mutate(after, &response)
		response.Unsettled = !reflect.DeepEqual(after, again)
		manifests.validate(after, podKind, pods, &response)
		response.Pod = after
		responses = append(responses, response)
	}
	return json.NewEncoder(os.Stdout).Encode(responses)
}

// read takes both v1 and v1beta1: their fields are the same.
func read(file string) (*Manifests, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	found := &Manifests{
		mutatingBinding: map[string]*admissionregistration.MutatingAdmissionPolicyBinding{},
		compiled:        map[string]*Compiled{},
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var raw json.RawMessage
		if err := documents.Decode(&raw); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		var kind meta.TypeMeta
		if len(raw) == 0 || json.Unmarshal(raw, &kind) != nil {
			continue
		}
		strict := func(into any) error {
			decoder := json.NewDecoder(bytes.NewReader(raw))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(into); err != nil {
				return fmt.Errorf("%s: %s: %w", file, kind.Kind, err)
			}
			return nil
		}
		switch kind.Kind {
		case "MutatingAdmissionPolicy":
			policy := &admissionregistration.MutatingAdmissionPolicy{}
			if err := strict(policy); err != nil {
				return nil, err
			}
			found.mutating = append(found.mutating, policy)
		case "MutatingAdmissionPolicyBinding":
			binding := &admissionregistration.MutatingAdmissionPolicyBinding{}
			if err := strict(binding); err != nil {
				return nil, err
			}
			found.mutatingBinding[binding.Spec.PolicyName] = binding
		case "ValidatingAdmissionPolicy":
			policy := &admissionregistration.ValidatingAdmissionPolicy{}
			if err := strict(policy); err != nil {
				return nil, err
			}
			found.validating = append(found.validating, policy)
		}
	}
}

func (m *Manifests) mutate(pod *core.Pod, response *Response) *core.Pod {
	for _, policy := range m.mutating {
		if !selects(policy.Spec.MatchConstraints, pod) {
			continue
		}
		report := func(err error) {
			response.Errors = append(response.Errors, policy.Name+": "+err.Error())
		}
		if m.mutatingBinding[policy.Name] == nil {
			report(errors.New("no binding"))
			continue
		}
		if m.compiled[policy.Name] == nil {
			compiled, err := compile(policy)
			if err != nil {
				report(err)
				continue
			}
			m.compiled[policy.Name] = compiled
		}
		changed, err := m.compiled[policy.Name].apply(pod)
		if err != nil {
			report(err)
			continue
		}
		pod = changed
	}
	return pod
}

// Compiled is a policy with compiled expressions. Compiling takes longer than evaluating them.
type Compiled struct {
	compiler *plugincel.CompositedCompiler
	matcher  matchconditions.Matcher
	patchers []patch.Patcher
}

// compile compiles a policy as the API server does (apiserver 0.36, plugin/policy/mutating/compilation.go). Expressions are compiled as new
// ones, as when a policy is created: an API server that is one version older must support them.
func compile(policy *admissionregistration.MutatingAdmissionPolicy) (*Compiled, error) {
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	made := &Compiled{compiler: compiler}
	// Match conditions are evaluated before variables exist, so they cannot use them.
	bare, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	options := plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
	var variables []plugincel.NamedExpressionAccessor
	for _, variable := range policy.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: variable.Name, Expression: variable.Expression})
	}
	compiler.CompileAndStoreVariables(variables, options, environment.NewExpressions)
	var conditions []plugincel.ExpressionAccessor
	for i := range policy.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
	}
	if len(conditions) > 0 {
		fail := admissionregistration.Fail // An error is reported instead of being treated as "does not match".
		compiled := bare.CompileCondition(conditions, options, environment.NewExpressions)
		made.matcher = matchconditions.NewMatcher(compiled, &fail, "policy", "mutate", policy.Name)
	}
	options.HasPatchTypes = true
	for _, mutation := range policy.Spec.Mutations {
		if mutation.JSONPatch == nil {
			return nil, fmt.Errorf("a mutation of the kind %s, which is not known here", mutation.PatchType)
		}
		condition := &patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}
		evaluator := compiler.CompileMutatingEvaluator(condition, options, environment.NewExpressions)
		made.patchers = append(made.patchers, patch.NewJSONPatcher(evaluator))
	}
	return made, nil
}

// apply applies a policy to a selected pod as the API server does (plugin/policy/mutating/dispatcher.go).
func (c *Compiled) apply(pod *core.Pod) (*core.Pod, error) {
	ctx := c.compiler.CreateContext(context.Background())
	attributes := attributesOf(pod, pod, podKind, pods)
	if c.matcher != nil {
		matched := c.matcher.Match(ctx, attributes, nil, nil)
		if matched.Error != nil {
			return nil, matched.Error
		}
		if !matched.Matches {
			return pod, nil
		}
	}
	for _, patcher := range c.patchers {
		patched, err := patcher.Patch(ctx, patch.Request{
			MatchedResource:     pods,
			VersionedAttributes: attributes,
			ObjectInterfaces:    admission.NewObjectInterfacesFromScheme(scheme.Scheme),
			Namespace:           namespaceOf(pod.Namespace),
		}, celconfig.RuntimeCELCostBudget)
		if err != nil {
			return nil, err
		}
		attributes.VersionedObject = patched
	}
	changed, isPod := attributes.VersionedObject.(*core.Pod)
	if !isPod {
		return nil, fmt.Errorf("the patch made a %T of a pod", attributes.VersionedObject)
	}
	return changed, nil
}

// validate evaluates the validating policies, whose refusals are all warnings.
func (m *Manifests) validate(object runtime.Object, kind schema.GroupVersionKind, resource schema.GroupVersionResource, response *Response) {
	about, isObject := object.(meta.Object)
	if !isObject {
		return
	}
	for _, policy := range m.validating {
		if !selects(policy.Spec.MatchConstraints, about) {
			continue
		}
		report := func(err error) { response.Errors = append(response.Errors, policy.Name+": "+err.Error()) }
		compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
		if err != nil {
			report(err)
			continue
		}
		options := plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
		var variables []plugincel.NamedExpressionAccessor
		for _, variable := range policy.Spec.Variables {
			variables = append(variables, &validating.Variable{Name: variable.Name, Expression: variable.Expression})
		}
		compiler.CompileAndStoreVariables(variables, options, environment.NewExpressions)
		var rules []plugincel.ExpressionAccessor
		for _, validation := range policy.Spec.Validations {
			rules = append(rules, &validating.ValidationCondition{Expression: validation.Expression, Message: validation.Message})
		}
		attributes := attributesOf(object, about, kind, resource)
		request := plugincel.CreateAdmissionRequest(attributes.Attributes, meta.GroupVersionResource(resource), meta.GroupVersionKind(kind))
		results, _, err := compiler.CompileCondition(rules, options, environment.NewExpressions).ForInput(
			compiler.CreateContext(context.Background()), attributes, request, plugincel.OptionalVariableBindings{}, namespaceOf(about.GetNamespace()), celconfig.RuntimeCELCostBudget)
		if err != nil {
			report(err)
			continue
		}
		for i, result := range results {
			if result.Error != nil {
				report(result.Error)
			} else if result.EvalResult.Value() != true {
				response.Warnings = append(response.Warnings, policy.Spec.Validations[i].Message)
			}
		}
	}
}

// namespaceOf is the namespace with this name. One that is named after a Pod Security level enforces it.
func namespaceOf(name string) *core.Namespace {
	labels := map[string]string{core.LabelMetadataName: name}
	if name == "baseline" || name == "restricted" {
		labels["pod-security.kubernetes.io/enforce"] = name
	}
	return &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}}
}

func attributesOf(object runtime.Object, about meta.Object, kind schema.GroupVersionKind, resource schema.GroupVersionResource) *admission.VersionedAttributes {
	record := admission.NewAttributesRecord(object, nil, kind, about.GetNamespace(), about.GetName(), resource, "", admission.Create, &meta.CreateOptions{}, false, nil)
	return &admission.VersionedAttributes{Attributes: record, VersionedObject: object.DeepCopyObject(), VersionedKind: kind}
}

// selects reports whether the selectors match this object. The rules of all policies match CREATE of its kind.
func selects(match *admissionregistration.MatchResources, object meta.Object) bool {
	if match == nil {
		return false
	}
	return chosen(match.ObjectSelector, object.GetLabels()) &&
		chosen(match.NamespaceSelector, map[string]string{core.LabelMetadataName: object.GetNamespace()})
}

func chosen(selector *meta.LabelSelector, set map[string]string) bool {
	if selector == nil {
		return true
	}
	parsed, err := meta.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}

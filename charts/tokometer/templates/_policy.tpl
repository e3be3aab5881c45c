{{/* Expressions of the admission policies, in CEL. */}}

{{/* Index of the engine's container; -1 where it is not known which one it is. `names` is the list of containers. */}}
{{- define "tokometer.cel.engine" -}}
{{- $containers := .containers -}}
{{- if .settings.container -}}
{{ $containers }}.map(c, c.name).indexOf({{ toJson .settings.container }})
{{- else -}}
(size({{ $containers }}) == 1 ? 0 : {{ $containers }}.map(c, has(c.ports) && c.ports.exists(p, p.containerPort == {{ int .settings.port }}) ? "engine" : "").indexOf("engine"))
{{- end -}}
{{- end -}}

{{/* Whether flags are given at all: a mode, or a person, says so. */}}
{{- define "tokometer.givesFlags" -}}
{{- with .interception -}}{{- if or .args .more -}}true{{- end -}}{{- end -}}
{{- end -}}

{{/* True if every container has a CPU limit, as a quota on CPU limits demands. */}}
{{- define "tokometer.cel.limited" -}}
!has(object.spec.resources) && {{ range $i, $list := list "containers" "initContainers" -}}
{{- if $i }}
&& (!has(object.spec.initContainers) || {{ end -}}
object.spec.{{ $list }}.all(c, has(c.resources) && has(c.resources.limits) && "cpu" in c.resources.limits)
{{- if $i }}){{ end -}}
{{- end -}}
{{- end -}}

{{/* Resources that leave a Guaranteed pod what it is. The API server has filled in what limits make of requests. */}}
{{- define "tokometer.cel.guaranteed" -}}
!has(object.spec.resources) && {{ range $i, $list := list "containers" "initContainers" -}}
{{- if $i }}
&& (!has(object.spec.initContainers) || {{ end -}}
object.spec.{{ $list }}.all(c, has(c.resources) && has(c.resources.limits) && ["cpu", "memory"].all(r, r in c.resources.limits && (!has(c.resources.requests) || !(r in c.resources.requests) || c.resources.requests[r] == c.resources.limits[r])))
{{- if $i }}){{ end -}}
{{- end -}}
{{- end -}}

{{/* The engine's user: the container's, else the pod's, else what is given: (dict "container" CEL "name" FIELD "else" CEL). */}}
{{- define "tokometer.cel.context" -}}
(has({{ .container }}.securityContext) && has({{ .container }}.securityContext.{{ .name }}) ? {{ .container }}.securityContext.{{ .name }} : has(variables.pod.securityContext) && has(variables.pod.securityContext.{{ .name }}) ? variables.pod.securityContext.{{ .name }} : {{ .else }})
{{- end -}}

{{/* Which pods a target is about: namespaces and labels. */}}
{{- define "tokometer.policy.namespaces" -}}
{{- $selector := deepCopy (default dict .target.namespaceSelector) -}}
{{- with .root.Values.policy.excludedNamespaces -}}
{{- $excluded := dict "key" "kubernetes.io/metadata.name" "operator" "NotIn" "values" . -}}
{{- $_ := set $selector "matchExpressions" (append (default list $selector.matchExpressions) $excluded) -}}
{{- end -}}
{{- toYaml $selector -}}
{{- end -}}

{{/* The JSON Patch: a list of lists, added up. All of it in one expression, so that a pod gets all or nothing. Patches are applied
     in their order, and a path that ends in `-` is the end of a list. */}}
{{- define "tokometer.policy.patch" -}}
{{- $settings := .settings -}}
{{- $interception := .interception -}}
{{- $admin := int $settings.adminPort -}}
{{- $guaranteed := dict "limits" $settings.guaranteedResources "requests" $settings.guaranteedResources -}}
{{- $container := include "tokometer.container.of" (dict "root" .root "settings" $settings) | fromYaml -}}
{{- $type := "Object.spec.initContainers" -}}
{{- $_ := set $container "image" (dict "cel" "variables.image") -}}
{{- $_ := set $container "args" (dict "cel" "variables.args") -}}
{{- $ours := include "tokometer.cel" (dict "type" (printf "%s.resources" $type) "value" (default dict $settings.resources)) -}}
{{- $same := include "tokometer.cel" (dict "type" (printf "%s.resources" $type) "value" $guaranteed) -}}
{{- $limits := merge (dict) (default dict (default dict $settings.resources).limits) (dict "cpu" $settings.guaranteedResources.cpu) -}}
{{- $limited := include "tokometer.cel" (dict "type" (printf "%s.resources" $type) "value" (merge (dict "limits" $limits) (default dict $settings.resources))) -}}
{{- $_ := set $container "resources" (dict "cel" (printf "variables.guaranteed\n    ? %s\n    : variables.limited\n    ? %s\n    : %s" $same $limited $ours)) -}}
{{- range $container.volumeMounts -}}
{{- if eq .name "tokometer-tls" -}}{{- $_ := set . "name" (dict "cel" "variables.certificates[0].name") -}}{{- end -}}
{{- end -}}
{{- if has $settings.mode (list "uds" "shadow-bind") -}}
{{- $_ := set $container.securityContext "runAsUser" (dict "cel" "variables.user") -}}
{{- $_ := set $container.securityContext "runAsNonRoot" (dict "cel" "variables.user != 0") -}}
{{- end -}}
{{- $redirect := include "tokometer.redirect" (dict "root" .root "settings" $settings) | fromYaml -}}
{{- $few := $redirect.resources.requests -}}
{{- $_ := set $redirect "resources" (dict "cel" (printf "variables.guaranteed || variables.limited\n    ? %s\n    : %s"
  (include "tokometer.cel" (dict "type" (printf "%s.resources" $type) "value" (dict "limits" $few "requests" $few)))
  (include "tokometer.cel" (dict "type" (printf "%s.resources" $type) "value" (dict "requests" $few))))) -}}
{{- $hook := dict "httpGet" (dict "path" "/drain/wait" "port" $admin) -}}
{{- $startup := dict "httpGet" (dict "path" "/engine/healthz" "port" $admin) "periodSeconds" 5 "failureThreshold" 720 "timeoutSeconds" 2 -}}
{{- $probe := dict "httpGet" (dict "path" "/engine/healthz" "port" $admin) "periodSeconds" $settings.engineLiveness.periodSeconds "failureThreshold" $settings.engineLiveness.failureThreshold "timeoutSeconds" 2 -}}
// Left unchanged, with the reason.
variables.reason != ""
? (has(object.metadata.annotations) ? [] : [JSONPatch{op: "add", path: "/metadata/annotations", value: Object.metadata.annotations{}}])
+ [JSONPatch{op: "add", path: "/metadata/annotations/" + jsonpatch.escapeKey("tokometer/skipped"), value: variables.reason}]
// A reason from before another plugin changed the pod.
: (has(object.metadata.annotations) && "tokometer/skipped" in object.metadata.annotations
  ? [JSONPatch{op: "remove", path: "/metadata/annotations/" + jsonpatch.escapeKey("tokometer/skipped")}]
  : [])
// The sidecar, in front of all other init containers.
+ (has(object.spec.initContainers) ? [] : [JSONPatch{op: "add", path: "/spec/initContainers", value: []}])
+ [JSONPatch{op: "add", path: "/spec/initContainers/0", value: {{ include "tokometer.cel.lines" (dict "type" $type "value" $container) }}}]
{{- if eq $settings.mode "redirect" }}
+ [JSONPatch{op: "add", path: "/spec/initContainers/0", value: {{ include "tokometer.cel.lines" (dict "type" $type "value" $redirect) }}}]
{{- end }}
{{- with $interception.env }}
{{- $variable := include "tokometer.cel" (dict "type" "Object.spec.containers.env" "value" .) }}
// The engine's environment, in place of what was there.
+ ({{ if $interception.flag }}variables.flagged ? [] : {{ end }}has(variables.container.env) && variables.container.env.exists(e, e.name == {{ toJson .name }})
  ? [JSONPatch{op: "replace", path: variables.path + "/env/" + string(variables.container.env.map(e, e.name).lastIndexOf({{ toJson .name }})), value: {{ $variable }}}]
  : (has(variables.container.env) ? [] : [JSONPatch{op: "add", path: variables.path + "/env", value: []}])
  + [JSONPatch{op: "add", path: variables.path + "/env/-", value: {{ $variable }}}])
{{- end }}
{{- if include "tokometer.givesFlags" . }}
// The engine's flags: inserted into the text of a shell, else appended, because the last one of a name counts.
+ (size(variables.engineArgs) == 0 ? []
  : size(variables.texts) > 0
  ? [JSONPatch{op: "replace", path: variables.path + variables.textPath, value: variables.changedText}]
  : has(variables.container.args)
  ? variables.engineArgs.map(a, JSONPatch{op: "add", path: variables.path + "/args/-", value: a})
  : [JSONPatch{op: "add", path: variables.path + "/args", value: variables.engineArgs}])
{{- end }}
{{- if lt (int (include "tokometer.listenPort" $settings)) 1024 }}
{{- $sysctl := include "tokometer.cel" (dict "type" "Object.spec.securityContext.sysctls" "value" (dict "name" "net.ipv4.ip_unprivileged_port_start" "value" (include "tokometer.listenPort" $settings))) }}
// A low port for who is not root; safe in the profile restricted too.
+ (has(object.spec.securityContext) && has(object.spec.securityContext.sysctls) && object.spec.securityContext.sysctls.exists(s, s.name == "net.ipv4.ip_unprivileged_port_start") ? []
  : (has(object.spec.securityContext) ? [] : [JSONPatch{op: "add", path: "/spec/securityContext", value: Object.spec.securityContext{}}])
  + (has(object.spec.securityContext) && has(object.spec.securityContext.sysctls) ? [] : [JSONPatch{op: "add", path: "/spec/securityContext/sysctls", value: []}])
  + [JSONPatch{op: "add", path: "/spec/securityContext/sysctls/-", value: {{ $sysctl }}}])
{{- end }}
{{- if eq $settings.mode "uds" }}
// The volume with the socket.
+ (has(variables.container.volumeMounts) ? [] : [JSONPatch{op: "add", path: variables.path + "/volumeMounts", value: []}])
+ [JSONPatch{op: "add", path: variables.path + "/volumeMounts/-", value: {{ include "tokometer.cel" (dict "type" "Object.spec.containers.volumeMounts" "value" (dict "name" "tokometer-socket" "mountPath" (include "tokometer.socket" $settings | dir))) }}}]
{{- end }}
{{- if or $settings.config (eq $settings.mode "uds") }}
+ (has(object.spec.volumes) ? [] : [JSONPatch{op: "add", path: "/spec/volumes", value: []}])
{{- end }}
{{- if eq $settings.mode "uds" }}
+ [JSONPatch{op: "add", path: "/spec/volumes/-", value: Object.spec.volumes{name: "tokometer-socket", emptyDir: Object.spec.volumes.emptyDir{}}}]
{{- end }}
{{- if $settings.config }}
// The configuration travels with the pod: a volume cannot be of another namespace.
+ (has(object.metadata.annotations) ? [] : [JSONPatch{op: "add", path: "/metadata/annotations", value: Object.metadata.annotations{}}])
+ [JSONPatch{op: "add", path: "/metadata/annotations/" + jsonpatch.escapeKey("tokometer/config"), value: variables.config}]
+ [JSONPatch{op: "add", path: "/spec/volumes/-", value: {{ include "tokometer.cel" (dict "type" "Object.spec.volumes" "value" (include "tokometer.volume.config" . | fromYaml)) }}}]
{{- end }}
{{- if $settings.drain.enabled }}
// The engine gets SIGTERM only when no stream is open any more.
+ (!has(variables.container.lifecycle)
  ? [JSONPatch{op: "add", path: variables.path + "/lifecycle", value: {{ include "tokometer.cel" (dict "type" "Object.spec.containers.lifecycle" "value" (dict "preStop" $hook)) }}}]
  : !has(variables.container.lifecycle.preStop)
  ? [JSONPatch{op: "add", path: variables.path + "/lifecycle/preStop", value: {{ include "tokometer.cel" (dict "type" "Object.spec.containers.lifecycle.preStop" "value" $hook) }}}]
  : [])
+ (has(object.spec.terminationGracePeriodSeconds) && object.spec.terminationGracePeriodSeconds >= {{ add (int $settings.drain.timeoutSeconds) 30 }} ? []
  : [JSONPatch{op: "add", path: "/spec/terminationGracePeriodSeconds", value: {{ add (int $settings.drain.timeoutSeconds) 30 }}}])
{{- end }}
{{- if $settings.engineLiveness.enabled }}
// A wedged engine is restarted. While it loads its model it accepts no connections, and only the startup probe counts.
+ (has(variables.container.livenessProbe) ? []
  : [JSONPatch{op: "add", path: variables.path + "/livenessProbe", value: {{ include "tokometer.cel" (dict "type" "Object.spec.containers.livenessProbe" "value" $probe) }}}]
  + (has(variables.container.startupProbe) ? []
  : [JSONPatch{op: "add", path: variables.path + "/startupProbe", value: {{ include "tokometer.cel" (dict "type" "Object.spec.containers.startupProbe" "value" $startup) }}}]))
{{- end }}
{{- end -}}

{{- define "tokometer.volume.config" -}}
name: tokometer-config
downwardAPI:
  items:
    - path: tokometer.yaml
      fieldRef:
        fieldPath: metadata.annotations['tokometer/config']
{{- end -}}

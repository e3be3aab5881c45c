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

{{/* A limit of the engine's container as multiple of its request, which defaults to the limit; 0.0 without a limit: (dict "name" RESOURCE). */}}
{{- define "tokometer.cel.ratio" -}}
{{- $c := "variables.container.resources" -}}
has({{ $c }}) && has({{ $c }}.limits) && "{{ .name }}" in {{ $c }}.limits ? (has({{ $c }}.requests) && "{{ .name }}" in {{ $c }}.requests ? quantity({{ $c }}.limits["{{ .name }}"]).asApproximateFloat() / quantity({{ $c }}.requests["{{ .name }}"]).asApproximateFloat() : 1.0) : 0.0
{{- end -}}

{{/* A request, raised so that the limit is no larger multiple of it than in the engine's container, because a LimitRange may have a
     maximum: (dict "name" RESOURCE "request" QUANTITY "limit" QUANTITY "unit" FLOAT "suffix" UNIT). */}}
{{- define "tokometer.cel.request" -}}
{{- $ratio := printf "variables.%sRatio" .name -}}
{{- if not .limit -}}
{{ toJson .request }}
{{- else -}}
{{- $amount := printf "quantity(%s).asApproximateFloat() / %s / %s" (toJson .limit) $ratio .unit -}}
({{ $ratio }} >= 1.0 && quantity({{ toJson .limit }}).asApproximateFloat() / quantity({{ toJson .request }}).asApproximateFloat() > {{ $ratio }} ? string(int({{ $amount }}) + (double(int({{ $amount }})) < {{ $amount }} ? 1 : 0)) + "{{ .suffix }}" : {{ toJson .request }})
{{- end -}}
{{- end -}}

{{/* The sidecar's resources: (dict "settings" SETTINGS "limited" BOOL). */}}
{{- define "tokometer.cel.amounts" -}}
{{- $resources := default dict .settings.resources -}}
{{- $limits := merge (dict) (default dict $resources.limits) (ternary (dict "cpu" .settings.guaranteedResources.cpu) dict .limited) -}}
{{- $requests := merge (dict) (default dict $resources.requests) -}}
{{- $units := dict "cpu" (list "0.001" "m") "memory" (list "1048576.0" "Mi") -}}
{{- range $name, $unit := $units -}}
{{- $request := index $requests $name -}}
{{- if $request -}}
{{- $_ := set $requests $name (dict "cel" (include "tokometer.cel.request" (dict "name" $name "request" (toString $request) "limit" (toString (default "" (index $limits $name))) "unit" (first $unit) "suffix" (last $unit)))) -}}
{{- end -}}
{{- end -}}
{{- $amounts := dict -}}
{{- with $limits -}}{{- $_ := set $amounts "limits" . -}}{{- end -}}
{{- with $requests -}}{{- $_ := set $amounts "requests" . -}}{{- end -}}
{{- include "tokometer.cel" (dict "type" "Object.spec.initContainers.resources" "value" $amounts) -}}
{{- end -}}

{{- define "tokometer.cel.resources" -}}
{{- $same := dict "limits" .guaranteedResources "requests" .guaranteedResources -}}
variables.guaranteed
  ? {{ include "tokometer.cel" (dict "type" "Object.spec.initContainers.resources" "value" $same) }}
  : variables.limited
  ? {{ include "tokometer.cel.amounts" (dict "settings" . "limited" true) }}
  : {{ include "tokometer.cel.amounts" (dict "settings" . "limited" false) }}
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
{{- $container := include "tokometer.container.of" (dict "root" .root "settings" $settings) | fromYaml -}}
{{- $type := "Object.spec.initContainers" -}}
{{- $_ := set $container "image" (dict "cel" "variables.image") -}}
{{- $args := "variables.args" -}}
{{- if has $settings.mode (list "port-swap" "uds") -}}
{{- /* An engine on 127.0.0.1 must not become reachable from outside the pod. */}}
{{- $args = `(variables.exposure == "loopback" ? variables.args.map(a, a.replace("=[$(POD_IPS),127.0.0.1]:", "=127.0.0.1:")) : variables.args)` -}}
{{- end -}}
{{- $changesProbes := include "tokometer.probes.change" $settings -}}
{{- if $changesProbes -}}
{{- $args = printf "%s + (variables.direct ? [%s] : [])" $args (printf "--set=process.probe_file=%s" (include "tokometer.probes.program" .) | toJson) -}}
{{- end -}}
{{- $_ := set $container "args" (dict "cel" $args) -}}
{{- $_ := unset $container "resources" -}}
{{- range $container.volumeMounts -}}
{{- if eq .name "tokometer-tls" -}}{{- $_ := set . "name" (dict "cel" "variables.certificates[0].name") -}}{{- end -}}
{{- end -}}
{{- if has $settings.mode (list "uds" "shadow-bind") -}}
{{- $_ := set $container.securityContext "runAsUser" (dict "cel" "variables.user") -}}
{{- $_ := set $container.securityContext "runAsNonRoot" (dict "cel" "variables.user != 0") -}}
{{- end -}}
{{- $redirect := include "tokometer.redirect" (dict "root" .root "settings" $settings) | fromYaml -}}
{{- $few := $redirect.resources.requests -}}
{{- $_ := unset $redirect "resources" -}}
{{- $hook := dict "httpGet" (dict "path" "/drain/wait" "port" $admin) -}}
{{- $startup := dict "httpGet" (dict "path" "/engine/healthz" "port" $admin) "periodSeconds" 5 "failureThreshold" 720 "timeoutSeconds" 2 -}}
{{- if $settings.drain.enabled -}}{{- $_ := set $startup "terminationGracePeriodSeconds" (dict "cel" "variables.probeGrace") -}}{{- end -}}
{{- $probe := dict "httpGet" (dict "path" "/engine/healthz" "port" $admin) "periodSeconds" $settings.engineLiveness.periodSeconds "failureThreshold" $settings.engineLiveness.failureThreshold "timeoutSeconds" 2 -}}
{{- if $settings.drain.enabled -}}{{- $_ := set $probe "terminationGracePeriodSeconds" (dict "cel" "variables.probeGrace") -}}{{- end -}}
// Left unchanged, with the reason.
variables.reason != ""
? (has(object.metadata.annotations) ? [] : [JSONPatch{op: "add", path: "/metadata/annotations", value: Object.metadata.annotations{}}])
+ [JSONPatch{op: "add", path: "/metadata/annotations/" + jsonpatch.escapeKey("tokometer/skipped"), value: variables.reason}]
// A reason from before another plugin changed the pod.
: (has(object.metadata.annotations) && "tokometer/skipped" in object.metadata.annotations
  ? [JSONPatch{op: "remove", path: "/metadata/annotations/" + jsonpatch.escapeKey("tokometer/skipped")}]
  : [])
{{- if $settings.drain.enabled }}
{{- $needed := add (int $settings.drain.timeoutSeconds) 30 }}
// Containers that are killed because a probe failed keep the grace period that the pod had.
+ (variables.grace >= {{ $needed }} ? [] : [JSONPatch{op: "add", path: "/spec/terminationGracePeriodSeconds", value: {{ $needed }}}]
{{- range $list := list "initContainers" "containers" }}
{{- range $probe := list "livenessProbe" "startupProbe" }}
  + (has(object.spec.{{ $list }}) ? object.spec.{{ $list }} : []).filter(c, has(c.{{ $probe }}) && !has(c.{{ $probe }}.terminationGracePeriodSeconds))
    .map(c, JSONPatch{op: "add", path: "/spec/{{ $list }}/" + string(object.spec.{{ $list }}.map(o, o.name).indexOf(c.name)) + "/{{ $probe }}/terminationGracePeriodSeconds", value: variables.probeGrace})
{{- end }}
{{- end }})
{{- end }}
{{- if eq $settings.mode "port-swap" }}
{{- $parts := list }}
{{- range $probe := list "livenessProbe" "startupProbe" }}
{{- range $kind := list "httpGet" "tcpSocket" "grpc" }}
{{- $port := printf "variables.container.%s.%s.port" $probe $kind }}
{{- $is := printf "dyn(%s) == dyn(%d) || variables.ports.exists(p, has(p.name) && dyn(p.name) == dyn(%s) && p.containerPort == %d)" $port (int $settings.port) $port (int $settings.port) }}
{{- $parts = append $parts (printf "(has(variables.container.%s) && has(variables.container.%s.%s) && (%s)\n    ? [JSONPatch{op: \"replace\", path: variables.path + \"/%s/%s/port\", value: %s}] : [])" $probe $probe $kind $is $probe $kind (include "tokometer.serverPort" $settings)) }}
{{- end }}
{{- end }}
// Probes that restart the engine reach the engine itself, so that tokometer's state does not restart it.
+ (variables.exposure != "pod" ? [] : {{ join "\n  + " $parts }})
{{- end }}
// The sidecar, in front of all other init containers.
+ (has(object.spec.initContainers) ? [] : [JSONPatch{op: "add", path: "/spec/initContainers", value: []}])
+ [JSONPatch{op: "add", path: "/spec/initContainers/0", value: {{ include "tokometer.cel.lines" (dict "type" $type "value" $container) }}}]
// Resources that keep the pod's QoS class and its limits' ratios; those of the pod itself are for all containers.
+ (has(object.spec.resources) ? [] : [JSONPatch{op: "add", path: "/spec/initContainers/0/resources", value: {{ include "tokometer.cel.resources" $settings }}}])
{{- if $changesProbes }}
// Its program, for probes of the engine that do not go through it.
{{- include "tokometer.probes.patch" . }}
{{- $mount := dict "name" (include "tokometer.probes.volume" .) "mountPath" (include "tokometer.probes.folder" .) }}
+ (!variables.direct ? []
  : {{ if not $container.volumeMounts }}[JSONPatch{op: "add", path: "/spec/initContainers/0/volumeMounts", value: []}]
  + {{ end }}[JSONPatch{op: "add", path: "/spec/initContainers/0/volumeMounts/-", value: {{ include "tokometer.cel" (dict "type" (printf "%s.volumeMounts" $type) "value" $mount) }}}])
{{- end }}
{{- if eq $settings.mode "redirect" }}
+ [JSONPatch{op: "add", path: "/spec/initContainers/0", value: {{ include "tokometer.cel.lines" (dict "type" $type "value" $redirect) }}}]
+ (has(object.spec.resources) ? [] : [JSONPatch{op: "add", path: "/spec/initContainers/0/resources", value: variables.guaranteed || variables.limited
  ? {{ include "tokometer.cel" (dict "type" (printf "%s.resources" $type) "value" (dict "limits" $few "requests" $few)) }}
  : {{ include "tokometer.cel" (dict "type" (printf "%s.resources" $type) "value" (dict "requests" $few)) }}}])
{{- end }}
{{- with $interception.env }}
{{- $value := toJson .value }}
{{- if and (eq $settings.mode "port-swap") (hasPrefix "0.0.0.0:" .value) }}{{- $value = printf "variables.exposure == \"loopback\" ? %s : %s" (replace "0.0.0.0" "127.0.0.1" .value | toJson) (toJson .value) }}{{- end }}
{{- $variable := include "tokometer.cel" (dict "type" "Object.spec.containers.env" "value" (dict "name" .name "value" (dict "cel" $value))) }}
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
{{- if $changesProbes }}
// Volumes that the engine shares with tokometer.
+ ({{ if ne $settings.mode "uds" }}!variables.direct || {{ end }}has(variables.container.volumeMounts) ? [] : [JSONPatch{op: "add", path: variables.path + "/volumeMounts", value: []}])
{{- end }}
{{- if eq $settings.mode "uds" }}
+ [JSONPatch{op: "add", path: variables.path + "/volumeMounts/-", value: {{ include "tokometer.cel" (dict "type" "Object.spec.containers.volumeMounts" "value" (dict "name" "tokometer-socket" "mountPath" (include "tokometer.socket" $settings | dir))) }}}]
{{- end }}
{{- if $changesProbes }}
{{- $mount := dict "name" (include "tokometer.probes.volume" .) "mountPath" (include "tokometer.probes.folder" .) "readOnly" true }}
+ (variables.direct ? [JSONPatch{op: "add", path: variables.path + "/volumeMounts/-", value: {{ include "tokometer.cel" (dict "type" "Object.spec.containers.volumeMounts" "value" $mount) }}}] : [])
{{- end }}
{{- if or $settings.config $changesProbes }}
+ ({{ if and (not $settings.config) (ne $settings.mode "uds") }}!variables.direct || {{ end }}has(object.spec.volumes) ? [] : [JSONPatch{op: "add", path: "/spec/volumes", value: []}])
{{- end }}
{{- if eq $settings.mode "uds" }}
+ [JSONPatch{op: "add", path: "/spec/volumes/-", value: Object.spec.volumes{name: "tokometer-socket", emptyDir: Object.spec.volumes.emptyDir{}}}]
{{- end }}
{{- if $changesProbes }}
+ (variables.direct ? [JSONPatch{op: "add", path: "/spec/volumes/-", value: Object.spec.volumes{name: {{ include "tokometer.probes.volume" . | toJson }}, emptyDir: Object.spec.volumes.emptyDir{medium: "Memory"}}}] : [])
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

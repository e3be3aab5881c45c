{{/* Liveness and startup probes of the engine that reach the engine itself, so that no state of tokometer restarts it: the probes run a
     copy of tokometer's program in the engine's container. */}}

{{/* Whether the mode changes them: "true" or empty. In the other modes, they do not go through tokometer, or (redirect) the engine may not
     be reachable on 127.0.0.1. Input: settings. */}}
{{- define "tokometer.probes.change" -}}
{{- if has .mode (list "address-split" "uds" "shadow-bind") -}}true{{- end -}}
{{- end -}}

{{/* The volume with the program. */}}
{{- define "tokometer.probes.volume" -}}tokometer-probe{{- end -}}
{{- define "tokometer.probes.folder" -}}/run/tokometer-probe{{- end -}}
{{- define "tokometer.probes.program" -}}{{ include "tokometer.probes.folder" . }}/tokometer{{- end -}}

{{/* The timeout of a probe, as CEL. Input: a CEL expression. */}}
{{- define "tokometer.probes.timeout" -}}
(has({{ . }}.timeoutSeconds) && {{ . }}.timeoutSeconds > 0 ? int({{ . }}.timeoutSeconds) : 1)
{{- end -}}

{{/* The command in place of a probe, as CEL list of commands: (dict "settings" SETTINGS "probe" CEL). It is empty for a probe that does
     not go through tokometer: of another port, or with a host. The kubelet expands variables in a command, but not in httpGet. */}}
{{- define "tokometer.probes.command" -}}
{{- $probe := .probe -}}
{{- $ports := list (int .settings.port) -}}
{{- range .settings.extraPorts -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- $rest := printf `["--timeout=" + string(%s) + "s"]` (include "tokometer.probes.timeout" $probe) -}}
{{- if eq .settings.mode "uds" -}}{{- $rest = printf "%s + [%s]" $rest (printf "--socket=%s" (include "tokometer.socket" .) | toJson) -}}{{- end -}}
!has({{ $probe }}) || variables.exposure != "pod" ? []
{{- range $kind := list "httpGet" "tcpSocket" }}
{{- $action := printf "%s.%s" $probe $kind }}
: has({{ $action }}) ? (has({{ $action }}.host) && {{ $action }}.host != "" ? [] : {{ toJson $ports }}
.filter(n, dyn(n) == dyn({{ $action }}.port) || variables.ports.exists(p, has(p.name) && dyn(p.name) == dyn({{ $action }}.port) && p.containerPort == n))
.map(n, ([{{ include "tokometer.probes.program" . | toJson }}, "probe",
{{- if eq $kind "httpGet" }}
(has({{ $action }}.scheme) && {{ $action }}.scheme == "HTTPS" ? "https" : "http") + "://127.0.0.1:" + string(n)
+ (has({{ $action }}.path) ? ({{ $action }}.path.startsWith("/") ? "" : "/") + {{ $action }}.path : "/")] + {{ $rest }}
+ (has({{ $action }}.httpHeaders) ? {{ $action }}.httpHeaders.map(h, "--header=" + h.name + ": " + (has(h.value) ? h.value : "")) : []))
{{- else }}
"tcp://127.0.0.1:" + string(n)] + {{ $rest }})
{{- end }}
.map(w, w.replace("$", "$$"))))
{{- end }}
: []
{{- end -}}

{{/* The changes of the engine's container, as CEL. */}}
{{- define "tokometer.probes.patch" -}}
{{- range $name := list "livenessProbe" "startupProbe" }}
{{- $probe := printf "variables.container.%s" $name }}
+ (size(variables.{{ $name }}) == 0 ? []
  : [JSONPatch{op: "remove", path: variables.path + "/{{ $name }}/" + (has({{ $probe }}.httpGet) ? "httpGet" : "tcpSocket")},
     JSONPatch{op: "add", path: variables.path + "/{{ $name }}/exec", value: Object.spec.containers.{{ $name }}.exec{command: variables.{{ $name }}[0]}},
     JSONPatch{op: "add", path: variables.path + "/{{ $name }}/timeoutSeconds", value: {{ include "tokometer.probes.timeout" $probe }} + 2}])
{{- end }}
{{- end -}}

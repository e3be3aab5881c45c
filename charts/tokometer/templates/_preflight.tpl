{{/* The checks before a pod is changed, in CEL. files/preflight.yaml has the texts; `tokometer inject` makes the same checks. */}}

{{/* A reason or warning as CEL string: (dict "context" CONTEXT "kind" "reasons" "name" NAME). */}}
{{- define "tokometer.preflight.text" -}}
{{- $settings := .context.settings -}}
{{- $text := index (index (.context.root.Files.Get "files/preflight.yaml" | fromYaml) .kind) .name -}}
{{- $values := dict "secret" .context.settings.tlsSecret "port" (toString (int $settings.port)) "admin" (toString (int $settings.adminPort)) "mode" $settings.mode "container" $settings.container "flag" (include "tokometer.preflight.flag" .context) "portFlag" (include "tokometer.preflight.portFlag" .context) -}}
{{- range $key, $value := $values -}}{{- $text = replace (printf "{%s}" $key) $value $text -}}{{- end -}}
{{- toJson $text -}}
{{- end -}}

{{/* The flag that the mode sets; empty where it sets none. */}}
{{- define "tokometer.preflight.flag" -}}
{{- with .interception.args -}}{{- first . | splitList "=" | first -}}{{- else -}}its flags{{- end -}}
{{- end -}}

{{/* The flag of the engine's port; empty where it has none. */}}
{{- define "tokometer.preflight.portFlag" -}}
{{- with (index (include "tokometer.engine" . | fromYaml) .settings.engine).port -}}{{- with .args -}}{{- first . | splitList "=" | first -}}{{- end -}}{{- end -}}
{{- end -}}

{{/* The ports that a probe may use: those that tokometer forwards, and that of its own pages; as CEL list. */}}
{{- define "tokometer.preflight.ports" -}}
{{- $ports := list (int .settings.port) (int .settings.adminPort) -}}
{{- range .settings.extraPorts -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* Variables of a policy, after a variable `pod` with the pod's specification. `reason` is why the pod is left unchanged, or empty. */}}
{{- define "tokometer.preflight.variables" -}}
{{- $starts := list -}}
{{- $files := .root.Files.Get "files/preflight.yaml" | fromYaml -}}
{{- range (default list (index $files.starts .settings.engine)) -}}{{- $starts = append $starts (printf "%s " .) -}}{{- end -}}
{{- $flag := include "tokometer.preflight.flag" . -}}
{{- $value := `(\x22[^\x22\s]*\x22|\x27[^\x27\s]*\x27|[\w.:\[\]${}-]+)` -}}
- name: index
  expression: {{ include "tokometer.cel.engine" . | quote }}
- name: container
  expression: variables.pod.containers[variables.index]
- name: containers
  expression: "(has(variables.pod.initContainers) ? variables.pod.initContainers : []) + variables.pod.containers"
- name: words
  expression: "(has(variables.container.command) ? variables.container.command : []) + (has(variables.container.args) ? variables.container.args : [])"
# Words that are the text of a shell and start the engine.
- name: texts
  expression: {{ printf "variables.words.filter(w, %s.exists(s, w.contains(s)))" (toJson $starts) | quote }}
- name: starts
  expression: {{ printf "%s.filter(s, variables.texts.exists(w, w.contains(s)))" (toJson $starts) | quote }}
- name: head
  expression: 'size(variables.texts) == 0 ? "" : variables.texts[0].substring(0, variables.texts[0].indexOf(variables.starts[0]))'
- name: rest
  expression: 'size(variables.texts) == 0 ? "" : variables.texts[0].substring(size(variables.head))'
# The other words of a shell command are its parameters, which the text may pass on as $@.
- name: line
  expression: 'variables.rest + " " + variables.words.filter(w, size(variables.texts) == 0 || w != variables.texts[0]).join(" ")'
- name: ports
  expression: 'has(variables.container.ports) ? variables.container.ports.filter(p, !has(p.protocol) || p.protocol == "TCP") : []'
# Whether its command line, or a variable that may be part of it, has a flag for TLS.
- name: tls
  expression: >-
    {{ toJson $files.tls }}.exists(f, variables.line.contains(f)
    || has(variables.container.env) && variables.container.env.exists(e, has(e.value) && e.value.contains(f)))
{{- with .settings.tlsSecret }}
# The volumes with the engine's certificate.
- name: certificates
  expression: >-
    (has(variables.pod.volumes) ? variables.pod.volumes : []).filter(v, has(v.secret) && has(v.secret.secretName) && !has(v.secret.items)
    && {{ if hasPrefix "*" . }}v.secret.secretName.endsWith({{ trimPrefix "*" . | toJson }}){{ else }}v.secret.secretName == {{ toJson . }}{{ end }})
{{- end }}
{{- if include "tokometer.givesFlags" . }}
# Whether arguments of the container may not reach the engine.
- name: indirect
  expression: >-
    has(variables.container.command)
    ? variables.container.command.exists(w, w.matches("^(.*/)?(sh|bash|ash|dash|zsh|ksh|busybox)$"))
    || variables.container.command[0].endsWith(".sh") || variables.container.command[0].contains(" ")
    : has(variables.container.args) && variables.container.args[0].matches("^-l?c$")
- name: flagged
  expression: {{ printf "variables.line.matches(r'(^|[\\s\\x22\\x27])%s([=\\s\\x22\\x27]|$)')" $flag | quote }}
# The flag in the text of a shell, with its value.
- name: found
  expression: {{ printf "variables.rest.findAll(r'%s[= ]+%s')" $flag $value | quote }}
- name: engineArgs
  {{- if .interception.flag }}
  expression: {{ printf "variables.flagged ? %s : %s" (concat .interception.args .interception.more | toJson) (toJson .interception.more) | quote }}
  {{- else }}
  expression: {{ concat .interception.args .interception.more | toJson | quote }}
  {{- end }}
- name: changedText
  expression: >-
    variables.head + (size(variables.found) == 0 ? variables.rest : variables.rest.replace(variables.found[0], ""))
    .replace(variables.starts[0], variables.starts[0] + variables.engineArgs.join(" ") + " ")
- name: textPath
  expression: >-
    has(variables.container.command) && variables.container.command.exists(w, w == variables.texts[0])
    ? "/command/" + string(variables.container.command.map(w, w == variables.texts[0]).indexOf(true))
    : "/args/" + string(variables.container.args.map(w, w == variables.texts[0]).indexOf(true))
{{- end }}
- name: reason
  expression: |-
    {{- include "tokometer.preflight.reason" . | nindent 4 }}
{{- end -}}

{{/* The reason: the first check that applies. */}}
{{- define "tokometer.preflight.reason" -}}
{{- $context := . -}}
{{- $settings := .settings -}}
{{- $flag := include "tokometer.preflight.flag" . -}}
{{- $portFlag := include "tokometer.preflight.portFlag" . -}}
{{- $ports := include "tokometer.preflight.ports" . -}}
{{- $hides := has $settings.mode (list "address-split" "uds") -}}
{{- $declared := printf "variables.ports.exists(p, p.containerPort == %d)" (int $settings.port) -}}
{{- $checks := list
  (list "windows" `has(variables.pod.os) && variables.pod.os.name == "windows"`)
  (list "host-network" "has(variables.pod.hostNetwork) && variables.pod.hostNetwork")
  (list "admin-port" (printf "variables.containers.exists(c, has(c.ports) && c.ports.exists(p, p.containerPort == %d))" (int $settings.adminPort)))
  (list (ternary "engine-name" "engine-port" (ne $settings.container "")) "variables.index < 0")
-}}
{{- if ne $settings.engine "dynamo" -}}
{{- $dynamo := `variables.line.matches(r'(^|\s)[\x22\x27]*dynamo\.')` -}}
{{- if not (include "tokometer.needs" $settings) -}}{{- $dynamo = printf `%s && !variables.line.contains("dynamo.frontend")` $dynamo -}}{{- end -}}
{{- $checks = append $checks (list "dynamo" $dynamo) -}}
{{- end -}}
{{- if include "tokometer.needs" $settings -}}
{{- $checks = append $checks (list "kserve" `has(variables.container.image) && variables.container.image.contains("huggingfaceserver")`) -}}
{{- end -}}
{{- if not (has $settings.mode (list "port-swap" "explicit" "tap")) -}}
{{- $checks = append $checks (list "proxy" `variables.containers.exists(c, c.name == "routing-proxy" || has(c.image) && c.image.contains("llm-d-routing-sidecar"))`) -}}
{{- end -}}
{{- if eq $settings.mode "tap" -}}{{- $checks = append $checks (list "tls-tap" "variables.tls") -}}{{- end -}}
{{- if ne $settings.mode "uds" -}}
{{- $checks = append $checks (list "socket" `variables.line.matches(r'(^|[\s\x22\x27])--uds([=\s\x22\x27]|$)')`) -}}
{{- end -}}
{{- $given := "false" -}}
{{- with $portFlag -}}
{{- $values := printf `variables.line.findAll(r'%s[= ]+\S*')` . -}}
{{- $given = printf "size(%s) > 0" $values -}}
{{- $is := printf `f.matches(r'^%s[= ]+[\x22\x27]?%d([\x22\x27;\\].*)?$')` . (int $settings.port) -}}
{{- $variable := printf `f.matches(r'^%s[= ]+[\x22\x27]?[$]') && %s` . $declared -}}
{{- $checks = append $checks (list "port" (printf "!%s.all(f, %s || %s)" $values $is $variable)) -}}
{{- end -}}
{{- $checks = append $checks (list "declared" (printf "size(variables.ports) > 0 && !(%s) && !%s" $given $declared)) -}}
{{- if $hides -}}
{{- if has $settings.engine (list "vllm" "sglang") -}}
{{- $last := int $settings.port -}}
{{- range $settings.extraPorts -}}{{- $last = max $last (int .) -}}{{- end -}}
{{- $ranks := printf "variables.ports.exists(p, p.containerPort == %d)" (add 1 $last) -}}
{{- if not $settings.extraPorts -}}{{- $ranks = printf "%s || variables.line.contains(\"--data-parallel-multi-port-external-lb\")" $ranks -}}{{- end -}}
{{- $checks = append $checks (list "ranks" $ranks) -}}
{{- end -}}
{{- $probes := list -}}
{{- range $probe := list "startupProbe" "livenessProbe" "readinessProbe" -}}
{{- range $kind := list "httpGet" "tcpSocket" "grpc" -}}
{{- $port := printf "variables.container.%s.%s.port" $probe $kind -}}
{{- $probes = append $probes (printf "has(variables.container.%s) && has(variables.container.%s.%s) && !(%s.exists(p, dyn(p) == dyn(%s)) || variables.ports.exists(p, has(p.name) && dyn(p.name) == dyn(%s) && p.containerPort in %s))" $probe $probe $kind $ports $port $port $ports) -}}
{{- end -}}
{{- end -}}
{{- $checks = append $checks (list "probe" (join "\n  || " $probes)) -}}
{{- end -}}
{{- if $settings.tlsSecret -}}
{{- $readable := "(has(variables.certificates[0].secret.defaultMode) ? variables.certificates[0].secret.defaultMode : 420) % 8 >= 4" -}}
{{- $checks = concat $checks (list
  (list "tls-none" "!variables.tls")
  (list "tls-client" `variables.line.matches(r'--ssl-cert-reqs[= ]+[\x22\x27]*[2$]')`)
  (list "tls-volume" "size(variables.certificates) == 0")
  (list "tls-unreadable" (printf "!(%s || has(variables.pod.securityContext) && has(variables.pod.securityContext.fsGroup))" $readable))
) -}}
{{- end -}}
{{- if has $settings.mode (list "uds" "shadow-bind") -}}
{{- $user := include "tokometer.cel.context" (dict "container" "variables.container" "name" "runAsUser" "else" "-1") -}}
{{- $nonRoot := include "tokometer.cel.context" (dict "container" "variables.container" "name" "runAsNonRoot" "else" "false") -}}
{{- $checks = append $checks (list "user" (printf "%s < 0 && %s" $user $nonRoot)) -}}
{{- end -}}
{{- if include "tokometer.givesFlags" . -}}
{{- $needed := ternary "variables.flagged && " "" (and (not (empty .interception.env)) (empty .interception.more)) -}}
{{- $shell := printf "%ssize(variables.texts) > 0" $needed -}}
{{- $words := printf "variables.words.exists(w, w != variables.texts[0] && (w == %s || w.startsWith(%s)))" (toJson $flag) (printf "%s=" $flag | toJson) -}}
{{- $env := printf "has(variables.container.env) && variables.container.env.exists(e, has(e.value) && e.value.contains(%s))" (toJson $flag) -}}
{{- $value := `(\x22[^\x22\s]*\x22|\x27[^\x27\s]*\x27|[\w.:\[\]${}-]+)` -}}
{{- $odd := printf `size(variables.rest.findAll(r'%s[= ]')) != size(variables.rest.findAll(r'%s[= ]+%s([\s\x22\x27\\;]|$)'))` $flag $flag $value -}}
{{- $differ := `variables.found.exists(f, f != variables.found[0])` -}}
{{- $before := printf `variables.head.matches(r'%s[= ]')` $flag -}}
{{- $other := `size(variables.found) > 0 && variables.rest.substring(0, variables.rest.indexOf(variables.found[0])).replace("\\\n", "").matches(r'[;&|\n]')` -}}
{{- $unsafe := false -}}
{{- range .interception.more -}}{{- if not (regexMatch `^[A-Za-z0-9_=./:,@%+-]+$` .) -}}{{- $unsafe = true -}}{{- end -}}{{- end -}}
{{- $checks = concat $checks (list
  (list "command" (printf "%s!has(variables.container.command) && !has(variables.container.args)" $needed))
  (list "shell-start" (printf "%ssize(variables.texts) == 0 && variables.indirect" $needed))
  (list "shell-several" (printf "%s && (size(variables.texts) > 1 || size(variables.starts) > 1)" $shell))
) -}}
{{- if $unsafe -}}{{- $checks = append $checks (list "shell-args" $shell) -}}{{- end -}}
{{- if .interception.args -}}
{{- $checks = concat $checks (list
  (list "shell-outside" (printf "%s && (%s || %s)" $shell $words $env))
  (list "shell-flag" (printf "%s && (%s || %s || %s || %s)" $shell $odd $differ $before $other))
) -}}
{{- end -}}
{{- with .interception.once -}}{{- $checks = append $checks (list "once" "size(variables.texts) == 0 && variables.flagged") -}}{{- end -}}
{{- end -}}
{{- range $checks -}}
({{ index . 1 }})
? {{ include "tokometer.preflight.text" (dict "context" $context "kind" "reasons" "name" (index . 0)) }} :
{{ end -}}
""
{{- end -}}

{{/* Names of the reasons that a policy may give. */}}
{{- define "tokometer.preflight.reasons" -}}
{{- $made := include "tokometer.preflight.reason" . -}}
{{- $context := . -}}
{{- $names := list -}}
{{- range $name, $_ := (.root.Files.Get "files/preflight.yaml" | fromYaml).reasons -}}
{{- if contains (printf "? %s :" (include "tokometer.preflight.text" (dict "context" $context "kind" "reasons" "name" $name))) $made -}}{{- $names = append $names $name -}}{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

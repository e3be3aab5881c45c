{{/* The checks before a pod is changed, in CEL. files/preflight.yaml has the texts; `tokometer inject` makes the same checks. */}}

{{/* A reason or warning as CEL string: (dict "context" CONTEXT "kind" "reasons" "name" NAME). */}}
{{- define "tokometer.preflight.text" -}}
{{- $settings := .context.settings -}}
{{- $text := index (index (.context.root.Files.Get "files/preflight.yaml" | fromYaml) .kind) .name -}}
{{- $values := dict "secret" .context.settings.tlsSecret "port" (toString (int $settings.port)) "admin" (toString (int $settings.adminPort)) "mode" $settings.mode "container" $settings.container "flag" (include "tokometer.preflight.flag" .context) "portFlag" (include "tokometer.preflight.portFlag" .context) "host" (include "tokometer.preflight.host" .context) "moved" (include "tokometer.serverPort" $settings) -}}
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

{{/* The flag or variable of the engine's address. */}}
{{- define "tokometer.preflight.host" -}}
{{- $host := (index (include "tokometer.engine" . | fromYaml) .settings.engine).host -}}
{{- if $host.args -}}{{- first $host.args | splitList "=" | first -}}{{- else -}}{{- default "--host" $host.env.name -}}{{- end -}}
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
{{- $quoting := printf `^\s*(%s)` (include "tokometer.preflight.quoting" $files) -}}
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
# The command of a shell that starts the engine, in each word that is the text of a shell. Commands that print text are left out.
- name: commands
  expression: >-
    variables.words.map(w, (w.replace(";", "\n").replace("&", "\n").replace("|", "\n").split("\n")
    .filter(c, !c.matches({{ $quoting | toJson }}) && {{ toJson $starts }}.exists(s, c.contains(s))) + [""])[0])
# Words that are the text of a shell and start the engine.
- name: texts
  expression: variables.words.filter(w, variables.commands[variables.words.indexOf(w)] != "")
- name: command
  expression: 'size(variables.texts) == 0 ? "" : variables.commands.filter(c, c != "")[0]'
- name: starts
  expression: {{ printf "%s.filter(s, variables.texts.exists(w, w.contains(s)))" (toJson $starts) | quote }}
- name: head
  expression: >-
    size(variables.texts) == 0 ? "" : variables.texts[0].substring(0, ("\n" + variables.texts[0].replace(";", "\n").replace("&", "\n").replace("|", "\n")).indexOf("\n" + variables.command)
    + variables.starts.map(s, variables.command.indexOf(s)).filter(i, i >= 0)[0])
- name: rest
  expression: 'size(variables.texts) == 0 ? "" : variables.texts[0].substring(size(variables.head))'
# The other words of a shell command are its parameters, which the text may pass on as $@.
- name: plain
  expression: 'variables.words.filter(w, !w.matches(r"\s")).join(" ") + " "'
- name: line
  expression: 'variables.rest + " " + variables.words.filter(w, size(variables.texts) == 0 || w != variables.texts[0]).join(" ")'
- name: env
  expression: "has(variables.container.env) ? variables.container.env : []"
# The address in the container, in each place that may set it: "pod", "loopback" or "unknown".
- name: hosts
  expression: >-
    {{- include "tokometer.preflight.hosts" . | nindent 4 }}
- name: exposure
  expression: >-
    {{- include "tokometer.preflight.exposure" . | nindent 4 }}
- name: ports
  expression: 'has(variables.container.ports) ? variables.container.ports.filter(p, !has(p.protocol) || p.protocol == "TCP") : []'
{{- if include "tokometer.probes.change" .settings }}
{{- range $probe := list "livenessProbe" "startupProbe" }}
# The command that replaces the engine's {{ $probe }}: a list of one command, or empty.
- name: {{ $probe }}
  expression: >-
    {{- include "tokometer.probes.command" (dict "settings" $.settings "probe" (printf "variables.container.%s" $probe)) | nindent 4 }}
{{- end }}
- name: direct
  expression: size(variables.livenessProbe) + size(variables.startupProbe) > 0
{{- end }}
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
# Whether arguments of the container may not reach the engine.
- name: indirect
  expression: >-
    has(variables.container.command)
    ? variables.container.command.exists(w, w.matches("^(.*/)?(sh|bash|ash|dash|zsh|ksh|busybox)$"))
    || variables.container.command[0].endsWith(".sh") || variables.container.command[0].contains(" ")
    : has(variables.container.args) && variables.container.args[0].matches("^-l?c$")
# Whether the container has a command, or arguments in its place, that is not known to start the engine's server.
- name: another
  expression: >-
    {{- include "tokometer.preflight.another" (dict "settings" .settings "files" $files "starts" $starts) | nindent 4 }}
{{- if include "tokometer.givesFlags" . }}
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

{{/* Whether the namespace enforces a Pod Security level that rejects what the mode adds; as CEL. */}}
{{- define "tokometer.preflight.podSecurity" -}}
{{- $mode := .settings.mode -}}
{{- $level := `has(namespaceObject.metadata.labels) && "pod-security.kubernetes.io/enforce" in namespaceObject.metadata.labels && namespaceObject.metadata.labels["pod-security.kubernetes.io/enforce"] in %s` -}}
{{- if has $mode (list "redirect" "tap") -}}{{- printf $level `["baseline", "restricted"]` -}}
{{- else if has $mode (list "uds" "shadow-bind") -}}{{- printf $level `["restricted"]` }} && {{ include "tokometer.cel.context" (dict "container" "variables.container" "name" "runAsUser" "else" (toString (int .settings.engineUser))) }} == 0
{{- end -}}
{{- end -}}

{{/* Whether the command line has one of these flags, or flags with a value; as CEL. Input: a list. */}}
{{- define "tokometer.preflight.flags" -}}
{{- $found := list -}}
{{- range . -}}
{{- $parts := splitn "=" 2 . -}}
{{- if $parts._1 -}}
{{- $found = append $found (printf `variables.line.matches(r'(^|[\s\x22\x27])%s[= ]+[\x22\x27]?(%s([\s\x22\x27]|$)|[$])')` $parts._0 $parts._1) -}}
{{- else -}}
{{- $found = append $found (printf `variables.line.matches(r'(^|[\s\x22\x27])%s([=\s\x22\x27]|$)')` .) -}}
{{- end -}}
{{- end -}}
{{- join " || " $found -}}
{{- end -}}

{{/* Shell commands that print text, as a regular expression. Input: files/preflight.yaml. */}}
{{- define "tokometer.preflight.quoting" -}}
{{- $words := list -}}
{{- range .quoting -}}{{- $words = append $words (ternary "#" (printf `%s(\s|$)` .) (eq . "#")) -}}{{- end -}}
{{- join "|" $words -}}
{{- end -}}

{{/* Whether the container has a command, or arguments in its place, that is not known to start the engine's server:
     (dict "settings" SETTINGS "files" FILES "starts" STARTS). */}}
{{- define "tokometer.preflight.another" -}}
{{- $direct := list -}}
{{- range (default list (index .files.direct .settings.engine)) -}}{{- $direct = append $direct (printf "%s " .) -}}{{- end -}}
{{- $quoting := printf `^\s*(%s)` (include "tokometer.preflight.quoting" .files) -}}
(has(variables.container.command) || variables.indirect
|| has(variables.container.args) && variables.container.args[0].matches({{ printf `^(.*/)?(%s)$` (join "|" .files.programs) | toJson }}))
&& (!({{ with $direct }}{{ toJson . }}.exists(s, variables.plain.contains(s)) || {{ end }}([variables.plain] + variables.words.filter(w, w.matches(r'\s')).map(w, w + " "))
.exists(w, w.replace(";", "\n").replace("&", "\n").replace("|", "\n").split("\n").exists(c, !c.matches({{ toJson $quoting }}) && {{ toJson .starts }}.exists(s, c.contains(s)))))
|| {{ toJson .files.not_servers }}.exists(o, variables.plain.contains(o)))
{{- end -}}

{{/* The class of an address, as CEL text: "pod", "loopback" or "unknown". Input: a CEL expression. */}}
{{- define "tokometer.preflight.address" -}}
({{ . }}.matches(r'^(https?://)?((0[.]0[.]0[.]0|::|\[::\]|[*])(:[0-9]+)?|:[0-9]+)$') ? "pod" : {{ . }}.matches(r'^(https?://)?(127[.]0[.]0[.]1|localhost)(:[0-9]+)?$') ? "loopback" : "unknown")
{{- end -}}

{{/* The same of a variable of a container. Input: a CEL expression. */}}
{{- define "tokometer.preflight.variable" -}}
(has({{ . }}.value) ? {{ include "tokometer.preflight.address" (printf "%s.value" .) }} : has({{ . }}.valueFrom) && has({{ . }}.valueFrom.fieldRef) && {{ . }}.valueFrom.fieldRef.fieldPath in ["status.podIP", "status.podIPs", "status.hostIP", "metadata.name"] ? "pod" : "unknown")
{{- end -}}

{{/* The classes of the addresses that the engine's flag has, in the command line and in variables, as CEL list. */}}
{{- define "tokometer.preflight.hosts" -}}
{{- $host := (index (include "tokometer.engine" . | fromYaml) .settings.engine).host -}}
{{- $flag := ternary "" "--host" (and (not (empty $host)) (empty $host.args)) -}}
{{- with $host -}}{{- with .args -}}{{- $flag = first . | splitList "=" | first -}}{{- end -}}{{- end -}}
{{- if not $flag -}}
[]
{{- else -}}
([variables.line] + variables.env.filter(e, has(e.value)).map(e, e.value)).join("\n").findAll(r'{{ $flag }}[= ]+(\x22[^\x22\s]*\x22|\x27[^\x27\s]*\x27|\S+)')
.map(f, f.substring({{ len $flag }}).replace("=", "").replace(" ", "").replace("\"", "").replace("'", "").replace(";", "").replace("\\", ""))
.map(h, [h, h.startsWith("$") ? h.replace("$", "").replace("{", "").replace("}", "").replace("(", "").replace(")", "") : ""])
.map(h, h[1] == "" ? {{ include "tokometer.preflight.address" "h[0]" }}
: variables.env.exists(e, e.name == h[1].split(":-")[0]) ? variables.env.filter(e, e.name == h[1].split(":-")[0]).map(e, {{ include "tokometer.preflight.variable" "e" }})[0]
: h[1].contains(":-") ? {{ include "tokometer.preflight.address" `h[1].split(":-")[1]` }} : h[1] in ["HOSTNAME", "hostname"] ? "pod" : "unknown")
{{- end -}}
{{- end -}}

{{/* The class of the address on which the engine listens, as CEL text. */}}
{{- define "tokometer.preflight.exposure" -}}
{{- $files := .root.Files.Get "files/preflight.yaml" | fromYaml -}}
{{- $host := (index (include "tokometer.engine" . | fromYaml) .settings.engine).host -}}
{{- $variables := list -}}
{{- with $host -}}{{- with .env -}}{{- $variables = append $variables .name -}}{{- end -}}{{- with .variable -}}{{- $variables = append $variables . -}}{{- end -}}{{- end -}}
size(variables.hosts) > 0 ? (variables.hosts.all(h, h == variables.hosts[0]) ? variables.hosts[0] : "unknown")
: variables.line.matches(r'(^|[\s\x22\x27])({{ join "|" $files.config_files }})([=\s\x22\x27]|$)') ? "unknown"
: variables.env.exists(e, e.name in {{ toJson $files.host_variables }} && {{ include "tokometer.preflight.variable" "e" }} == "loopback") ? "loopback"
{{- range $variables }}
: variables.env.exists(e, e.name == {{ toJson . }}) ? variables.env.filter(e, e.name == {{ toJson . }}).map(e, {{ include "tokometer.preflight.variable" "e" }})[0]
: has(variables.container.envFrom) && size(variables.container.envFrom) > 0 ? "unknown"
{{- end }}
{{- if not (hasKey $files.loopback .settings.engine) }}
: "pod"
{{- else }}
{{- $images := list -}}
{{- range index $files.loopback .settings.engine -}}{{- $images = append $images (replace "." "[.]" .) -}}{{- end }}
: {{ with $images }}has(variables.container.image) && variables.container.image.matches(r'(^|/)({{ join "|" . }})[^/]*$') ? "pod" : {{ end }}"loopback"
{{- end }}
{{- end -}}

{{/* The reason: the first check that applies. */}}
{{- define "tokometer.preflight.reason" -}}
{{- $context := . -}}
{{- $settings := .settings -}}
{{- $flag := include "tokometer.preflight.flag" . -}}
{{- $portFlag := include "tokometer.preflight.portFlag" . -}}
{{- $files := .root.Files.Get "files/preflight.yaml" | fromYaml -}}
{{- $ports := include "tokometer.preflight.ports" . -}}
{{- $hides := has $settings.mode (list "address-split" "uds") -}}
{{- $declared := printf "variables.ports.exists(p, p.containerPort == %d)" (int $settings.port) -}}
{{- $checks := list
  (list "windows" `has(variables.pod.os) && variables.pod.os.name == "windows"`)
  (list "host-network" "has(variables.pod.hostNetwork) && variables.pod.hostNetwork")
  (list "admin-port" (printf "variables.containers.exists(c, has(c.ports) && c.ports.exists(p, p.containerPort == %d))" (int $settings.adminPort)))
  (list (ternary "engine-name" "engine-port" (ne $settings.container "")) "variables.index < 0")
-}}
{{- with include "tokometer.preflight.podSecurity" . -}}{{- $checks = append $checks (list "pod-security" .) -}}{{- end -}}
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
{{- if include "tokometer.needs" $settings -}}{{- $checks = append $checks (list "start" "variables.another") -}}{{- end -}}
{{- if not (has $settings.mode (list "redirect" "tap")) -}}
{{- with index $files.register $settings.engine -}}{{- $checks = append $checks (list "register" (include "tokometer.preflight.flags" .)) -}}{{- end -}}
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
{{- if not (has $settings.mode (list "port-swap" "uds" "tap")) -}}
{{- $checks = append $checks (list "loopback" `variables.exposure == "loopback"`) -}}
{{- else if and $settings.listenHost (ne $settings.mode "tap") -}}
{{- $checks = append $checks (list "loopback" (printf `variables.exposure == "loopback" && !%s.matches(r'^127[.]')` (toJson $settings.listenHost))) -}}
{{- end -}}
{{- if not (has $settings.mode (list "redirect" "tap")) -}}{{- $checks = append $checks (list "address" `variables.exposure == "unknown"`) -}}{{- end -}}
{{- if $hides -}}
{{- if has $settings.engine (list "vllm" "sglang") -}}
{{- $last := int $settings.port -}}
{{- range $settings.extraPorts -}}{{- $last = max $last (int .) -}}{{- end -}}
{{- $ranks := printf "variables.ports.exists(p, p.containerPort == %d)" (add 1 $last) -}}
{{- if not $settings.extraPorts -}}{{- $ranks = printf "%s || variables.line.contains(\"--data-parallel-multi-port-external-lb\")" $ranks -}}{{- end -}}
{{- $checks = append $checks (list "ranks" $ranks) -}}
{{- end -}}
{{- $follow := list -}}
{{- if not $settings.extraPorts -}}{{- with index $files.follow $settings.engine -}}{{- $follow = append $follow (include "tokometer.preflight.flags" .) -}}{{- end -}}{{- end -}}
{{- if not (has $settings.engine $files.alone) -}}
{{- $listed := list (int $settings.port) -}}
{{- range $settings.extraPorts -}}{{- $listed = append $listed (int .) -}}{{- end -}}
{{- $follow = append $follow (printf "variables.ports.exists(p, !(p.containerPort in %s))" (toJson $listed)) -}}
{{- end -}}
{{- with $follow -}}{{- $checks = append $checks (list "follow" (join " || " .)) -}}{{- end -}}
{{- $probes := list -}}
{{- range $probe := list "startupProbe" "livenessProbe" "readinessProbe" -}}
{{- range $kind := list "httpGet" "tcpSocket" "grpc" -}}
{{- $port := printf "variables.container.%s.%s.port" $probe $kind -}}
{{- $probes = append $probes (printf "has(variables.container.%s) && has(variables.container.%s.%s) && !(%s.exists(p, dyn(p) == dyn(%s)) || variables.ports.exists(p, has(p.name) && dyn(p.name) == dyn(%s) && p.containerPort in %s))" $probe $probe $kind $ports $port $port $ports) -}}
{{- end -}}
{{- end -}}
{{- $checks = append $checks (list "probe" (join "\n  || " $probes)) -}}
{{- end -}}
{{- if eq $settings.mode "port-swap" -}}
{{- $checks = append $checks (list "moved-port" (printf `variables.containers.exists(c, has(c.ports) && c.ports.exists(p, (!has(p.protocol) || p.protocol == "TCP") && p.containerPort == %s))` (include "tokometer.serverPort" $settings))) -}}
{{- end -}}
{{- if not (has $settings.mode (list "port-swap" "explicit" "tap")) -}}
{{- $probe := "variables.container.livenessProbe" -}}
{{- $number := `(has(%[1]s.%[2]s) && %[1]s.%[2]s > 0 ? int(%[1]s.%[2]s) : %[3]d)` -}}
{{- $proxied := ternary "size(variables.livenessProbe) == 0 && " "" (ne (include "tokometer.probes.change" $settings) "") -}}
{{- $checks = append $checks (list "liveness" (printf `%shas(%s) && (has(%s.httpGet) || has(%s.tcpSocket) || has(%s.grpc)) && (%s - 1) * %s < 10` $proxied $probe $probe $probe $probe (printf $number $probe "failureThreshold" 3) (printf $number $probe "periodSeconds" 10))) -}}
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

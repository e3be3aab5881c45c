{{/* The sidecar, in one place: the admission policy expresses it in CEL, and other charts include it unchanged. */}}

{{/* For charts that have this one as a dependency:

       initContainers:
         - {{- include "tokometer.container" .Subcharts.tokometer | nindent 10 }}
       volumes:
         {{- include "tokometer.volumes" .Subcharts.tokometer | nindent 8 }}

     with `tokometer: {policy: {enabled: false}}` in their values. Set the engine's own flags so that it listens where
     tokometer connects to. */}}
{{- define "tokometer.container" -}}
{{- $settings := include "tokometer.settings" (dict "root" . "target" dict) | fromYaml -}}
{{- include "tokometer.container.of" (dict "root" . "settings" $settings) -}}
{{- end -}}

{{/* Volumes that it mounts: a list, which may be empty. */}}
{{- define "tokometer.volumes" -}}
{{- $settings := include "tokometer.settings" (dict "root" . "target" dict) | fromYaml -}}
{{- $volumes := list -}}
{{- if eq $settings.mode "uds" -}}
{{- $volumes = append $volumes (dict "name" "tokometer-socket" "emptyDir" dict) -}}
{{- end -}}
{{- with $settings.tlsSecret -}}
{{- if hasPrefix "*" . -}}{{- fail "sidecar.tlsSecret: a chart that includes the container must name one Secret." -}}{{- end -}}
{{- $volumes = append $volumes (dict "name" "tokometer-tls" "secret" (dict "secretName" .)) -}}
{{- end -}}
{{- if $settings.config -}}
{{- $volumes = append $volumes (dict "name" "tokometer-config" "configMap" (dict "name" (printf "%s-config" (include "tokometer.fullname" .)))) -}}
{{- end -}}
{{- toYaml $volumes -}}
{{- end -}}

{{/* Arguments of tokometer: (dict "settings" SETTINGS). */}}
{{- define "tokometer.args" -}}
{{- $settings := .settings -}}
{{- $interception := include "tokometer.interception" $settings | fromYaml -}}
{{- $taps := eq $settings.mode "tap" -}}
{{- $args := list (ternary "tap" "run" $taps) -}}
{{- if $taps -}}
{{- range concat (list $settings.port) $settings.extraPorts -}}{{- $args = append $args (printf "--port=%d" (int .)) -}}{{- end -}}
{{- else if $settings.extraPorts -}}
{{- range concat (list $settings.port) $settings.extraPorts -}}
{{- $args = append $args (printf "--listener=[$(POD_IPS)]:%d=127.0.0.1:%d" (int .) (int .)) -}}
{{- end -}}
{{- else -}}
{{- $args = concat $args (list (printf "--listen=%s" $interception.listen) (printf "--upstream=%s" $interception.upstream)) -}}
{{- end -}}
{{- $args = append $args (printf "--admin=:%d" (int $settings.adminPort)) -}}
{{- if not $taps -}}{{- $args = append $args (printf "--set=process.threads=%d" (int $settings.threads)) -}}{{- end -}}
{{- if $settings.drain.enabled -}}
{{- $args = append $args (printf "--set=process.grace_period=%ds" (int $settings.drain.timeoutSeconds)) -}}
{{- end -}}
{{- if eq $settings.mode "shadow-bind" -}}{{- $args = append $args "--set=relay.port_sharing=true" -}}{{- end -}}
{{- if $settings.tlsSecret -}}
{{- /* The connection to the engine does not leave the pod, so its certificate needs no check. */}}
{{- range list "tls.certificate=/etc/tokometer-tls/tls.crt" "tls.key=/etc/tokometer-tls/tls.key" "upstream_tls.enabled=true" "upstream_tls.insecure=true" -}}
{{- $args = append $args (printf "--set=listeners[].%s" .) -}}
{{- end -}}
{{- end -}}
{{- if ne $settings.engine "auto" -}}{{- $args = append $args (printf "--set=observe.engine=%s" $settings.engine) -}}{{- end -}}
{{- if $settings.config -}}{{- $args = append $args "--config=/etc/tokometer/tokometer.yaml" -}}{{- end -}}
{{- toYaml (concat $args $settings.extraArgs) -}}
{{- end -}}

{{/* The container: (dict "root" . "settings" SETTINGS). `tokometer inject` adds the same one; both use files/sidecar.yaml. */}}
{{- define "tokometer.container.of" -}}
{{- $root := .root -}}
{{- $settings := .settings -}}
{{- $admin := int $settings.adminPort -}}
{{- $user := $settings.runAsUser -}}
{{- if has $settings.mode (list "uds" "shadow-bind") -}}{{- $user = $settings.engineUser -}}{{- end -}}
{{- $constant := (index ($root.Files.Get "files/sidecar.yaml" | fromYaml) "container") -}}
{{- $security := $constant.securityContext -}}
{{- if eq $settings.mode "tap" -}}
{{- /* An exec by a user other than root loses capabilities. */}}
{{- $user = 0 -}}
{{- $_ := set $security "capabilities" (dict "drop" (list "ALL") "add" (list "NET_RAW")) -}}
{{- end -}}
{{- if kindIs "invalid" $user -}}
{{- $_ := unset $security "runAsUser" -}}
{{- else -}}
{{- $_ := set $security "runAsUser" (int $user) -}}
{{- $_ := set $security "runAsNonRoot" (ne (int $user) 0) -}}
{{- end -}}
name: {{ $constant.name }}
image: {{ include "tokometer.image" (dict "root" $root "image" $settings.image "tag" $root.Chart.AppVersion) | quote }}
{{- with $settings.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
restartPolicy: {{ $constant.restartPolicy }}
args:
  {{- include "tokometer.args" (dict "settings" $settings) | nindent 2 }}
ports:
  - name: llm-metrics
    containerPort: {{ $admin }}
  {{- if eq $settings.mode "explicit" }}
  - name: llm-traffic
    containerPort: {{ int $settings.listenPort }}
  {{- end }}
env:
  {{- range $constant.env }}
  {{- $own := .name }}
  {{- $names := list }}
  {{- range $settings.env }}{{ $names = append $names .name }}{{ end }}
  {{- if not (has $own $names) }}
  {{- toYaml (list .) | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- with $root.Values.clusterName }}
  - name: K8S_CLUSTER_NAME
    value: {{ . | quote }}
  {{- end }}
  {{- with $settings.otlp.endpoint }}
  - name: OTEL_EXPORTER_OTLP_ENDPOINT
    value: {{ . | quote }}
  {{- end }}
  {{- with $settings.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- /* Whether it listens. It must not ask for the engine, which is started only after it succeeded. A capture that cannot start must
       not delay the engine. */}}
{{- if ne $settings.mode "tap" }}
startupProbe:
  httpGet: {path: {{ $constant.startupProbe.httpGet.path }}, port: {{ $admin }}}
  periodSeconds: {{ int $settings.startupProbe.periodSeconds }}
  timeoutSeconds: {{ int $settings.startupProbe.timeoutSeconds }}
  failureThreshold: {{ int $settings.startupProbe.failureThreshold }}
{{- end }}
livenessProbe:
  httpGet: {path: {{ $constant.livenessProbe.httpGet.path }}, port: {{ $admin }}}
  periodSeconds: {{ int $settings.livenessProbe.periodSeconds }}
  timeoutSeconds: {{ int $settings.livenessProbe.timeoutSeconds }}
  failureThreshold: {{ int $settings.livenessProbe.failureThreshold }}
  terminationGracePeriodSeconds: {{ int $constant.livenessProbe.terminationGracePeriodSeconds }}
{{- /* No readiness probe: the pod is ready when its engine is, whose own probe passes through. */}}
{{- if $settings.drain.enabled }}
lifecycle:
  preStop:
    exec:
      command: [/tokometer, drain{{ if ne $admin 9464 }}, "--admin=http://127.0.0.1:{{ $admin }}"{{ end }}]
{{- end }}
{{- with $settings.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml $security | nindent 2 }}
terminationMessagePolicy: {{ $constant.terminationMessagePolicy }}
{{- if or $settings.config $settings.tlsSecret (eq $settings.mode "uds") }}
volumeMounts:
  {{- if eq $settings.mode "uds" }}
  - name: tokometer-socket
    mountPath: {{ include "tokometer.socket" $settings | dir }}
  {{- end }}
  {{- if $settings.tlsSecret }}
  - name: tokometer-tls
    mountPath: /etc/tokometer-tls
    readOnly: true
  {{- end }}
  {{- if $settings.config }}
  - name: tokometer-config
    mountPath: /etc/tokometer
    readOnly: true
  {{- end }}
{{- end }}
{{- end -}}

{{/* The init container of `redirect` mode: (dict "root" . "settings" SETTINGS). */}}
{{- define "tokometer.redirect" -}}
{{- $root := .root -}}
{{- with .settings -}}
{{- $image := deepCopy .image -}}
{{- $_ := set $image "repository" (printf "%s-redirect" $image.repository) -}}
{{- /* A digest is that of the other image. */}}
{{- $_ := set $image "digest" "" -}}
{{- $container := index ($root.Files.Get "files/sidecar.yaml" | fromYaml) "redirect" -}}
{{- $_ := set $container "image" (default (include "tokometer.image" (dict "root" $root "image" $image "tag" $root.Chart.AppVersion)) .redirect.image) -}}
{{- $_ := set $container "command" (list (first $container.command) (printf (last $container.command) (int .port) (int .listenPort))) -}}
{{- toYaml $container -}}
{{- end -}}
{{- end -}}

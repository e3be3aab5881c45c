{{/* What the schema cannot say: values that do not go together. Each message names the value and the fix. */}}
{{- define "tokometer.validations" -}}
{{- $root := . -}}
{{- $policy := .Values.policy -}}
{{- if and .Values.sidecar.enabled (eq (toString $policy.enabled) "true") (not (include "tokometer.policy.version" .)) -}}
{{- fail (printf "policy.enabled: this cluster (%s) serves no MutatingAdmissionPolicy. Leave it at auto and attach with `tokometer inject` or Kustomize; or, on 1.34 and 1.35, turn on the feature gate MutatingAdmissionPolicy and the API admissionregistration.k8s.io/v1beta1, and set policy.apiVersion: v1beta1." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $names := list -}}
{{- range $target := .Values.targets -}}
{{- $settings := include "tokometer.settings" (dict "root" $root "target" $target) | fromYaml -}}
{{- if has $target.name $names -}}{{- fail (printf "targets: the name %q is there twice; each target needs its own." $target.name) -}}{{- end -}}
{{- $names = append $names $target.name -}}
{{- if $root.Values.sidecar.enabled -}}
{{- include "tokometer.validations.settings" (dict "settings" $settings "where" (printf "targets[%s].sidecar" $target.name)) -}}
{{- end -}}
{{- if not (or $target.objectSelector.matchLabels $target.objectSelector.matchExpressions) -}}
{{- fail (printf "targets[%s].objectSelector: an empty selector is every pod of the cluster; set matchLabels or matchExpressions." $target.name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.collector.enabled (not .Values.collector.exporters) -}}
{{- fail "collector.exporters: the collector needs somewhere to send to, such as {otlphttp: {endpoint: https://otlp.example.com}}." -}}
{{- end -}}
{{- range $list := list "metricsExporters" "tracesExporters" -}}
{{- range index $root.Values.collector $list -}}
{{- if not (hasKey $root.Values.collector.exporters .) -}}{{- fail (printf "collector.%s: %q is not in collector.exporters (%s)." $list . (keys $root.Values.collector.exporters | sortAlpha | join ", ")) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $scaling := .Values.autoscaling -}}
{{- if or $scaling.keda.enabled $scaling.hpa.enabled -}}
{{- if not $scaling.target.name -}}{{- fail "autoscaling.target.name: name the workload that is to be scaled." -}}{{- end -}}
{{- if and $scaling.keda.enabled $scaling.hpa.enabled -}}{{- fail "autoscaling: keda and hpa would both scale the same workload; enable one of them." -}}{{- end -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas." -}}{{- end -}}
{{- end -}}
{{- if and $scaling.keda.enabled (not $scaling.keda.serverAddress) -}}{{- fail "autoscaling.keda.serverAddress: set the URL of the Prometheus that KEDA asks, such as http://prometheus.monitoring:9090." -}}{{- end -}}
{{- with .Values.prometheusRule.content -}}
{{- $made := fromYaml . -}}
{{- if ne (toString $made.kind) "PrometheusRule" -}}{{- fail "prometheusRule.content is no PrometheusRule; make it with `tokometer rules --config tokometer.yaml --format prometheusrule`." -}}{{- end -}}
{{- end -}}
{{- $known := list -}}
{{- range (default (.Files.Get "files/rules.yaml") .Values.prometheusRule.content | fromYaml).spec.groups -}}{{- range .rules -}}{{- if .alert -}}{{- $known = append $known .alert -}}{{- end -}}{{- end -}}{{- end -}}
{{- range $alert, $_ := .Values.prometheusRule.alerts -}}
{{- if not (has $alert $known) -}}{{- fail (printf "prometheusRule.alerts: there is no alert %q; there are %s." $alert ($known | uniq | sortAlpha | join ", ")) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Settings of one target. */}}
{{- define "tokometer.validations.settings" -}}
{{- $settings := .settings -}}
{{- $where := .where -}}
{{- with include "tokometer.needs" $settings -}}
{{- if not (index (index (include "tokometer.engine" $ | fromYaml) $settings.engine) .) -}}
{{- if eq . "socket" -}}
{{- fail (printf "%s: the engine %s cannot listen on a Unix socket; those that can are vllm and llama_cpp." $where $settings.engine) -}}
{{- else -}}
{{- fail (printf "%s: no setting is known for the listen %s of the engine %s; use the mode redirect or explicit, or name the engine." $where (ternary "address" "port" (eq . "host")) $settings.engine) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $settings.listenHost (has $settings.mode (list "address-split" "shadow-bind")) -}}
{{- fail (printf "%s.listenHost: in the mode %s engine and tokometer share a port, and differ by the address only; leave it empty, or use port-swap." $where $settings.mode) -}}
{{- end -}}
{{- $ports := list (toString (int $settings.port)) (toString (int $settings.adminPort)) -}}
{{- if eq $settings.mode "port-swap" -}}{{- $ports = append $ports (include "tokometer.serverPort" $settings) -}}{{- end -}}
{{- if has $settings.mode (list "redirect" "explicit") -}}{{- $ports = append $ports (include "tokometer.listenPort" $settings) -}}{{- end -}}
{{- range $settings.extraPorts -}}{{- $ports = append $ports (toString (int .)) -}}{{- end -}}
{{- if and $settings.extraPorts (not (has $settings.mode (list "address-split" "shadow-bind" "tap"))) -}}
{{- fail (printf "%s.extraPorts: the mode %s serves one port; use address-split for several." $where $settings.mode) -}}
{{- end -}}
{{- if and (eq $settings.mode "tap") (or $settings.engineArgs $settings.engineLiveness.enabled $settings.listenHost) -}}
{{- fail (printf "%s: the mode tap does not change the engine; remove engineArgs, engineLiveness and listenHost." $where) -}}
{{- end -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail (printf "%s: port, extraPorts, adminPort, serverPort and listenPort must differ from each other where they are used; they are %s." $where (join ", " $ports)) -}}
{{- end -}}
{{- range tuple "listeners" "admin" -}}
{{- if hasKey $settings.config . -}}
{{- fail (printf "%s.config.%s is set by the chart: use port, mode and adminPort." $where .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

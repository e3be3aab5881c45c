{{/* What the cluster has. */}}

{{/* "true" if an API is there, or is said to be: (dict "root" . "api" GROUP/VERSION). */}}
{{- define "tokometer.has" -}}
{{- if or (.root.Capabilities.APIVersions.Has .api) (has .api .root.Values.apiVersions) -}}true{{- end -}}
{{- end -}}

{{/* "true" if an object is to be made: (dict "root" . "enabled" auto|true|false "api" GROUP/VERSION). */}}
{{- define "tokometer.wanted" -}}
{{- if eq (toString .enabled) "auto" -}}
{{- include "tokometer.has" . -}}
{{- else if eq (toString .enabled) "true" -}}true{{- end -}}
{{- end -}}

{{/* API version of the mutating policy that the cluster has; empty where it has none. Helm knows kinds from a cluster alone;
     without one (`helm template`) its version tells. */}}
{{- define "tokometer.policy.served" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- if .Capabilities.APIVersions.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}v1
{{- else if .Capabilities.APIVersions.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}v1beta1
{{- else if .Capabilities.APIVersions.Has (printf "%s/v1/ValidatingWebhookConfiguration" $group) -}}
{{- else if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version -}}v1
{{- end -}}
{{- end -}}

{{/* API version of the policies to make; empty for none. */}}
{{- define "tokometer.policy.version" -}}
{{- if and .Values.sidecar.enabled (ne (toString .Values.policy.enabled) "false") -}}
{{- default (include "tokometer.policy.served" .) .Values.policy.apiVersion -}}
{{- end -}}
{{- end -}}

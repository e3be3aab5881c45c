{{/* Names and labels. */}}

{{- define "tokometer.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tokometer.fullname" -}}
{{- $name := include "tokometer.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Names of objects that belong to no namespace: two releases of one name in two namespaces must not meet. */}}
{{- define "tokometer.clustername" -}}
{{- printf "%s.%s" (include "tokometer.fullname" .) .Release.Namespace | trimSuffix "." -}}
{{- end -}}

{{/* Labels by which the collector's own pods are known. */}}
{{- define "tokometer.collector.selector" -}}
app.kubernetes.io/name: {{ include "tokometer.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: collector
{{- end -}}

{{/* Metadata of an object: (dict "root" . "name" NAME "namespace" NAMESPACE or "" "component" WORD "labels" MAP "annotations" MAP). */}}
{{- define "tokometer.metadata" -}}
{{- $root := .root -}}
{{- $labels := dict
  "app.kubernetes.io/name" (include "tokometer.name" $root)
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/component" .component
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- $annotations := merge (dict) (default dict .annotations) $root.Values.commonAnnotations -}}
name: {{ .name }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels:
  {{- toYaml (merge (dict) $labels (default dict .labels) $root.Values.commonLabels) | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Name of an image: (dict "root" . "image" MAP "tag" DEFAULT). A digest wins over the tag. */}}
{{- define "tokometer.image" -}}
{{- $registry := default .image.registry .root.Values.global.imageRegistry -}}
{{- $name := .image.repository -}}
{{- if $registry -}}{{- $name = printf "%s/%s" $registry $name -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .tag (toString .image.tag)) -}}
{{- end -}}
{{- end -}}

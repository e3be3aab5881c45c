{{/* A YAML value as a CEL literal: (dict "type" "Object.spec.initContainers" "value" VALUE). A map is an object of that type, but
     where the API has a map; `{cel: TEXT}` is an expression already. */}}
{{- define "tokometer.cel" -}}
{{- $value := .value -}}
{{- $type := .type -}}
{{- if kindIs "map" $value -}}
{{- if and (hasKey $value "cel") (eq (len $value) 1) -}}
{{- $value.cel -}}
{{- else -}}
{{- $map := regexMatch "\\.(limits|requests|matchLabels|annotations|labels)$" $type -}}
{{- $fields := list -}}
{{- range $key, $inner := $value -}}
{{- $literal := include "tokometer.cel" (dict "type" (printf "%s.%s" $type $key) "value" $inner) -}}
{{- $fields = append $fields (printf "%s: %s" (ternary (toJson $key) $key $map) $literal) -}}
{{- end -}}
{{- printf "%s{%s}" (ternary "" $type $map) (join ", " $fields) -}}
{{- end -}}
{{- else if kindIs "slice" $value -}}
{{- $items := list -}}
{{- range $value -}}{{- $items = append $items (include "tokometer.cel" (dict "type" $type "value" .)) -}}{{- end -}}
{{- printf "[%s]" (join ", " $items) -}}
{{- else if kindIs "string" $value -}}
{{- toJson $value -}}
{{- else if kindIs "bool" $value -}}
{{- toString $value -}}
{{- else -}}
{{- int64 $value -}}
{{- end -}}
{{- end -}}

{{/* The same, with one line for each field of the outermost object. */}}
{{- define "tokometer.cel.lines" -}}
{{- $type := .type -}}
{{- $fields := list -}}
{{- range $key, $inner := .value -}}
{{- $fields = append $fields (printf "  %s: %s" $key (include "tokometer.cel" (dict "type" (printf "%s.%s" $type $key) "value" $inner))) -}}
{{- end -}}
{{- printf "%s{\n%s\n}" $type (join ",\n" $fields) -}}
{{- end -}}

{{/* One release per cluster, so that the names are fixed and the documentation can name them. */}}
{{- define "operator.name" -}}agent-workspace-operator{{- end }}

{{- define "operator.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else }}{{ include "operator.name" . }}{{ end }}
{{- end }}

{{- define "operator.selector" -}}
app.kubernetes.io/name: {{ include "operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: {{ include "operator.name" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The reference of an image: (list image-values chart). */}}
{{- define "operator.image" -}}
{{- $image := index . 0 }}{{- $chart := index . 1 -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default $chart.AppVersion }}
{{- end }}
{{- end }}

{{/* A map as `key=value,key=value`, sorted by key. */}}
{{- define "operator.selectorText" -}}
{{- $pairs := list }}{{- range $key, $value := . }}{{- $pairs = append $pairs (printf "%s=%s" $key $value) }}{{- end }}{{ join "," $pairs }}
{{- end }}

{{- define "gateway.name" -}}agent-workspace-gateway{{- end }}

{{- define "gateway.serviceAccount" -}}
{{- if .Values.gateway.serviceAccount.name }}{{ .Values.gateway.serviceAccount.name }}{{ else }}{{ include "gateway.name" . }}{{ end }}
{{- end }}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: {{ include "operator.name" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Where a workspace is reached; the operator puts name and namespace in. */}}
{{- define "gateway.workspaceUrl" -}}
{{- if .Values.gateway.domain }}https://{name}--{namespace}.{{ .Values.gateway.domain }}
{{- else }}https://{{ .Values.gateway.host }}/w/{namespace}/{name}
{{- end }}
{{- end }}

{{/* Host names that lead to the gateway, as a YAML list. */}}
{{- define "gateway.hosts" -}}
{{- with .Values.gateway.domain }}
- {{ printf "*.%s" . | quote }}
{{- end }}
{{- with .Values.gateway.host }}
- {{ regexReplaceAll ":[0-9]+$" . "" | quote }}
{{- end }}
{{- end }}

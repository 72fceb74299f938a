{{/*
Sluice is installed once in a cluster: its scheduler name, gate and labels are fixed names, and so
are the names of its objects.
*/}}
{{- define "sluice.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "sluice.selector" . }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The kube-scheduler of the cluster's own version, without a vendor's suffix. */}}
{{- define "sluice.kubeSchedulerImage" -}}
{{- $tag := .Values.kubeScheduler.image.tag | default (regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version) -}}
{{ .Values.kubeScheduler.image.repository }}:{{ $tag }}
{{- end }}

{{/* User name of the controller as the API server sees it. */}}
{{- define "sluice.controllerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:sluice-controller
{{- end }}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Every GPU resource name that pods of some pool ask for. */}}
{{- define "sluice.resourceNames" -}}
{{- concat (list .Values.gpu.resourceName) .Values.gpu.furtherResourceNames | uniq | toJson -}}
{{- end }}

{{/* Whether the mutating policies are rendered: "true" or "". */}}
{{- define "sluice.mutating" -}}
{{- $api := "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
{{- if eq .Values.admission.mutating "Always" -}}
true
{{- else if and (eq .Values.admission.mutating "Auto") (.Capabilities.APIVersions.Has $api) -}}
true
{{- end -}}
{{- end }}

{{/*
Pieces of CEL that several policies share. `object` is a Pod and `params` a GpuPool.
*/}}

{{/* The pod may still go through Sluice: nobody has placed it, and no other scheduler is named. */}}
{{- define "sluice.cel.own" -}}
object.spec.?nodeName.orValue('') == '' && object.spec.?schedulerName.orValue('') in ['', 'default-scheduler', 'sluice']
{{- end }}

{{- define "sluice.cel.labelled" -}}
'sluice.dev/shape' in object.metadata.?labels.orValue({})
{{- end }}

{{/* The pool at hand is the pod's own: a binding brings every pool, one after another. */}}
{{- define "sluice.cel.ownPool" -}}
params.metadata.name == object.metadata.?labels[?'sluice.dev/pool'].orValue('default')
{{- end }}

{{- define "sluice.cel.hasGate" -}}
object.spec.?schedulingGates.orValue([]).exists(g, g.name == 'sluice.dev/admission')
{{- end }}

{{/* GPUs that the container c asks for; what is no whole number the API server itself refuses. */}}
{{- define "sluice.cel.containerGpus" -}}
quantity(c.?resources.?requests[?variables.resource].orValue('0')).isInteger()
  ? quantity(c.?resources.?requests[?variables.resource].orValue('0')).asInteger() : 0
{{- end }}

{{/*
GPUs that the pod holds at its peak. Init containers run one by one beside the sidecars started
before them; sidecars (init containers that restart always) then stay beside the containers.
*/}}
{{- define "sluice.cel.gpuVariables" -}}
- name: resource
  expression: params.spec.resourceName
- name: perNode
  expression: params.spec.gpusPerNode
- name: inits
  expression: object.spec.?initContainers.orValue([])
- name: initGpus
  expression: >-
    variables.inits.map(c, {{ include "sluice.cel.containerGpus" . | replace "\n" " " }})
- name: sidecarGpus
  expression: >-
    variables.inits.map(c, c.?restartPolicy.orValue('') != 'Always' ? 0
    : {{ include "sluice.cel.containerGpus" . | replace "\n" " " }})
- name: initPeaks
  expression: >-
    variables.initGpus.transformList(i, own, own
    + variables.sidecarGpus.transformList(j, beside, j < i, beside).sum())
- name: running
  expression: >-
    object.spec.containers.map(c, {{ include "sluice.cel.containerGpus" . | replace "\n" " " }}).sum()
    + variables.sidecarGpus.sum()
- name: gpus
  expression: "([variables.running] + variables.initPeaks).max()"
{{- end }}

{{/*
Run time given to a pod that names none: the shape's default, else its maximum, else 0 for none. A
wide small has the limits of a small.
*/}}
{{- define "sluice.cel.limitVariables" -}}
- name: maxSeconds
  expression: >-
    variables.shape == 'whole-node-large' ? params.spec.?limits.?wholeNodeLarge.?maxSeconds.orValue(0)
    : params.spec.?limits.?small.?maxSeconds.orValue(0)
- name: defaultSeconds
  expression: >-
    variables.shape == 'whole-node-large'
    ? params.spec.?limits.?wholeNodeLarge.?defaultSeconds.orValue(variables.maxSeconds)
    : params.spec.?limits.?small.?defaultSeconds.orValue(variables.maxSeconds)
{{- end }}

{{/* Patches, each made only if it is needed: a policy may be evaluated more than once. */}}
{{- define "sluice.cel.patchScheduler" -}}
(object.spec.?schedulerName.orValue('') == 'sluice' ? [] : [
  JSONPatch{op: "add", path: "/spec/schedulerName", value: "sluice"}
]) + ({{ include "sluice.cel.hasGate" . }} ? [] : !has(object.spec.schedulingGates) ? [
  JSONPatch{op: "add", path: "/spec/schedulingGates", value: [{"name": "sluice.dev/admission"}]}
] : [
  JSONPatch{op: "add", path: "/spec/schedulingGates/-", value: {"name": "sluice.dev/admission"}}
])
{{- end }}

{{- define "sluice.cel.patchDeadline" -}}
(has(object.spec.activeDeadlineSeconds) || variables.defaultSeconds == 0 ? [] : [
  JSONPatch{op: "add", path: "/spec/activeDeadlineSeconds", value: variables.defaultSeconds}
])
{{- end }}

{{/* What every policy matches: pods, outside the namespaces that are left alone. */}}
{{- define "sluice.policy.namespaces" -}}
{{- with .Values.admission.excludedNamespaces -}}
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: {{ toJson . }}
{{- end }}
{{- end }}

{{/* Only labelled pods: without the pools' definition such a policy fails, and must fail no other pod. */}}
{{- define "sluice.policy.labelledOnly" -}}
objectSelector:
  matchExpressions:
    - {key: sluice.dev/shape, operator: Exists}
{{- end }}

{{- define "sluice.policy.everyPool" -}}
paramRef:
  selector: {}
  parameterNotFoundAction: Allow
{{- end }}

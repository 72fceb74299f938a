{{- define "sluice.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceLock: leases
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: sluice-kube-scheduler
clientConnection:
  qps: {{ .Values.kubeScheduler.qps }}
  burst: {{ .Values.kubeScheduler.burst }}
# A refused pod comes back after a second: what the extender says may change at any moment.
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
# The extender knows the one node of a pod, which must not fall out of a sample.
percentageOfNodesToScore: 100
profiles:
  - schedulerName: sluice
    plugins:
      multiPoint:
        disabled:
          # It simulates without the extender, so it would evict pods in vain.
          - name: DefaultPreemption
    pluginConfig:
      - name: NodeResourcesFit
        args:
          apiVersion: kubescheduler.config.k8s.io/v1
          kind: NodeResourcesFitArgs
          scoringStrategy:
            type: MostAllocated
            resources:
              {{- range include "sluice.resourceNames" . | fromJsonArray }}
              - {name: {{ . | quote }}, weight: 10}
              {{- end }}
              - {name: cpu, weight: 1}
              - {name: memory, weight: 1}
extenders:
  - urlPrefix: http://{{ include "sluice.extenderAddress" . }}
    filterVerb: filter
    bindVerb: bind
    nodeCacheCapable: true
    # Without an answer a pod waits; it must not pass the gate unasked.
    ignorable: false
    httpTimeout: {{ .Values.kubeScheduler.extenderTimeout }}
    managedResources:
      {{- range include "sluice.resourceNames" . | fromJsonArray }}
      - {name: {{ . | quote }}, ignoredByScheduler: false}
      {{- end }}
{{- end }}

{{- define "sluice.extenderAddress" -}}
127.0.0.1:10262
{{- end }}

{{- define "sluice.defaultPool" -}}
apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata:
  name: default
spec:
  {{- $own := dict "resourceName" .Values.gpu.resourceName "gpusPerNode" .Values.gpu.perNode "nodeSelector" .Values.gpu.nodeSelector }}
  {{- merge $own .Values.defaultPool.spec | toYaml | nindent 2 }}
{{- end }}

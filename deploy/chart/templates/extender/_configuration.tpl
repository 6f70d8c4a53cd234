{{- define "k8s-rdma.extender.yaml" -}}
{{- $ours := dict "placementKeyFile" "/etc/k8s-rdma/key" "policyFile" "/etc/k8s-rdma/policies/policies.yaml" "leaseNamespace" .Release.Namespace "nodeLeaseNamespace" .Release.Namespace -}}
{{- if eq .Values.extender.mode "service" -}}
{{- $tls := dict "certFile" "/etc/k8s-rdma/tls/tls.crt" "keyFile" "/etc/k8s-rdma/tls/tls.key" "clientCaFile" "/etc/k8s-rdma/tls/ca.crt" -}}
{{- with .Values.extender.clientNames -}}
{{- $_ := set $tls "clientNames" . -}}
{{- end -}}
{{- $_ := set $ours "tls" $tls -}}
{{- end -}}
{{- if and (include "k8s-rdma.tokens-secret" .) (include "k8s-rdma.asks-nodes" .) -}}
{{- $_ := set $ours "nodeTokenFile" "/etc/k8s-rdma/node-tokens/tokens" -}}
{{- end -}}
{{- if .Values.viewers.enabled -}}
{{- $_ := set $ours "views" (dict "port" (int .Values.viewers.port) "tokenFile" "/etc/k8s-rdma/node-tokens/tokens") -}}
{{- end -}}
{{- $settings := merge $ours (.Values.extender.config | default dict) -}}
{{- $_ := set $settings "listen" (ternary "" "127.0.0.1" (eq .Values.extender.mode "service")) -}}
{{- toYaml $settings -}}
{{- end }}

{{/* The second kube-scheduler's, whose account is that of its pod. */}}
{{- define "k8s-rdma.scheduler.yaml" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: {{ .Values.extender.scheduler.name }}
  resourceNamespace: {{ .Release.Namespace }}
profiles:
- schedulerName: {{ .Values.extender.scheduler.name }}
extenders:
- urlPrefix: http://127.0.0.1:{{ include "k8s-rdma.extender-port" . }}/scheduler
  filterVerb: rdma_scheduling
  prioritizeVerb: prioritize
  preemptVerb: preempt
  bindVerb: bind
  weight: {{ .Values.extender.scheduler.weight }}
  nodeCacheCapable: true
  ignorable: false
  httpTimeout: 10s
{{- end }}

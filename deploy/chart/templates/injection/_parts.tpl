{{/* What is added to pods: the second scheduler's name, empty for none. */}}
{{- define "k8s-rdma.injected-scheduler" -}}
{{- $injection := .Values.injection | default dict -}}
{{- if and $injection.enabled $injection.schedulerName .Values.extender.enabled (eq .Values.extender.mode "second-scheduler") -}}
{{- .Values.extender.scheduler.name -}}
{{- end -}}
{{- end }}

{{/* The resource that a container gets one of: that of mode exact; empty for none. */}}
{{- define "k8s-rdma.injected-slot" -}}
{{- $injection := .Values.injection | default dict -}}
{{- if and $injection.enabled $injection.slot .Values.node.devicePlugin.enabled -}}
{{- $resources := (.Values.node.devicePlugin.config | default dict).resources | default (list (dict "mode" "exact")) -}}
{{- $slot := "" -}}
{{- range $resources -}}
{{- if and (eq .mode "exact") (not $slot) -}}{{- $slot = .name | default "k8s-rdma.io/slot" -}}{{- end -}}
{{- end -}}
{{- $slot -}}
{{- end -}}
{{- end }}

{{/* All resources by which containers get device nodes, in JSON. */}}
{{- define "k8s-rdma.device-resources" -}}
{{- $names := list "rdma-sriov/dev-infiniband-mount" "tencent.com/rdma" -}}
{{- with include "k8s-rdma.injected-slot" . -}}{{- $names = append $names . -}}{{- end -}}
{{- range (.Values.node.devicePlugin.config | default dict).resources -}}
{{- if and .name (not (has .name $names)) -}}{{- $names = append $names .name -}}{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* The part that adds it: policy, webhook, or none. */}}
{{- define "k8s-rdma.injects-by" -}}
{{- if or (include "k8s-rdma.injected-scheduler" .) (include "k8s-rdma.injected-slot" .) -}}
{{- if ne .Values.injection.by "auto" -}}
{{- .Values.injection.by -}}
{{- else if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version -}}
policy
{{- else -}}
webhook
{{- end -}}
{{- end -}}
{{- end }}

{{- define "k8s-rdma.webhook-selector-labels" -}}
app.kubernetes.io/name: k8s-rdma
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: webhook
{{- end }}

{{- define "k8s-rdma.webhook.yaml" -}}
port: 54007
tls: {certFile: /etc/k8s-rdma/tls/tls.crt, keyFile: /etc/k8s-rdma/tls/tls.key}
schedulerName: {{ include "k8s-rdma.injected-scheduler" . | default "null" }}
slot: {{ include "k8s-rdma.injected-slot" . | default "null" }}
deviceResources: {{ include "k8s-rdma.device-resources" . }}
{{- end }}

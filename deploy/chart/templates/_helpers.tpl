{{/*
Every template begins with this. A key without a value, such as a section that has only comments, has its default: Helm
would take the key away. Lists and maps with keys of the user's, such as nodeSelector, stay as Helm leaves them.
*/}}
{{- define "k8s-rdma.complete" -}}
{{- if eq (toJson .Values.enabled) "false" -}}
{{- fail "enabled: false counts as the condition of a parent chart's dependency alone; without one, uninstall the release" -}}
{{- end -}}
{{- range (.Files.Get "files/defaults.json" | fromJson).defaults -}}
{{- $section := $.Values -}}
{{- range .section -}}{{- $section = get $section . -}}{{- end -}}
{{- if or (not (hasKey $section .key)) (eq (toJson (get $section .key)) "null") -}}{{- $_ := set $section .key .value -}}{{- end -}}
{{- end -}}
{{- end }}

{{- define "k8s-rdma.labels" -}}
app.kubernetes.io/name: k8s-rdma
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "k8s-rdma.node-selector-labels" -}}
app.kubernetes.io/name: k8s-rdma
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end }}

{{- define "k8s-rdma.claims-selector-labels" -}}
app.kubernetes.io/name: k8s-rdma
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: claims
{{- end }}

{{- define "k8s-rdma.extender-selector-labels" -}}
app.kubernetes.io/name: k8s-rdma
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: extender
{{- end }}

{{- define "k8s-rdma.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "k8s-rdma.scheduler-image" -}}
{{- with .Values.extender.scheduler.image -}}
{{ .repository }}:{{ .tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" $.Capabilities.KubeVersion.Version) }}
{{- end -}}
{{- end }}

{{/* The field exists from Kubernetes 1.30 on; before, an annotation of the pod says it. */}}
{{- define "k8s-rdma.has-apparmor-field" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- end }}

{{/* What ResourceClaims need; the API is of 1.34, where consumable capacity is a feature gate. */}}
{{- define "k8s-rdma.check-claims" -}}
{{- if not (semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail "dra.enabled: needs Kubernetes 1.36, or 1.34 with the feature gate DRAConsumableCapacity" -}}
{{- end -}}
{{- end }}

{{/* A container without any privilege; dict of the user it runs as, and of capabilities that it needs all the same. */}}
{{- define "k8s-rdma.unprivileged" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]{{ with .capabilities }}, add: {{ toJson . }}{{ end }}}
readOnlyRootFilesystem: true
{{- if .user }}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
{{- else }}
runAsUser: 0
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The Secret with the tokens of the nodes' servers and of the extender's views; empty for none. */}}
{{- define "k8s-rdma.tokens-secret" -}}
{{- .Values.node.server.tokensSecretName | default (ternary "k8s-rdma-tokens" "" .Values.viewers.enabled) -}}
{{- end }}

{{/*
What is written elsewhere in the repository, once, for the namespaces k8s-rdma and kube-system: here for the release's.
The namespace itself is not the release's to make.
*/}}
{{- define "k8s-rdma.adopted" -}}
{{- $here := print "namespace: " .namespace -}}
{{- $account := print "system:serviceaccount:" .namespace ":" -}}
{{- range splitList "\n---\n" .text }}
{{- if and (trim .) (not (contains "\nkind: Namespace\n" .)) }}
---
{{ . | replace "namespace: k8s-rdma" $here | replace "namespace: kube-system" $here | replace "system:serviceaccount:k8s-rdma:" $account | replace "system:serviceaccount:kube-system:" $account | trim }}
{{- end }}
{{- end }}
{{- end }}

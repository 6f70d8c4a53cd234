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

{{/* The ports of processes; defaults as in src/k8s_rdma/config/addresses.py. */}}
{{- define "k8s-rdma.server-port" -}}
{{- (.Values.node.server.config | default dict).port | default 54005 -}}
{{- end }}
{{- define "k8s-rdma.device-plugin-port" -}}
{{- (.Values.node.devicePlugin.config | default dict).port | default 54006 -}}
{{- end }}
{{- define "k8s-rdma.extender-port" -}}
{{- (.Values.extender.config | default dict).port | default 8888 -}}
{{- end }}

{{/* What ResourceClaims need; the API is of 1.34, where consumable capacity is a feature gate. */}}
{{- define "k8s-rdma.check-claims" -}}
{{- if not (semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail "dra.enabled: needs Kubernetes 1.36, or 1.34 with the feature gate DRAConsumableCapacity" -}}
{{- end -}}
{{- end }}

{{/*
A node's resource has one owner: kube-scheduler makes no claim for what a node counts already, and kubelet gives the
container no device of it.
*/}}
{{- define "k8s-rdma.check-extended-resource" -}}
{{- $name := .Values.dra.extendedResourceName -}}
{{- if not (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail "dra.extendedResourceName: needs Kubernetes 1.36" -}}
{{- end -}}
{{- if .Values.node.devicePlugin.enabled -}}
{{- $given := (.Values.node.devicePlugin.config | default dict).resources | default (list (dict "mode" "exact")) -}}
{{- if .Values.node.devicePlugin.mount -}}
{{- $given = append $given (dict "mode" "mount") -}}
{{- end -}}
{{- range $given -}}
{{- $own := .name | default (get (dict "exact" "k8s-rdma.io/slot" "mount" "rdma-sriov/dev-infiniband-mount" "exclusive" "tencent.com/rdma") .mode) -}}
{{- if or (eq $name $own) (and .share (eq $name (print $own "-shared"))) -}}
{{- fail (printf "dra.extendedResourceName: %s is a resource of node.devicePlugin, mode %s, and a node's resource has one owner; choose another name, or take it from node.devicePlugin.config.resources" $name .mode) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $published := ((.Values.node.agent.config | default dict).publish | default dict).vfResource -}}
{{- if or (eq $name (print $published)) (eq $name (print (.Values.extender.config | default dict).vfResource)) -}}
{{- fail (printf "dra.extendedResourceName: %s is vfResource, by which agents count the VFs for annotations, and a node's resource has one owner; choose another name" $name) -}}
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

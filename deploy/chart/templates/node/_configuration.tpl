{{/* What each process of a node is told: the values, and above them what the DaemonSet itself decides. */}}

{{- define "k8s-rdma.init.yaml" -}}
{{- $ours := dict "keepUsedVfs" true -}}
{{- include "k8s-rdma.with-hardware" (dict "context" . "config" .Values.node.init.config "ours" $ours) -}}
{{- end }}

{{- define "k8s-rdma.agent.yaml" -}}
{{- $publish := merge (dict "leaseNamespace" .Release.Namespace) ((.Values.node.agent.config | default dict).publish | default dict) -}}
{{- $ours := dict "hostRoot" "/host" "inCluster" true "stateGroup" 65532 "placementKeyFile" "/etc/k8s-rdma/key" "policyFile" "/etc/k8s-rdma/policies/policies.yaml" "publish" $publish -}}
{{- if .Values.node.devicePlugin.enabled -}}
{{- $_ := set $ours "devicePlugin" "/etc/k8s-rdma/config/device-plugin.yaml" -}}
{{- end -}}
{{- if ne .Values.node.cni.binDir "/opt/cni/bin" -}}
{{- $_ := set $ours "cniPath" (print .Values.node.cni.binDir ":/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni") -}}
{{- end -}}
{{- include "k8s-rdma.with-hardware" (dict "context" . "config" .Values.node.agent.config "ours" $ours) -}}
{{- end }}

{{- define "k8s-rdma.server.yaml" -}}
{{- $ours := dict -}}
{{- with .Values.node.server.tls -}}
{{- if .secretName -}}
{{- $tls := dict "certFile" "/etc/k8s-rdma/tls/tls.crt" "keyFile" "/etc/k8s-rdma/tls/tls.key" -}}
{{- if .clientCa -}}
{{- $_ := set $tls "clientCaFile" "/etc/k8s-rdma/tls/ca.crt" -}}
{{- with .clientNames -}}
{{- $_ := set $tls "clientNames" . -}}
{{- end -}}
{{- end -}}
{{- $_ := set $ours "tls" $tls -}}
{{- end -}}
{{- end -}}
{{- if .Values.node.server.tokensSecretName -}}
{{- $_ := set $ours "tokenFile" "/etc/k8s-rdma/tokens/tokens" -}}
{{- else if not (and .Values.node.server.tls.secretName .Values.node.server.tls.clientCa) -}}
{{- $open := (.Values.node.server.config | default dict).openPaths | default (list) -}}
{{- if and (include "k8s-rdma.asks-nodes" .) (not (has "/v1/node" $open)) -}}
{{- $open = append $open "/v1/node" -}}
{{- end -}}
{{- $_ := set $ours "openPaths" $open -}}
{{- end -}}
{{- include "k8s-rdma.with-hardware" (dict "context" . "config" .Values.node.server.config "ours" $ours) -}}
{{- end }}

{{- define "k8s-rdma.device-plugin.yaml" -}}
{{- $ours := dict "kubeletDir" (print .Values.node.kubeletDir "/device-plugins") "podResources" (print .Values.node.kubeletDir "/pod-resources/kubelet.sock") -}}
{{- if .Values.node.server.tokensSecretName -}}
{{- $_ := set $ours "tokenFile" "/etc/k8s-rdma/tokens/tokens" -}}
{{- else if not (hasKey (.Values.node.devicePlugin.config | default dict) "openPaths") -}}
{{- $_ := set $ours "openPaths" (list) -}}
{{- end -}}
{{- $settings := merge $ours (.Values.node.devicePlugin.config | default dict) -}}
{{- $resources := $settings.resources | default (list (dict "mode" "exact")) -}}
{{- if .Values.node.devicePlugin.mount -}}
{{- $resources = append $resources (dict "mode" "mount") -}}
{{- end -}}
{{- $_ := set $settings "resources" $resources -}}
{{- toYaml $settings -}}
{{- end }}

{{/* With `source: http` the extender reads /v1/node of each node. */}}
{{- define "k8s-rdma.asks-nodes" -}}
{{- if and .Values.extender.enabled (eq (print (.Values.extender.config | default dict).source) "http") }}yes{{ end }}
{{- end }}

{{- define "k8s-rdma.with-hardware" -}}
{{- $settings := merge .ours (.config | default dict) -}}
{{- $hardware := merge (dict) .context.Values.hardware ($settings.hardware | default dict) -}}
{{- if not (or $hardware.pfs (hasKey $hardware "all")) -}}
{{- $_ := set $hardware "all" (ne (include "k8s-rdma.had-all-pfs" .context) "") -}}
{{- end -}}
{{- $_ := set $settings "hardware" $hardware -}}
{{- toYaml $settings -}}
{{- end }}

{{/* Before `hardware.all`, every PF was used where no rule was given: an upgrade of such a release keeps that. */}}
{{- define "k8s-rdma.had-all-pfs" -}}
{{- with lookup "v1" "ConfigMap" .Release.Namespace "k8s-rdma-node" -}}
{{- $agent := index .data "agent.yaml" -}}
{{- if not (or (contains "  all: false" $agent) (contains "  pfs:" $agent)) }}yes{{ end -}}
{{- end -}}
{{- end }}

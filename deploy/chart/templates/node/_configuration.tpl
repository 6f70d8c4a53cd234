{{/* The configuration of each process of a node: the values, and above them what the DaemonSet itself decides. */}}

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
{{- if include "k8s-rdma.tokens-secret" . -}}
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
{{- if include "k8s-rdma.tokens-secret" . -}}
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

{{/* The DRA driver is a device plugin without resources, reached as that one is. */}}
{{- define "k8s-rdma.claims.yaml" -}}
{{- $plugin := .Values.node.devicePlugin.config | default dict -}}
{{- $claims := dict "pluginsDir" (print .Values.node.kubeletDir "/plugins") "registryDir" (print .Values.node.kubeletDir "/plugins_registry") -}}
{{- if .Values.dra.numaNodeList -}}
{{- $_ := set $claims "numaNodeList" true -}}
{{- end -}}
{{- $settings := dict "resources" (list) "inCluster" true "claims" $claims -}}
{{- if include "k8s-rdma.tokens-secret" . -}}
{{- $_ := set $settings "tokenFile" "/etc/k8s-rdma/tokens/tokens" -}}
{{- end -}}
{{- if or (not (include "k8s-rdma.tokens-secret" .)) $plugin.openPaths -}}
{{- $_ := set $settings "openPaths" ($plugin.openPaths | default (list)) -}}
{{- end -}}
{{- if $plugin.port -}}
{{- $_ := set $settings "port" $plugin.port -}}
{{- end -}}
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
{{- if not .context.Values.dra.enabled -}}
{{- range $hardware.pfs -}}
{{- if or .claims (eq (print .use) "claims") -}}
{{- $key := ternary "claims" "use: claims" (hasKey . "claims") -}}
{{- fail (printf "hardware.pfs[].%s needs dra.enabled, without which no pod could ask for these PFs" $key) -}}
{{- end -}}
{{- end -}}
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

{{/* Keys of the CNI plugin, with the addresses of `ipam`. */}}
{{- define "k8s-rdma.plugin.json" -}}
{{- $plugin := deepCopy (.Values.node.cni.plugin | default dict) -}}
{{- if .Values.ipam.range -}}
{{- if $plugin.ipam -}}
{{- fail "ipam.range and node.cni.plugin.ipam: both are set, and one of them says it all" -}}
{{- end -}}
{{- $_ := set $plugin "ipam" (include "k8s-rdma.ipam" (dict "context" . "range" .Values.ipam.range) | fromJson) -}}
{{- end -}}
{{- if .Values.ipam.ranges -}}
{{- $networks := $plugin.networks | default dict -}}
{{- range $name, $range := .Values.ipam.ranges -}}
{{- $network := get $networks $name | default dict -}}
{{- if $network.ipam -}}
{{- fail (printf "ipam.ranges.%s and node.cni.plugin.networks.%s.ipam: both are set, and one of them says it all" $name $name) -}}
{{- end -}}
{{- $_ := set $network "ipam" (include "k8s-rdma.ipam" (dict "context" $ "range" $range) | fromJson) -}}
{{- $_ := set $networks $name $network -}}
{{- end -}}
{{- $_ := set $plugin "networks" $networks -}}
{{- end -}}
{{- toJson $plugin -}}
{{- end }}

{{- define "k8s-rdma.ipam" -}}
{{- $by := include "k8s-rdma.ipam-plugin" .context -}}
{{- $subnets := splitList "," .range -}}
{{- if eq $by "whereabouts" -}}
{{- $ranges := list -}}
{{- range $subnets -}}
{{- $ranges = append $ranges (dict "range" .) -}}
{{- end -}}
{{- toJson (dict "type" $by "ipRanges" $ranges) -}}
{{- else -}}
{{- $ranges := list -}}
{{- range $subnets -}}
{{- $ranges = append $ranges (list (dict "subnet" .)) -}}
{{- end -}}
{{- toJson (dict "type" $by "ranges" $ranges "perNode" .context.Values.ipam.perNode) -}}
{{- end -}}
{{- end }}

{{/* Another plugin would give out again what pods have of the one before: so an upgrade keeps it. */}}
{{- define "k8s-rdma.ipam-plugin" -}}
{{- $stored := (lookup "v1" "ConfigMap" .Release.Namespace "k8s-rdma-node" | default dict).data | default dict -}}
{{- $before := index $stored "plugin.json" | default "" -}}
{{- if ne .Values.ipam.by "auto" -}}
{{- .Values.ipam.by -}}
{{- else if contains "\"type\":\"whereabouts\"" $before -}}
whereabouts
{{- else if contains "\"type\":\"host-local\"" $before -}}
host-local
{{- else if .Capabilities.APIVersions.Has "whereabouts.cni.cncf.io/v1alpha1" -}}
whereabouts
{{- else -}}
host-local
{{- end -}}
{{- end }}

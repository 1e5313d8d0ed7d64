{{- define "gate.selector" -}}
app.kubernetes.io/name: safedrain-gate
{{- end }}

{{- define "gate.labels" -}}
{{ include "gate.selector" . }}
app.kubernetes.io/part-of: safedrain
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* The label that names a mode; the gate is told the same by its arguments. */}}
{{- define "gate.modes" -}}
safedrain.dev/mode: {{ include "gate.mode" . | quote }}
safedrain.dev/scale: {{ include "gate.scale" . | quote }}
{{- end }}

{{- /* Unquoted, YAML reads off as false. */}}
{{- define "gate.mode" -}}
{{- $mode := required "mode: name what is done about evictions: enforce, warn or off (begin with warn)" .Values.mode | toString | replace "false" "off" -}}
{{- if not (has $mode (list "enforce" "warn" "off")) }}{{ fail (printf "mode: %q is none of enforce, warn, off" $mode) }}{{ end -}}
{{- $mode -}}
{{- end }}

{{- define "gate.scale" -}}
{{- $scale := required "scale: name what is done about scale-downs below the floor: clamp, deny, warn or off (begin with warn)" .Values.scale | toString | replace "false" "off" -}}
{{- if not (has $scale (list "clamp" "deny" "warn" "off")) }}{{ fail (printf "scale: %q is none of clamp, deny, warn, off" $scale) }}{{ end -}}
{{- $scale -}}
{{- end }}

{{- /* A port by its name: what the values say, else the default for pods or for the host network. */}}
{{- define "gate.port" -}}
{{- $usual := dict "webhook" 9443 "metrics" 8080 "health" 8081 -}}
{{- $host := dict "webhook" 18443 "metrics" 18080 "health" 18081 -}}
{{- $set := get .root.Values.ports .name | default 0 | int -}}
{{- if and .root.Values.hostNetwork (eq $set 10250) }}{{ fail (printf "ports.%s: 10250 is the kubelet's with hostNetwork; name another port" .name) }}{{ end -}}
{{- if $set }}{{ $set }}{{ else if .root.Values.hostNetwork }}{{ get $host .name }}{{ else }}{{ get $usual .name }}{{ end -}}
{{- end }}

{{- define "gate.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "gate.certManager" -}}
{{- $source := .Values.certificate.source -}}
{{- if not (has $source (list "self-signed" "cert-manager")) }}{{ fail (printf "certificate.source: %q is none of self-signed, cert-manager" (toString $source)) }}{{ end -}}
{{- if eq $source "cert-manager" }}true{{ end -}}
{{- end }}

{{- /* The namespace of the gate is exempt, so it has to be its own. */}}
{{- define "gate.namespace" -}}
{{- if hasPrefix "kube-" .Release.Namespace }}{{ fail (printf "namespace %s: install the gate into a namespace of its own, such as safedrain-system: its namespace is exempt from it" .Release.Namespace) }}{{ end -}}
{{- .Release.Namespace -}}
{{- end }}

{{- define "gate.subject" -}}
- kind: ServiceAccount
  name: safedrain-gate
  namespace: {{ include "gate.namespace" . }}
{{- end }}

{{- define "gate.client" -}}
admissionReviewVersions: [v1]
clientConfig:
  service:
    namespace: {{ include "gate.namespace" .root }}
    name: safedrain-gate
    path: {{ .path }}
    port: 443
matchPolicy: Equivalent
sideEffects: NoneOnDryRun
timeoutSeconds: 10
{{- end }}

{{- define "gate.exempt" -}}
namespaceSelector:
  matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [{{ include "gate.namespace" . }}]}
{{- end }}

{{- define "gate.evictions" -}}
rules:
- apiGroups: [""]
  apiVersions: [v1]
  resources: [pods/eviction]
  operations: [CREATE]
  scope: Namespaced
{{- end }}

{{- define "gate.scales" -}}
rules:
- apiGroups: ["*"]
  apiVersions: ["*"]
  resources: ["*/scale"]
  operations: [UPDATE]
  scope: Namespaced
matchConditions:
- name: fewer-replicas # zero replicas are absent in a Scale
  expression: >-
    (has(object.spec.replicas) ? object.spec.replicas : 0) <
    (has(oldObject.spec.replicas) ? oldObject.spec.replicas : 0)
{{- end }}

{{- define "torchloom.labels" -}}
app.kubernetes.io/name: torchloom
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "torchloom.secret" -}}
{{ .Values.nats.existingSecret | default (printf "%s-nats" .Release.Name) }}
{{- end }}

{{- define "torchloom.scheme" -}}
{{ if .Values.nats.tlsSecret }}tls{{ else }}nats{{ end }}
{{- end }}

{{- /* The URLs of all servers, with the login `login`, a text as USER:PASSWORD@. */ -}}
{{- define "torchloom.urls" -}}
{{- $urls := list -}}
{{- range $number := until (int .root.Values.nats.replicas) -}}
{{- $host := printf "%s-nats-%d.%s-nats.%s.svc" $.root.Release.Name $number $.root.Release.Name $.root.Release.Namespace -}}
{{- $urls = append $urls (printf "%s://%s%s:4222" (include "torchloom.scheme" $.root) $.login $host) -}}
{{- end -}}
{{ join "," $urls }}
{{- end }}

{{- define "torchloom.routes" -}}
{{- $urls := list -}}
{{- range $number := until (int .Values.nats.replicas) -}}
{{- $host := printf "%s-nats-%d.%s-nats.%s.svc" $.Release.Name $number $.Release.Name $.Release.Namespace -}}
{{- $urls = append $urls (printf "\"nats://routes:$(NATS_PASSWORD)@%s:6222\"" $host) -}}
{{- end -}}
[{{ join ", " $urls }}]
{{- end }}

{{- define "torchloom.pod" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "torchloom.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Spread a StatefulSet's pods over nodes, as far as there are enough. */ -}}
{{- define "torchloom.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "torchloom.labels" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- end }}

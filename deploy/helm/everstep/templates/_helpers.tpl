{{- define "everstep.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "everstep.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "everstep.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "everstep.selector" -}}
app.kubernetes.io/name: {{ include "everstep.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "everstep.labels" -}}
{{ include "everstep.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "everstep.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "everstep.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* A value as text. Whole numbers of a file are floats in Helm, which `toString` writes as 2.5e+07. */}}
{{- define "everstep.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ printf "%.0f" . }}{{- else -}}{{ toString . }}{{- end -}}
{{- end -}}

{{/* The image of a build: (dict "root" $ "build" build), where a build has a tag or a digest. */}}
{{- define "everstep.image" -}}
{{- $image := .root.Values.image -}}
{{- if .build.digest -}}
{{- printf "%s@%s" $image.repository .build.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (include "everstep.text" .build.tag) -}}
{{- end -}}
{{- end -}}

{{/* The name of the workers of a build. */}}
{{- define "everstep.workerName" -}}
{{- $name := printf "%s-worker" (include "everstep.fullname" .root) -}}
{{- if .build.buildId -}}
{{- /* Two ids may have one form as a name, such as 1.0 and 1-0: the hash differs. Labels have 63 characters. */ -}}
{{- $id := include "everstep.text" .build.buildId -}}
{{- $slug := regexReplaceAll "[^a-z0-9]+" (lower $id) "-" | trunc (int (sub 55 (len $name))) | trimAll "-" -}}
{{- printf "%s-%s-%s" $name $slug (sha256sum $id | trunc 6) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{- define "everstep.scheme" -}}{{ ternary "https" "http" .Values.tls }}{{- end -}}

{{- define "everstep.allowedHosts" -}}
{{- $name := include "everstep.fullname" . -}}
{{- $hosts := compact (list .Values.hosts.api .Values.hosts.gateway) -}}
{{- range list "api" "gateway" -}}
{{- $service := printf "%s-%s" $name . -}}
{{- $hosts = concat $hosts (list $service (printf "%s.%s" $service $.Release.Namespace) (printf "%s.%s.svc" $service $.Release.Namespace) (printf "%s.%s.svc.cluster.local" $service $.Release.Namespace)) -}}
{{- end -}}
{{- /* Prometheus reads pods by their addresses. */ -}}
{{- join "," (concat $hosts .Values.allowedHosts (list "$(POD_IP)")) -}}
{{- end -}}

{{/* The keys of the Secret, as a list in JSON: variables, and what single values ask for. */}}
{{- define "everstep.secretKeys" -}}
{{- $keys := .Values.secrets.variables -}}
{{- if .Values.database.pooled }}{{ $keys = append $keys "DATABASE_DIRECT_URL" }}{{ end -}}
{{- if .Values.database.replica }}{{ $keys = append $keys "DATABASE_REPLICA_URL" }}{{ end -}}
{{- with .Values.nats.credentialsKey }}{{ $keys = append $keys . }}{{ end -}}
{{- $keys | uniq | toJson -}}
{{- end -}}

{{/* The variables of every process. */}}
{{- define "everstep.env" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: TEMPORAL_ADDRESS
  value: {{ .Values.temporal.address | quote }}
- name: TEMPORAL_NAMESPACE
  value: {{ .Values.temporal.namespace | quote }}
- name: EVERSTEP_TASK_QUEUE
  value: {{ .Values.temporal.taskQueue | quote }}
- name: EVERSTEP_TEMPORAL_TLS
  value: {{ .Values.temporal.tls | quote }}
{{- with .Values.agents | default (ternary "agents" "" (not (empty .Values.agentFiles))) }}
- name: EVERSTEP_AGENTS
  value: {{ . | quote }}
{{- end }}
- name: EVERSTEP_ALLOWED_HOSTS
  value: {{ include "everstep.allowedHosts" . | quote }}
{{- with .Values.hosts.api }}
- name: EVERSTEP_PUBLIC_URL
  value: {{ printf "%s://%s" (include "everstep.scheme" $) . | quote }}
{{- end }}
{{- with concat (ternary (list (printf "%s://%s" (include "everstep.scheme" .) .Values.hosts.api)) list (not (empty .Values.hosts.api))) .Values.allowedOrigins }}
- name: EVERSTEP_ALLOWED_ORIGINS
  value: {{ join "," . | quote }}
{{- end }}
{{- if and .Values.hosts.gateway .Values.gateway.replicas }}
- name: EVERSTEP_GATEWAY_URL
  value: {{ printf "%s://%s" (ternary "wss" "ws" .Values.tls) .Values.hosts.gateway | quote }}
{{- end }}
{{- with .Values.nats }}
{{- if .enabled }}
- name: EVERSTEP_BUS
  value: nats
{{- with .url }}
- name: EVERSTEP_NATS_URL
  value: {{ . | quote }}
{{- end }}
{{- with .credentialsKey }}
- name: EVERSTEP_NATS_CREDENTIALS
  value: /run/secrets/everstep/{{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.secrets.variables }}
- name: {{ . }}_FILE
  value: /run/secrets/everstep/{{ . }}
{{- end }}
{{- end -}}

{{/* Variables from a map: (dict "maps" (list ...)); later maps win. */}}
{{- define "everstep.extraEnv" -}}
{{- $all := dict -}}
{{- range .maps }}{{ $all = mergeOverwrite $all (deepCopy .) }}{{ end -}}
{{- range $name, $value := $all }}
- name: {{ $name }}
  value: {{ include "everstep.text" $value | quote }}
{{- end }}
{{- end -}}

{{- define "everstep.volumeMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /home/everstep/.cache}
- {name: secrets, mountPath: /run/secrets/everstep, readOnly: true}
{{- if .Values.config }}
- {name: files, mountPath: /home/everstep/everstep.toml, subPath: everstep.toml, readOnly: true}
{{- end }}
{{- if .Values.agentFiles }}
- {name: agents, mountPath: /home/everstep/agents, readOnly: true}
{{- end }}
{{- end -}}

{{- define "everstep.volumes" -}}
- name: tmp
  emptyDir: {}
- name: cache
  emptyDir: {}
- name: secrets
  secret:
    secretName: {{ .Values.secrets.name }}
    defaultMode: 0440
    items:
    {{- $keys := concat .Values.secrets.variables (compact (list .Values.nats.credentialsKey)) | uniq }}
    {{- range $keys }}
      - {key: {{ . }}, path: {{ . }}}
    {{- end }}
{{- if .Values.config }}
- name: files
  configMap: {name: {{ include "everstep.fullname" . }}-config}
{{- end }}
{{- if .Values.agentFiles }}
- name: agents
  configMap: {name: {{ include "everstep.fullname" . }}-agents}
{{- end }}
{{- end -}}

{{/* What all pods have: (dict "root" $ "component" name "values" values). */}}
{{- define "everstep.podSpec" -}}
{{- $root := .root -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "everstep.selector" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Probes: (dict "port" name). A process listens at once, also while it waits for its servers. */}}
{{- define "everstep.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}

{{/* Restarts pods whose files changed. */}}
{{- define "everstep.checksum" -}}
checksum/files: {{ printf "%s%s" .Values.config (toJson .Values.agentFiles) | sha256sum }}
{{- end -}}

{{/* What the current workers have to carry. Executions that wait are in the database, so each process says the same. */}}
{{- define "everstep.demand" -}}
{{- $pods := printf "namespace=%q,pod=~%q" .Release.Namespace (printf "%s-.*" (include "everstep.workerName" (dict "root" . "build" .Values.worker))) -}}
{{- default (printf "sum(max by (tenant) (everstep_queue_depth{namespace=%q})) + sum(everstep_activity_slots{state=~\"used|waiting\",%s})" .Release.Namespace $pods) .Values.worker.autoscaling.query -}}
{{- end -}}

{{- define "asched.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "asched.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "asched.labels" -}}
{{ include "asched.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: scheduler
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{- define "asched.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "asched.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is required where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "asched.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end -}}
{{- end -}}

{{/* Not empty for a journal in PostgreSQL. */}}
{{- define "asched.inPostgres" -}}
{{- .Values.journal.postgres.secret.name -}}
{{- end -}}

{{/* Not empty if a profile schedules gangs. */}}
{{- define "asched.gangs" -}}
{{- if contains "\"GangScheduling\"" (toJson .Values.scheduler) -}}yes{{- end -}}
{{- end -}}

{{/* Not empty with leader election, which more than one replica needs. */}}
{{- define "asched.elects" -}}
{{- if gt (int .Values.replicas) 1 -}}yes{{- end -}}
{{- end -}}

{{- define "asched.lease" -}}
{{- default (include "asched.fullname" .) .Values.leaderElection.resourceName -}}
{{- end -}}

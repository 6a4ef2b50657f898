{{/* The browser interface: a sidecar on the volume of a SQLite journal, or a Deployment on PostgreSQL. */}}
{{- define "asched.uiname" -}}
{{ include "asched.fullname" . }}-ui
{{- end -}}

{{- define "asched.uiselector" -}}
app.kubernetes.io/name: {{ printf "%s-ui" (default .Chart.Name .Values.nameOverride | trunc 60 | trimSuffix "-") }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "asched.uilabels" -}}
{{ include "asched.uiselector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: ui
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{/* The account that asks the API server who a reader is. */}}
{{- define "asched.uiaccount" -}}
{{- if and (include "asched.inPostgres" .) .Values.serviceAccount.create -}}
{{ include "asched.uiname" . }}
{{- else -}}
{{ include "asched.serviceAccountName" . }}
{{- end -}}
{{- end -}}

{{- define "asched.uicontainer" -}}
name: ui
image: {{ include "asched.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - ui
  - --listen={{ .Values.ui.host }}:{{ .Values.ui.port }}
  - --authentication=kubernetes
  - --index-dir=/var/lib/asched-ui/index
  - --results-dir=/var/lib/asched-ui/results
  {{- range .Values.ui.tokenAudiences }}
  - --token-audience={{ . }}
  {{- end }}
  {{- if .Values.ui.tls.secret }}
  - --tls-certificate=/etc/asched-ui-tls/tls.crt
  - --tls-key=/etc/asched-ui-tls/tls.key
  {{- else }}
  # A gateway in front of the Service speaks HTTPS.
  - --behind-proxy
  {{- end }}
env:
  - name: ASCHED_JOURNAL
    {{- if include "asched.inPostgres" . }}
    {{- $secret := ternary .Values.ui.postgres.secret .Values.journal.postgres.secret (ne .Values.ui.postgres.secret.name "") }}
    valueFrom:
      secretKeyRef:
        name: {{ $secret.name }}
        key: {{ $secret.key }}
    {{- else }}
    value: /var/lib/asched/journal.db
    {{- end }}
ports:
  - {name: ui, containerPort: {{ .Values.ui.port }}, protocol: TCP}
livenessProbe:
  httpGet: {path: /healthz, port: ui, scheme: {{ ternary "HTTPS" "HTTP" (ne .Values.ui.tls.secret "") }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /healthz, port: ui, scheme: {{ ternary "HTTPS" "HTTP" (ne .Values.ui.tls.secret "") }}}
  periodSeconds: 5
  timeoutSeconds: 5
resources: {{- toYaml .Values.ui.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: ui-state, mountPath: /var/lib/asched-ui}
  {{- if not (include "asched.inPostgres" .) }}
  # SQLite reads a journal in WAL mode without write access while the daemon has it open.
  - {name: journal, mountPath: /var/lib/asched, readOnly: true}
  {{- end }}
  {{- if .Values.ui.tls.secret }}
  - {name: ui-tls, mountPath: /etc/asched-ui-tls, readOnly: true}
  {{- end }}
{{- end -}}

{{- define "asched.uivolumes" -}}
# The index and the results of the what-if lab. An emptyDir outlives restarts of the container.
- name: ui-state
  {{- if .Values.ui.stateClaim }}
  persistentVolumeClaim: {claimName: {{ .Values.ui.stateClaim }}}
  {{- else }}
  emptyDir: {sizeLimit: 4Gi}
  {{- end }}
{{- if .Values.ui.tls.secret }}
- name: ui-tls
  secret: {secretName: {{ .Values.ui.tls.secret }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "asched.uifrom" -}}
{{- if .Values.ui.clients }}
{{- toYaml .Values.ui.clients }}
{{- else }}
- namespaceSelector: {}
{{- end }}
{{- end -}}

{{/* The pod, the same in a StatefulSet and in a Deployment. */}}
{{- define "asched.pod" -}}
{{- include "asched.checks" . -}}
metadata:
  annotations:
    # Only settings that need a restart replace the pods. The daemon applies changed profiles, extenders and
    # batch sessions itself, about a minute later (the delay of the kubelet).
    checksum/settings: {{ toJson (list (omit .Values.settings "log") .Values.journal .Values.health (omit .Values.scheduler "profiles" "extenders") (ternary .Values.leaderElection dict (gt (int .Values.replicas) 1))) | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- include "asched.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "asched.serviceAccountName" . }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: asched
      image: {{ include "asched.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [run, --config, /etc/asched/asched.yaml]
      env:
        - name: ASCHED_JOURNAL
          {{- if include "asched.inPostgres" . }}
          # Not an argument: command lines are visible to all users.
          valueFrom:
            secretKeyRef:
              name: {{ .Values.journal.postgres.secret.name }}
              key: {{ .Values.journal.postgres.secret.key }}
          {{- else }}
          value: /var/lib/asched/journal.db
          {{- end }}
      ports:
        - {name: http, containerPort: {{ .Values.health.port }}, protocol: TCP}
      livenessProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        # A batch session, or the fold at the start, may block the event loop.
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
      resources: {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: config, mountPath: /etc/asched, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if not (include "asched.inPostgres" .) }}
        - {name: journal, mountPath: /var/lib/asched}
        {{- end }}
        {{- if .Values.journal.signing.secret.name }}
        - {name: signing-key, mountPath: /etc/asched-signing, readOnly: true}
        {{- end }}
        {{- if .Values.journal.signing.anchorClaim }}
        - {name: anchors, mountPath: /var/lib/asched-anchors}
        {{- end }}
    {{- if and .Values.ui.enabled (not (include "asched.inPostgres" .)) }}
    - {{- include "asched.uicontainer" . | nindent 6 }}
    {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "asched.fullname" . }}}
    # SQLite uses temporary files for large sorts.
    - name: tmp
      emptyDir: {sizeLimit: 256Mi}
    {{- with .Values.journal.signing.secret }}
    {{- if .name }}
    - name: signing-key
      secret:
        secretName: {{ .name }}
        defaultMode: 0440
        items: [{key: {{ .key }}, path: signing-key.pem}]
    {{- end }}
    {{- end }}
    {{- with .Values.journal.signing.anchorClaim }}
    - name: anchors
      persistentVolumeClaim: {claimName: {{ . }}}
    {{- end }}
    {{- if and .Values.ui.enabled (not (include "asched.inPostgres" .)) }}
    {{- include "asched.uivolumes" . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

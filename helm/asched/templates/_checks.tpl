{{/*
Checks that the schema cannot express. The pod template includes them, so every rendering runs them.
*/}}
{{- define "asched.checks" -}}
{{- if hasKey (default dict .Values.scheduler) "leaderElection" -}}
{{- fail "scheduler.leaderElection is set by the chart: use leaderElection" -}}
{{- end -}}
{{- if hasKey .Values.settings "leaderElection" -}}
{{- fail "settings.leaderElection is set by the chart: use leaderElection" -}}
{{- end -}}
{{- range $name := list "health" "batch" "kubeconfig" -}}
{{- if hasKey $.Values.settings $name -}}
{{- fail (printf "settings.%s is set by the chart: %s" $name (get (dict "health" "use health.host and health.port" "batch" "use batch" "kubeconfig" "the service account is used") $name)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.journal.signing.anchorClaim (not .Values.journal.signing.secret.name) -}}
{{- fail "journal.signing.anchorClaim needs journal.signing.secret.name: only signed heads are anchored" -}}
{{- end -}}
{{- if and .Values.ui.enabled (not (include "asched.inPostgres" .)) (gt (int .Values.replicas) 1) -}}
{{- fail "ui.enabled with more than one replica needs a journal in PostgreSQL: each SQLite journal holds only what its replica decided" -}}
{{- end -}}
{{- if and .Values.ui.enabled (eq (int .Values.ui.port) (int .Values.health.port)) -}}
{{- fail "ui.port and health.port are the same" -}}
{{- end -}}
{{- if hasKey .Values.settings "journal" -}}
{{- fail "settings.journal is set by the chart: use journal" -}}
{{- end -}}
{{- end -}}

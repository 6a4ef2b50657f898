{{/*
What no schema can say. Included by the pod's template, so that nothing is rendered without it.

The first refusal goes when `asched run` holds an election of the leader: take these three lines away, and
the "maximum" of "replicas" is then in nobody's way.
*/}}
{{- define "asched.refusals" -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- fail (printf "replicas is %d, but this asched has no leader election: two would both schedule, and refuse each other's journal. Leave replicas at 1." (int .Values.replicas)) -}}
{{- end -}}
{{- range $name := list "health" "batch" "kubeconfig" -}}
{{- if hasKey $.Values.settings $name -}}
{{- fail (printf "settings.%s is set by the chart: %s" $name (get (dict "health" "use health.host and health.port" "batch" "use batch" "kubeconfig" "the service account is used") $name)) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.settings "journal" -}}
{{- fail "settings.journal is set by the chart: use journal" -}}
{{- end -}}
{{- end -}}

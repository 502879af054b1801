{{/*
A machine's pod. Nothing in it depends on the chart's version, on presets or on the time: an upgrade of the chart must
not change it, but for the shim's image. What does change with those reaches the steps through the machine's ConfigMap.
*/}}

{{/* The pod template of the StatefulSet. Its annotations say what the owner's values came to, for NOTES.txt to compare. */}}
{{- define "stateful-pods.podTemplate" -}}
{{- $material := include "stateful-pods.inlineMaterial" . -}}
{{- $spec := include "stateful-pods.podSpec" . -}}
metadata:
  labels:
    {{- include "stateful-pods.selector" . | nindent 4 }}
    {{- with .values.labels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    kubectl.kubernetes.io/default-container: guest
    {{- with $material }}
    stateful-pods.io/material: {{ include "stateful-pods.digest" . }}
    {{- end }}
    stateful-pods.io/values: {{ include "stateful-pods.digest" (dict "spec" (replace .image "" $spec | fromYaml) "labels" .values.labels "annotations" .values.annotations) }}
    {{- with .values.annotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  {{- $spec | nindent 2 }}
{{- end -}}

{{/* A short digest, of meaning and not of spelling. Short, so that it is no oracle for what a Secret holds. */}}
{{- define "stateful-pods.digest" -}}
{{ toJson . | sha256sum | trunc 8 | quote }}
{{- end -}}

{{- define "stateful-pods.podSpec" -}}
{{- $values := .values -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- if eq $values.security.mode "userns" }}
hostUsers: false
{{- end }}
securityContext:
  runAsUser: 0 # another system's owners are written
  runAsGroup: 0
terminationGracePeriodSeconds: {{ int $values.terminationGracePeriodSeconds }}
{{- with $values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "stateful-pods.placement" $values.placement }}
{{- with $values.dns.policy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with $values.dns.config }}
dnsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
initContainers:
  {{- include "stateful-pods.steps" . | nindent 2 }}
containers:
  {{- include "stateful-pods.guest" . | nindent 2 }}
{{- with include "stateful-pods.podVolumes" . }}
volumes:
  {{- trim . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "stateful-pods.placement" -}}
{{- $selector := default dict .nodeSelector -}}
{{- with .node }}{{ $selector = merge (dict "kubernetes.io/hostname" .) $selector }}{{ end -}}
{{- with $selector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "affinity" "tolerations" "priorityClassName" "runtimeClassName" }}
{{- with get $ $field }}
{{ dict $field . | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The claims are the StatefulSet's; these are the other volumes. */}}
{{- define "stateful-pods.podVolumes" -}}
{{- with .source.pullSecretName }}
- name: registry-credentials
  secret:
    secretName: {{ . | quote }}
    optional: true # a volume that was filled needs none, and the machine must not wait for it
    defaultMode: 0400
    items:
      - key: .dockerconfigjson
        path: config.json
{{- end }}
{{- with .values.cloudInit }}
- name: provisioning
  projected:
    defaultMode: 0400
    sources:
      {{- range $input, $given := . }}
      {{- $from := default dict $given.valueFrom }}
      {{- if hasKey $from "configMapKeyRef" }}
      - configMap:
          {{- include "stateful-pods.projection" (list $from.configMapKeyRef.name $from.configMapKeyRef.key $input) | nindent 10 }}
      {{- else if hasKey $from "secretKeyRef" }}
      - secret:
          {{- include "stateful-pods.projection" (list $from.secretKeyRef.name $from.secretKeyRef.key $input) | nindent 10 }}
      {{- else }}
      - secret:
          {{- include "stateful-pods.projection" (list (include "stateful-pods.secretName" $) (kebabcase $input) $input) | nindent 10 }}
      {{- end }}
      {{- end }}
{{- end }}
{{- range $name, $volume := .values.volumes }}
{{- if $volume.existingClaim }}
- name: data-{{ $name }}
  persistentVolumeClaim:
    claimName: {{ $volume.existingClaim | quote }}
    {{- if $volume.readOnly }}
    readOnly: true
    {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A key of a Secret or ConfigMap as the file that an input of cloudInit is. A list: object, key, input. */}}
{{- define "stateful-pods.projection" -}}
name: {{ index . 0 | quote }}
items:
  - key: {{ index . 1 | quote }}
    path: {{ kebabcase (index . 2) }}
{{- end -}}

{{/* The steps that make the volume ready for the guest, in their order. Each sees what it needs and no more. */}}
{{- define "stateful-pods.steps" -}}
{{- $machine := dict "SHIM_MACHINE" .name "SHIM_RELEASE" .release "SHIM_NAMESPACE" .namespace -}}
{{- $credentials := ternary (dict "DOCKER_CONFIG" "/registry-credentials") dict (not (empty .source.pullSecretName)) -}}
{{- $guest := .values.guest -}}
{{ include "stateful-pods.step" (dict
     "machine" . "step" "seed"
     "env" (merge $credentials $machine)
     "configMap" .fullname
     "mount" (empty .source.pullSecretName | ternary "" "registry-credentials")) }}
{{ include "stateful-pods.step" (dict
     "machine" . "step" "prepare"
     "env" (merge (dict "SHIM_IDENTITY" .values.rootfs.identity) $machine)) }}
{{ include "stateful-pods.step" (dict
     "machine" . "step" "customize"
     "env" (dict "SHIM_HOSTNAME" (include "stateful-pods.hostname" .))) }}
{{ include "stateful-pods.step" (dict
     "machine" . "step" "provision"
     "env" (merge (dict
       "SHIM_PROVISIONING" $guest.provisioning
       "SHIM_PROVISIONING_REVISION" (include "stateful-pods.revision" $guest.provisioningRevision)) $machine)
     "mount" (empty .values.cloudInit | ternary "" "provisioning")) }}
{{- end -}}

{{/* A whole number stays one: Helm reads numbers as floats. */}}
{{- define "stateful-pods.revision" -}}
{{ kindIs "string" . | ternary . (printf "%.0f" (float64 .)) }}
{{- end -}}

{{/* One step. A dict: the machine, the step, its environment, and the volume that it alone mounts, if any. */}}
{{- define "stateful-pods.step" -}}
- name: {{ .step }}
  image: {{ .machine.image }}
  imagePullPolicy: IfNotPresent
  command: [shim, {{ .step }}]
  {{- with .configMap }}
  envFrom:
    - configMapRef:
        name: {{ . }}
  {{- end }}
  {{- with .env }}
  env:
    {{- include "stateful-pods.env" . | trim | nindent 4 }}
  {{- end }}
  resources:
    requests: {cpu: 100m, memory: 192Mi}
    limits: {memory: 512Mi}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    seccompProfile:
      type: RuntimeDefault
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - name: rootfs
      mountPath: /mnt/rootfs
    {{- with .mount }}
    - name: {{ . }}
      mountPath: /{{ . }}
      readOnly: true
    {{- end }}
{{- end -}}

{{/* Environment variables. Kubernetes would expand $(…): $$ stands for $. */}}
{{- define "stateful-pods.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ replace "$" "$$" $value | quote }}
{{- end }}
{{- end -}}

{{/* The machine itself: the shim changes into the volume, and is replaced by the init that it finds there. */}}
{{- define "stateful-pods.guest" -}}
{{- $values := .values -}}
{{- $volumes := include "stateful-pods.volumesByPath" . | fromYamlArray -}}
{{- $paths := list -}}
{{- range $volumes }}{{ $paths = append $paths .mountPath }}{{ end -}}
{{- $env := dict
      "SHIM_HOSTNAME" (include "stateful-pods.hostname" .)
      "SHIM_STOP_SECONDS" (int $values.terminationGracePeriodSeconds | toString) -}}
{{- with $paths }}{{ $_ := set $env "SHIM_VOLUMES" (join ":" .) }}{{ end -}}
- name: guest
  image: {{ .image }}
  imagePullPolicy: IfNotPresent
  command: [shim, boot]
  tty: true # what the guest prints while it boots shows in the logs
  env:
    {{- include "stateful-pods.env" $env | trim | nindent 4 }}
  {{- with $values.network.ports }}
  ports:
    {{- range $name, $port := . }}
    - name: {{ $name | quote }}
      containerPort: {{ int $port.port }}
      protocol: {{ $port.protocol }}
    {{- end }}
  {{- end }}
  # From here on inside the machine: the shim's image cannot be reached any more. No liveness probe: nobody but the owner
  # ends a pet.
  readinessProbe:
    exec:
      command: [/.stateful-pods/bin/ready.sh]
    periodSeconds: 5
    timeoutSeconds: 10
  lifecycle:
    preStop:
      exec:
        command: [/.stateful-pods/bin/stop.sh]
  {{- with $values.resources }}
  resources: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "stateful-pods.guestSecurity" $values.security | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - name: rootfs
      mountPath: /mnt/rootfs
    {{- range $volumes }}
    - name: {{ .name }}
      mountPath: {{ print "/mnt/rootfs" .mountPath | quote }}
      {{- if .readOnly }}
      readOnly: true
      {{- end }}
    {{- end }}
{{- end -}}

{{/* SYS_ADMIN mounts and changes the root; SYS_BOOT lets an init end its own pod. */}}
{{- define "stateful-pods.guestSecurity" -}}
privileged: false
allowPrivilegeEscalation: true # sudo
capabilities:
  {{- if eq .mode "userns" }}
  add: [SYS_ADMIN, SYS_BOOT]
  {{- else }}
  drop: [ALL]
  add:
    - AUDIT_WRITE
    - CHOWN
    - DAC_OVERRIDE
    - FOWNER
    - FSETID
    - KILL
    - MKNOD
    - NET_BIND_SERVICE
    - NET_RAW
    - SETFCAP
    - SETGID
    - SETPCAP
    - SETUID
    - SYS_ADMIN
    - SYS_BOOT
    - SYS_CHROOT
  {{- end }}
seccompProfile: {{- toYaml .seccompProfile | nindent 2 }}
appArmorProfile:
  type: Unconfined # the runtime's own profile forbids mounting
{{- end -}}

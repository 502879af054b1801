{{/* The claim templates. Immutable: nothing stands here that a later version of the chart could have otherwise. */}}
{{- define "stateful-pods.claims" -}}
claims:
  {{- include "stateful-pods.claim" (dict "name" "rootfs" "accessMode" .values.rootfs.accessMode "volume" .values.rootfs) | nindent 2 }}
  {{- range $name, $volume := .values.volumes }}
  {{- if $volume.size }}
  {{- include "stateful-pods.claim" (dict "name" (printf "data-%s" $name) "accessMode" "ReadWriteOnce" "volume" $volume) | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end -}}

{{- define "stateful-pods.claim" -}}
- metadata:
    name: {{ .name }}
  spec:
    accessModes: [{{ .accessMode }}]
    {{- if hasKey .volume "storageClassName" }}
    storageClassName: {{ .volume.storageClassName | quote }}
    {{- end }}
    {{- with .volume.dataSource }}
    dataSource:
      apiGroup: snapshot.storage.k8s.io
      kind: VolumeSnapshot
      name: {{ .volumeSnapshotName | quote }}
    {{- end }}
    resources:
      requests:
        storage: {{ .volume.size | quote }}
{{- end -}}

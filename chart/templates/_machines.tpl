{{/*
stateful-pods.machines: checks everything, and leaves the list of machines in `.machines` of the root context.

Helm hands one context to all templates of a chart, so this is done once for each render and not once for each object.
A machine is: name, fullname, release, namespace, chart, image (the shim's), source (resolved, with a `reference`
instead of a preset), values (complete, defaults filled in).
*/}}
{{- define "stateful-pods.machines" -}}
{{- if not (hasKey . "machines") -}}
  {{- $inputs := .Files.Get "inputs.yaml" | fromYaml -}}
  {{- $values := deepCopy (omit .Values "global") -}}
  {{- $faults := dict "sentences" list "at" dict -}}
  {{- if and (kindIs "map" $values.shim) (eq (get $values.shim "image" | toString) "") -}}
    {{- $_ := unset $values.shim "image" -}}
  {{- end -}}
  {{- include "stateful-pods.members" (dict "faults" $faults "types" $inputs.types "value" $values "path" "" "members" $inputs.inputs) -}}
  {{- include "stateful-pods.checkRelease" (dict "faults" $faults "root" . "values" $values) -}}
  {{- $presets := .Files.Get "presets.yaml" | fromYaml -}}
  {{- range $name, $preset := $values.presets }}{{ $_ := set $presets $name $preset }}{{ end -}}
  {{- $machines := list -}}
  {{- range $name, $machine := $values.machines -}}
    {{- $fullname := printf "%s-%s" $.Release.Name $name -}}
    {{- $machines = append $machines (dict
          "name" $name "fullname" $fullname "release" $.Release.Name "namespace" $.Release.Namespace
          "chart" $.Chart "image" $values.shim.image "presets" $presets "values" $machine) -}}
  {{- end -}}
  {{- range $machines -}}
    {{- include "stateful-pods.checkMachine" (dict "faults" $faults "root" $ "machine" . "path" (printf "machines.%s" .name)) -}}
  {{- end -}}
  {{- include "stateful-pods.checkClaims" (dict "faults" $faults "machines" $machines) -}}
  {{- with $faults.sentences -}}
    {{- fail (printf "\n\nstateful-pods renders nothing, because %s:\n\n* %s\n" (ternary "of this" (printf "of these %d faults" (len .)) (eq (len .) 1)) (join "\n\n* " .)) -}}
  {{- end -}}
  {{- $_ := set . "machines" $machines -}}
{{- end -}}
{{- end -}}

{{/* Labels that select a machine's objects. Immutable in a StatefulSet: nothing is ever added. */}}
{{- define "stateful-pods.selector" -}}
app.kubernetes.io/name: stateful-pods
app.kubernetes.io/instance: {{ .release | quote }}
stateful-pods.io/machine: {{ .name | quote }}
{{- end -}}

{{/* Metadata of a machine's object; versions belong here, and never into a pod or a claim. */}}
{{- define "stateful-pods.metadata" -}}
name: {{ .fullname }}
namespace: {{ .namespace | quote }}
labels:
  {{- include "stateful-pods.selector" . | nindent 2 }}
  app.kubernetes.io/managed-by: Helm
  app.kubernetes.io/version: {{ .chart.AppVersion | quote }}
  helm.sh/chart: {{ printf "%s-%s" .chart.Name .chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* The machine's host name: the owner's, or the pod's own. */}}
{{- define "stateful-pods.hostname" -}}
{{ default (printf "%s-0" .fullname) .values.hostname }}
{{- end -}}

{{/* The name of the Secret that holds the first-boot material that stands in the values. */}}
{{- define "stateful-pods.secretName" -}}
{{ .fullname }}-cloud-init
{{- end -}}

{{/* The first-boot material that stands in the values, as YAML: file name → content, as `shim provision` reads it. */}}
{{- define "stateful-pods.inlineMaterial" -}}
{{- range $input, $given := .values.cloudInit -}}
  {{- if hasKey $given "value" -}}
    {{- kebabcase $input }}: {{ kindIs "slice" $given.value | ternary $given.value (list (toString $given.value)) | join "\n" | b64enc }}
{{ end -}}
{{- end -}}
{{- end -}}

{{/* The volumes of a machine as the pod names them, in the order of their paths: a path mounts before what is below it. */}}
{{- define "stateful-pods.volumesByPath" -}}
{{- $byPath := dict -}}
{{- range $name, $volume := .values.volumes -}}
  {{- $_ := set $byPath $volume.mountPath (dict "name" (printf "data-%s" $name) "mountPath" $volume.mountPath "readOnly" $volume.readOnly) -}}
{{- end -}}
{{- range $path := keys $byPath | sortAlpha }}
- {{ get $byPath $path | toJson }}
{{- end -}}
{{- end -}}

{{/* A quantity as a number: bytes for a size. */}}
{{- define "stateful-pods.number" -}}
{{- $unit := regexFind "[a-zA-Z]+$" (toString .) -}}
{{- $factors := dict
      "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
      "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (trimSuffix $unit (toString .) | float64) (get $factors $unit) -}}
{{- end -}}

{{/* Where a machine comes from, for NOTES.txt. */}}
{{- define "stateful-pods.sourceNote" -}}
{{- if .source.preset }}the preset {{ .source.preset }}, {{ .source.reference }}
{{- else if eq .source.kind "lxc" }}{{ .source.url }}, SHA-256 {{ .source.sha256 }}
{{- else }}{{ .source.reference }}
{{- if not (contains "@" .source.reference) }}, which is no digest: what its registry answers at the first start is taken, and recorded{{ end }}
{{- end }}
{{- end -}}

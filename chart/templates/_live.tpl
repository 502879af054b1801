{{/*
What the cluster knows already. Without one (helm template, a client-side dry run) lookups find nothing, and the API
server has the last word.
*/}}

{{/* A claim template of the machine, reduced to what Kubernetes never changes, as JSON. Sizes count in bytes. */}}
{{- define "stateful-pods.permanent" -}}
{{- $spec := .spec -}}
{{- dict
      "size" (include "stateful-pods.number" $spec.resources.requests.storage)
      "storageClassName" (hasKey $spec "storageClassName" | ternary (printf "%q" (default "" $spec.storageClassName)) "unset")
      "accessMode" (first $spec.accessModes)
      "dataSource" (get (default dict $spec.dataSource) "name" | default "unset") | toJson -}}
{{- end -}}

{{/* Refuses to change what a StatefulSet never changes, before the API server does, and says what a change needs. */}}
{{- define "stateful-pods.checkLive" -}}
{{- $ := . -}}
{{- $machine := .machine -}}
{{- $live := lookup "apps/v1" "StatefulSet" $machine.namespace $machine.fullname -}}
{{- if eq (dig "spec" "selector" "matchLabels" "stateful-pods.io/machine" "" $live) $machine.name -}}
  {{- $old := dict -}}
  {{- range $live.spec.volumeClaimTemplates }}{{ $_ := set $old .metadata.name . }}{{ end -}}
  {{- $new := dict -}}
  {{- range (include "stateful-pods.claims" $machine | fromYaml).claims }}{{ $_ := set $new .metadata.name . }}{{ end -}}
  {{- $again := printf (print
        "Or let the StatefulSet be made again, while machine and claims stay: "
        "`kubectl --namespace %s delete statefulset %s --cascade=orphan`, then repeat this command")
        $machine.namespace $machine.fullname -}}
  {{- range $name := concat (keys $old) (keys $new) | uniq | sortAlpha -}}
    {{- $path := eq $name "rootfs" | ternary (printf "%s.rootfs" $.path) (printf "%s.volumes.%s" $.path (trimPrefix "data-" $name)) -}}
    {{- if not (hasKey $new $name) -}}
      {{- include "stateful-pods.fault" (list $.faults $path (printf (print
            "the machine has a claim for it, which a StatefulSet never gives up or renames. Put it back as it was. "
            "%s; the claim %s-%s-0 stays behind")
            $again $name $machine.fullname)) -}}
    {{- else if not (hasKey $old $name) -}}
      {{- include "stateful-pods.fault" (list $.faults $path (printf (print
            "the machine exists without it, and a StatefulSet never gets another claim. Make a claim yourself and "
            "name it in existingClaim. %s")
            $again)) -}}
    {{- else -}}
      {{- $was := include "stateful-pods.permanent" (get $old $name) | fromJson -}}
      {{- $is := include "stateful-pods.permanent" (get $new $name) | fromJson -}}
      {{- range $input := list "size" "storageClassName" "accessMode" "dataSource" -}}
        {{- if ne (get $was $input) (get $is $input) -}}
          {{- $shown := list (get $is $input) (get $was $input) -}}
          {{- $needs := printf (print
                "a machine's claim keeps it for ever: for another one, add a machine (or a volume) under another name. "
                "Put it back to %s") (get $was $input) -}}
          {{- if eq $input "size" -}}
            {{- $shown = list (get $new $name).spec.resources.requests.storage (get $old $name).spec.resources.requests.storage -}}
            {{- $needs = printf (print
                  "a StatefulSet never changes it. Put it back to %s, and if the machine needs more room, grow the claim "
                  "itself, where its class allows that: `kubectl --namespace %s patch pvc %s-%s-0 --patch "
                  `'{"spec":{"resources":{"requests":{"storage":"%s"}}}}'` "`. %s")
                  (index $shown 1) $machine.namespace $name $machine.fullname (index $shown 0) $again -}}
          {{- end -}}
          {{- include "stateful-pods.fault" (list $.faults (printf "%s.%s" $path $input) (printf
                "%s was given, and the machine exists with %s; %s"
                (index $shown 0) (index $shown 1) $needs)) -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Why the machine's pod is not what the values now say, in words; nothing if it is, or if there is none. */}}
{{- define "stateful-pods.pending" -}}
{{- $reasons := list -}}
{{- $pod := lookup "v1" "Pod" .namespace (printf "%s-0" .fullname) -}}
{{- if and $pod .values.running -}}
  {{- $old := default dict $pod.metadata.annotations -}}
  {{- $new := (include "stateful-pods.podTemplate" . | fromYaml).metadata.annotations -}}
  {{- range $pod.spec.containers -}}
    {{- if and (eq .name "guest") (ne .image $.image) -}}
      {{- $reasons = append $reasons "the shim's image" -}}
    {{- end -}}
  {{- end -}}
  {{- if ne (get $old "stateful-pods.io/material") (get $new "stateful-pods.io/material") -}}
    {{- $reasons = append $reasons "the first-boot material" -}}
  {{- end -}}
  {{- if ne (get $old "stateful-pods.io/values") (get $new "stateful-pods.io/values") -}}
    {{- $reasons = append $reasons "values of its pod" -}}
  {{- end -}}
{{- end -}}
{{- join ", " $reasons -}}
{{- end -}}

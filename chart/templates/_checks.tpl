{{/*
What inputs.yaml cannot say: how one input bears on another, on the release's name, on presets and on the cluster.
Each takes a dict of the faults, the machine, and its path in the values; what is checked here has the right type.
*/}}

{{/* Once for each release: its name, the shim's image, and that there is a machine at all. */}}
{{- define "stateful-pods.checkRelease" -}}
{{- $release := .root.Release.Name -}}
{{- if or (contains "." $release) (regexMatch "^[0-9]" $release) -}}
  {{- include "stateful-pods.fault" (list .faults "the release's name" (printf (print
        "%q was given; accepted is a name that begins with a letter and has no dot, because it begins the names of "
        "Services. Install under another name: names cannot be changed later")
        $release)) -}}
{{- end -}}
{{- if and (eq (default "" .values.shim.image) "") (not (hasKey .faults.at "shim.image")) -}}
  {{- include "stateful-pods.fault" (list .faults "shim.image" (print
        "this chart was not released, and names no image of the shim. Build one with `make image`, push it, and "
        "give it here by digest, HOST/REPOSITORY@sha256:DIGEST; or install a released chart")) -}}
{{- end -}}
{{- if and (not .values.machines) (not (hasKey .faults.at "machines")) -}}
  {{- $entries := false -}}
  {{- range $path, $_ := .faults.at -}}
    {{- if hasPrefix "machines." $path }}{{ $entries = true }}{{ end -}}
  {{- end -}}
  {{- if not $entries -}}
    {{- include "stateful-pods.fault" (list .faults "machines" (print
          "none is declared, so there is nothing to render. One looks like this, and examples/ has more:\n\n    "
          "machines:\n      web:\n        source:\n          kind: preset\n          name: debian-trixie\n        "
          "security:\n          mode: privileged")) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "stateful-pods.checkMachine" -}}
{{- include "stateful-pods.checkName" . -}}
{{- include "stateful-pods.checkSource" . -}}
{{- include "stateful-pods.checkSecurity" . -}}
{{- include "stateful-pods.checkVolumes" . -}}
{{- include "stateful-pods.checkCloudInit" . -}}
{{- include "stateful-pods.checkNetwork" . -}}
{{- include "stateful-pods.checkPod" . -}}
{{- $ := . -}}
{{- $sound := true -}}
{{- range $at, $_ := .faults.at -}}
  {{- if or (eq $at $.path) (hasPrefix (print $.path ".") $at) }}{{ $sound = false }}{{ end -}}
{{- end -}}
{{- if $sound -}}
  {{- include "stateful-pods.checkLive" . -}}
{{- end -}}
{{- end -}}

{{- define "stateful-pods.checkName" -}}
{{- $over := sub (len .machine.fullname) 52 -}}
{{- if gt $over 0 -}}
  {{- include "stateful-pods.fault" (list .faults .path (printf (print
        "%q, the release's name and the machine's, is %d characters too long; accepted are 52 together with the "
        "dash, because the StatefulSet's controller appends a revision. Shorten one of them: names cannot be "
        "changed later")
        .machine.fullname $over)) -}}
{{- end -}}
{{- end -}}

{{/* A source has the fields of its kind, and no others. What it comes to is left in .machine.source. */}}
{{- define "stateful-pods.checkSource" -}}
{{- $ := . -}}
{{- $source := default dict .machine.values.source -}}
{{- $kind := default "" $source.kind -}}
{{- $fields := dict
      "preset" (list "name" "pullSecretName")
      "oci" (list "reference" "pullSecretName")
      "lxc" (list "url" "sha256") -}}
{{- $needed := dict "preset" (list "name") "oci" (list "reference") "lxc" (list "url" "sha256") -}}
{{- $meanings := dict
      "name" "a preset's name, from presets.yaml or your own `presets`"
      "reference" "the image, HOST/REPOSITORY[:TAG][@sha256:DIGEST]"
      "url" "the https URL of the archive"
      "sha256" (print "the SHA-256 that the archive must have, 64 hexadecimal digits in quotes: nothing else says "
        "that its bytes are the right ones") -}}
{{- range $field := keys (omit $source "kind") | sortAlpha -}}
  {{- if and $kind (not (has $field (get $fields $kind))) -}}
    {{- $kinds := list -}}
    {{- range $other, $its := $fields }}{{ if has $field $its }}{{ $kinds = append $kinds $other }}{{ end }}{{ end -}}
    {{- include "stateful-pods.fault" (list $.faults (printf "%s.source.%s" $.path $field) (printf (print
          "was given, and belongs to a source of kind %s; this one is of kind %s, which takes %s. Remove it, or "
          "change the kind")
          (join " or " $kinds) $kind (get $fields $kind | join " and "))) -}}
  {{- end -}}
{{- end -}}
{{- range get $needed $kind | default list -}}
  {{- $path := printf "%s.source.%s" $.path . -}}
  {{- if not (or (hasKey $source .) (hasKey $.faults.at $path)) -}}
    {{- include "stateful-pods.fault" (list $.faults $path (printf
          "is missing, and a source of kind %s needs it; give %s"
          $kind (get $meanings .))) -}}
  {{- end -}}
{{- end -}}
{{- $_ := set .machine "source" $source -}}
{{- if and (eq $kind "preset") (hasKey $source "name") -}}
  {{- include "stateful-pods.resolvePreset" . -}}
{{- end -}}
{{- end -}}

{{/* From a preset's name to its image. */}}
{{- define "stateful-pods.resolvePreset" -}}
{{- $name := .machine.source.name -}}
{{- $wanted := .machine.values.guest.provisioning -}}
{{- $size := .machine.values.rootfs.size -}}
{{- $path := printf "%s.source.name" .path -}}
{{- if not (hasKey .machine.presets $name) -}}
  {{- include "stateful-pods.fault" (list .faults $path (printf
        "%q is no preset; there are %s. Correct it, or add yours under `presets`"
        $name (keys .machine.presets | sortAlpha | join ", "))) -}}
{{- else -}}
  {{- $preset := get .machine.presets $name -}}
  {{- $provisioning := default (list $wanted) $preset.provisioning -}}
  {{- if and (not $preset.reference) (not (hasKey .faults.at (printf "presets.%s.reference" $name))) -}}
    {{- include "stateful-pods.fault" (list .faults $path (printf (print
          "no image of the preset %s is published yet: its entry in this chart is a placeholder. Publish one with "
          "`presetbuild --to HOST/PREFIX- %s` and give what it prints as presets.%s.reference, or use a source of "
          "kind oci or lxc")
          $name $name $name)) -}}
  {{- end -}}
  {{- if not (has $wanted $provisioning) -}}
    {{- $able := list -}}
    {{- range $other, $its := .machine.presets }}{{ if has $wanted (default list $its.provisioning) }}{{ $able = append $able $other }}{{ end }}{{ end -}}
    {{- include "stateful-pods.fault" (list .faults (printf "%s.guest.provisioning" .path) (printf (print
          "%s is asked for%s, and the preset %s cannot serve it; accepted is %s. Set it to that, or take a preset "
          "that serves %s: %s")
          $wanted
          (ternary " (the default)" "" (eq $wanted "cloud-init"))
          $name
          (join " or " $provisioning)
          $wanted
          (join ", " $able | default "there is none"))) -}}
  {{- end -}}
  {{- with $preset.unpackedSize -}}
    {{- if lt (include "stateful-pods.number" $size | float64) (float64 .) -}}
      {{- include "stateful-pods.fault" (list $.faults (printf "%s.rootfs.size" $.path) (printf (print
            "%s was given, and the preset %s takes %.0f bytes when it is unpacked; accepted is more than that. "
            "Leave room for what the machine will hold: a claim does not shrink, and not every one grows")
            $size $name (float64 .))) -}}
    {{- end -}}
  {{- end -}}
  {{- $_ := set .machine "source" (dict
        "kind" "oci"
        "reference" (default "" $preset.reference)
        "preset" $name
        "pullSecretName" (default "" .machine.source.pullSecretName)) -}}
{{- end -}}
{{- end -}}

{{- define "stateful-pods.checkSecurity" -}}
{{- $security := default dict .machine.values.security -}}
{{- $profile := default dict $security.seccompProfile -}}
{{- $version := .root.Capabilities.KubeVersion.Version -}}
{{- if and (eq (default "" $security.mode) "userns") (not (semverCompare ">=1.33.0-0" $version)) -}}
  {{- include "stateful-pods.fault" (list .faults (printf "%s.security.mode" .path) (printf (print
        "userns was given, and this cluster runs Kubernetes %s; accepted is userns from 1.33 on, where user "
        "namespaces are enabled by default. Set it to privileged, or upgrade the cluster")
        $version)) -}}
{{- end -}}
{{- $path := printf "%s.security.seccompProfile.localhostProfile" .path -}}
{{- if and (eq (default "" $profile.type) "Localhost") (not $profile.localhostProfile) (not (hasKey .faults.at $path)) -}}
  {{- include "stateful-pods.fault" (list .faults $path (print
        "is missing, and the type Localhost needs it; give the profile's path below the kubelet's seccomp "
        "directory, such as profiles/stateful-pods-machine.json (profiles/README.md says how it gets there)")) -}}
{{- else if and (eq (default "" $profile.type) "Unconfined") $profile.localhostProfile -}}
  {{- include "stateful-pods.fault" (list .faults $path (printf
        "%q was given, and the type is Unconfined, which takes none. Set the type to Localhost, or remove it"
        $profile.localhostProfile)) -}}
{{- end -}}
{{- end -}}

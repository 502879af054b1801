{{/*
The owner's values against inputs.yaml, which is made from the comments of values.yaml.

Nothing here stops at the first fault. Each is a sentence in `$faults.sentences`; the paths that have one are in
`$faults.at`, so that nothing is said twice. A faulty value is taken out, and what looks further finds a default.
*/}}

{{/* Notes a fault. A list: the faults, the path of the input, and the rest of the sentence. */}}
{{- define "stateful-pods.fault" -}}
{{- $faults := index . 0 -}}
{{- $path := regexReplaceAll "[[:cntrl:]]" (index . 1) "?" -}}
{{- $_ := set $faults.at $path true -}}
{{- $_ = set $faults "sentences" (append $faults.sentences (printf "%s: %s" $path (index . 2))) -}}
{{- end -}}

{{/* A value as a sentence shows it. */}}
{{- define "stateful-pods.given" -}}
{{- if kindIs "string" . }}{{ printf "%q" (trunc 100 .) }}
{{- else if kindIs "map" . }}an object
{{- else if kindIs "slice" . }}a list
{{- else if kindIs "invalid" . }}nothing
{{- else }}{{ printf "%v (without quotes)" . }}
{{- end -}}
{{- end -}}

{{/* Checks the object .value against the rules .members, in place, and fills in the defaults. */}}
{{- define "stateful-pods.members" -}}
{{- $ := . -}}
{{- $prefix := ternary "" (printf "%s." .path) (eq .path "") -}}
{{- range $key := keys .value | sortAlpha -}}
  {{- if kindIs "invalid" (get $.value $key) -}}
    {{- $_ := unset $.value $key -}}
  {{- else if hasKey $.members $key -}}
    {{- include "stateful-pods.check" (dict "faults" $.faults "types" $.types "holder" $.value "key" $key "path" (print $prefix $key) "rule" (get $.members $key)) -}}
  {{- else -}}
    {{- $_ := unset $.value $key -}}
    {{- include "stateful-pods.unknown" (dict "faults" $.faults "path" (print $prefix $key) "members" $.members) -}}
  {{- end -}}
{{- end -}}
{{- range $key, $rule := .members -}}
  {{- $path := print $prefix $key -}}
  {{- if not (hasKey $.value $key) -}}
    {{- if and $rule.required (not (hasKey $.faults.at $path)) -}}
      {{- include "stateful-pods.fault" (list $.faults $path (printf
            "is missing, and nothing is assumed; give %s"
            (include "stateful-pods.accepted" (list $.types $rule)))) -}}
    {{- else if hasKey $rule "default" -}}
      {{- $_ := set $.value $key (deepCopy $rule.default) -}}
      {{- if eq $rule.type "members" -}}
        {{- include "stateful-pods.members" (dict "faults" $.faults "types" $.types "value" (get $.value $key) "path" $path "members" $rule.members) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Checks the value at .key of .holder against .rule, and takes it out if it is wrong. */}}
{{- define "stateful-pods.check" -}}
{{- $ := . -}}
{{- $value := get .holder .key -}}
{{- $type := .rule.type -}}
{{- if eq $type "material" -}}
  {{- include "stateful-pods.material" . -}}
{{- else if and (has $type (list "members" "entries" "map" "object")) (not (kindIs "map" $value)) -}}
  {{- include "stateful-pods.wrong" (dict "context" $ "value" $value) -}}
{{- else if eq $type "members" -}}
  {{- include "stateful-pods.members" (dict "faults" .faults "types" .types "value" $value "path" .path "members" .rule.members) -}}
{{- else if eq $type "entries" -}}
  {{- range $name := keys $value | sortAlpha -}}
    {{- include "stateful-pods.entry" (dict "context" $ "entries" $value "name" $name) -}}
  {{- end -}}
{{- else if eq $type "map" -}}
  {{- range $name := keys $value | sortAlpha -}}
    {{- include "stateful-pods.check" (dict "faults" $.faults "types" $.types "holder" $value "key" $name "path" (printf "%s.%s" $.path $name) "rule" $.rule.of) -}}
  {{- end -}}
{{- else if and (eq $type "list") (kindIs "slice" $value) -}}
  {{- range $index, $item := $value -}}
    {{- include "stateful-pods.check" (dict "faults" $.faults "types" $.types "holder" (dict "item" $item) "key" "item" "path" (printf "%s[%d]" $.path $index) "rule" $.rule.of) -}}
    {{- if hasKey $.faults.at (printf "%s[%d]" $.path $index) }}{{ $_ := unset $.holder $.key }}{{ $_ = set $.faults.at $.path true }}{{ end -}}
  {{- end -}}
{{- else if and (ne $type "object") (not (include "stateful-pods.fits" (dict "types" .types "rule" .rule "value" $value))) -}}
  {{- include "stateful-pods.wrong" (dict "context" $ "value" $value) -}}
{{- end -}}
{{- end -}}

{{/* Checks one entry of a map whose names the owner chooses. */}}
{{- define "stateful-pods.entry" -}}
{{- $ := .context -}}
{{- $path := printf "%s.%s" $.path .name -}}
{{- $named := dict "type" $.rule.named -}}
{{- if kindIs "invalid" (get .entries .name) -}}
  {{- $_ := set .entries .name dict -}}
{{- end -}}
{{- if not (include "stateful-pods.fits" (dict "types" $.types "rule" $named "value" .name)) -}}
  {{- $_ := unset .entries .name -}}
  {{- include "stateful-pods.fault" (list $.faults $path (printf
        "%q is no name for it; accepted is %s. Choose another"
        .name (include "stateful-pods.accepted" (list $.types $named)))) -}}
{{- else -}}
  {{- $rule := dict "type" "members" "members" $.rule.members -}}
  {{- include "stateful-pods.check" (dict "faults" $.faults "types" $.types "holder" .entries "key" .name "path" $path "rule" $rule) -}}
{{- end -}}
{{- end -}}

{{/* "yes" if a scalar .value, or one of a list, is what .rule accepts. */}}
{{- define "stateful-pods.fits" -}}
{{- $kind := kindOf .value -}}
{{- if hasPrefix "float" $kind -}}
  {{- $kind = ternary "integer" "number" (eq (floor .value) .value) -}}
{{- else if hasPrefix "int" $kind -}}
  {{- $kind = "integer" -}}
{{- end -}}
{{- if eq .rule.type "one" -}}
  {{- if has .value .rule.of }}yes{{ end -}}
{{- else if eq .rule.type "integer" -}}
  {{- if eq $kind "integer" -}}
    {{- if and (ge (int64 .value) (int64 .rule.least)) (le (int64 .value) (int64 .rule.most)) }}yes{{ end -}}
  {{- end -}}
{{- else if hasKey .types .rule.type -}}
  {{- $type := get .types .rule.type -}}
  {{- if or (has $kind $type.kinds) (and (eq $kind "integer") (has "number" $type.kinds)) -}}
    {{- if ne $kind "string" -}}
      {{- if or (eq $kind "bool") (ge (float64 .value) 0.0) }}yes{{ end -}}
    {{- else if and (regexMatch (default "" $type.pattern) .value) (le (len .value) (int (default 1048576 $type.longest))) -}}
      yes
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* What a rule accepts, in words. A list: the types, the rule. */}}
{{- define "stateful-pods.accepted" -}}
{{- $types := index . 0 -}}
{{- $rule := index . 1 -}}
{{- if hasKey $types $rule.type }}{{ (get $types $rule.type).accepted }}
{{- else if eq $rule.type "one" }}{{ join " or " $rule.of }}
{{- else if eq $rule.type "integer" }}a whole number from {{ $rule.least }} to {{ $rule.most }}, without quotes
{{- else if eq $rule.type "list" }}a list, each item {{ include "stateful-pods.accepted" (list $types $rule.of) }}
{{- else if eq $rule.type "members" }}an object with {{ keys $rule.members | sortAlpha | join ", " }}
{{- else }}an object
{{- end -}}
{{- end -}}

{{/* What to do about a value that a rule does not accept. A list: the types, the rule. */}}
{{- define "stateful-pods.remedy" -}}
{{- $types := index . 0 -}}
{{- $rule := index . 1 -}}
{{- if hasKey $types $rule.type }}{{ (get $types $rule.type).remedy }}
{{- else if eq $rule.type "one" }}Choose one of them
{{- else if eq $rule.type "integer" }}Write such a number
{{- else if eq $rule.type "list" }}Write `- ` before each item
{{- else }}Write its members below it, one a line
{{- end -}}
{{- end -}}

{{/* Takes a wrong value out and says so. */}}
{{- define "stateful-pods.wrong" -}}
{{- $ := .context -}}
{{- $_ := unset $.holder $.key -}}
{{- $do := include "stateful-pods.hint" (dict "path" $.path "value" .value) | default (include "stateful-pods.remedy" (list $.types $.rule)) -}}
{{- $given := regexReplaceAll `//[^/]*@` (include "stateful-pods.given" .value) "//…@" -}}
{{- include "stateful-pods.fault" (list $.faults $.path (printf
      "%s was given; accepted is %s. %s"
      $given (include "stateful-pods.accepted" (list $.types $.rule)) $do)) -}}
{{- end -}}

{{/* What to do about values that many people try. */}}
{{- define "stateful-pods.hint" -}}
{{- if and (hasSuffix ".source.sha256" .path) (not (kindIs "string" .value)) -}}
Digits alone are a number to YAML: put the checksum into quotes (on the command line, use --set-string)
{{- else if and (hasSuffix ".source.url" .path) (contains "@" (toString .value)) -}}
A name or a password does not belong into values, which everybody sees who can see the release: put the archive where it needs none, or use an image and pullSecretName
{{- else if and (hasSuffix ".seccompProfile.type" .path) (eq (toString .value) "RuntimeDefault") -}}
RuntimeDefault withholds pivot_root, with which the machine enters its own root: use Localhost with the profile of profiles/, which takes away less
{{- else if hasSuffix ".security.mode" .path -}}
There is no `privileged: true` behind either of them; README.md says what each gives the machine
{{- else if and (hasSuffix ".size" .path) (not (kindIs "string" .value)) -}}
A bare number would be so many bytes: say the unit, such as 8Gi
{{- end -}}
{{- end -}}

{{/* Says that an input does not exist: why not, if it was considered, and else which ones there are. */}}
{{- define "stateful-pods.unknown" -}}
{{- $reasons := include "stateful-pods.refusedInputs" . | fromYaml -}}
{{- $within := regexReplaceAll `^machines\.[^.]+\.` .path "" -}}
{{- if and (ne $within .path) (hasKey $reasons $within) -}}
  {{- include "stateful-pods.fault" (list .faults .path (printf
        "there is no such input, on purpose: %s"
        (get $reasons $within))) -}}
{{- else -}}
  {{- include "stateful-pods.fault" (list .faults .path (printf
        "there is no such input; the ones here are %s. Remove it, or correct its name"
        (keys .members | sortAlpha | join ", "))) -}}
{{- end -}}
{{- end -}}

{{/* Inputs that were considered and refused: why, and what replaces them. */}}
{{- define "stateful-pods.refusedInputs" -}}
{{- $replicas := "a machine is one machine, with one name and one volume. For another one, add an entry to `machines`" -}}
{{- $init := "the machine's own init is started, found on its volume. To start another one, change /sbin/init in the machine" -}}
{{- $interface := "the interface and its addresses are the cluster's. Publish ports with network.ports, set the resolver with dns" -}}
{{- $checksum := "what fills the volume is checked, always. Give the right sha256, or an image by digest" -}}
{{- $credentials := "values are stored in the cluster in plain text and shown by `helm get values`. Name a Secret with pullSecretName" -}}
{{- $reseed := "a volume is filled once and never again, because that would destroy the machine. Add a machine under another name, or delete this one's claim" -}}
{{- $privileged := "a machine is never wholly privileged. security.mode says which capabilities it has, and README.md what for" -}}
replicas: {{ $replicas | quote }}
{{- range list "init" "initSystem" "command" "args" "guest.init" "guest.command" }}
{{ . }}: {{ $init | quote }}
{{- end }}
{{- range list "interfaces" "interface" "address" "addresses" "ip" "mac" "gateway" "bridge" "dhcp" "hostNetwork" }}
network.{{ . }}: {{ $interface | quote }}
{{- end }}
{{- range list "networkConfig" "network-config" "networkData" "network" }}
cloudInit.{{ . }}: {{ printf "%s. A network configuration would take it away from the pod" $interface | quote }}
{{- end }}
{{- range list "skipChecksum" "skipVerify" "skipVerification" "insecure" "verify" "checksum" }}
source.{{ . }}: {{ $checksum | quote }}
{{- end }}
{{- range list "username" "password" "token" "auth" "credentials" "dockerconfigjson" }}
source.{{ . }}: {{ $credentials | quote }}
{{- end }}
{{- range list "reseed" "source.reseed" "rootfs.reseed" "source.force" "rootfs.wipe" }}
{{ . }}: {{ $reseed | quote }}
{{- end }}
{{- range list "privileged" "security.privileged" "security.capabilities" }}
{{ . }}: {{ $privileged | quote }}
{{- end }}
{{- end -}}

{{/* Checks an input of cloudInit: a `value`, or a `valueFrom`. What was given is never shown: it may be a secret. */}}
{{- define "stateful-pods.material" -}}
{{- $given := get .holder .key -}}
{{- $of := .rule.of -}}
{{- $form := "accepted is an object with either `value`, or `valueFrom` with one secretKeyRef or configMapKeyRef of `name` and `key`" -}}
{{- $fault := "" -}}
{{- if not (kindIs "map" $given) -}}
  {{- $fault = printf "%s was given; %s. Write `value:` before it" (ternary "a string" "something else" (kindIs "string" $given)) $form -}}
{{- else if or (ne (len $given) 1) (not (or (hasKey $given "value") (hasKey $given "valueFrom"))) -}}
  {{- $fault = printf "an object with %s was given; %s" (empty $given | ternary "nothing in it" (printf "%d members" (len $given))) $form -}}
{{- else if hasKey $given "valueFrom" -}}
  {{- $from := $given.valueFrom -}}
  {{- $reference := and (kindIs "map" $from) (first (values $from)) -}}
  {{- if not (and (kindIs "map" $from) (eq (len $from) 1) (or (hasKey $from "secretKeyRef") (hasKey $from "configMapKeyRef"))) -}}
    {{- $fault = printf "its valueFrom is something else; %s" $form -}}
  {{- else if not (and (kindIs "map" $reference) (eq (keys $reference | sortAlpha | join " ") "key name")) -}}
    {{- $fault = printf "its reference does not have `name` and `key` alone; %s" $form -}}
  {{- else if not (and (kindIs "string" $reference.name) (kindIs "string" $reference.key) (regexMatch `^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$` (toString $reference.name)) (regexMatch `^[-._a-zA-Z0-9]+$` (toString $reference.key))) -}}
    {{- $fault = "its `name` or `key` is none that a Secret or ConfigMap can have; accepted are the name of an object of this namespace, and a key of letters, digits, -, _ and ." -}}
  {{- end -}}
{{- else if and (eq $of "boolean") (not (kindIs "bool" $given.value)) -}}
  {{- $fault = "its value is no boolean; accepted is true or false, without quotes" -}}
{{- else if and (eq $of "text") (not (kindIs "string" $given.value)) -}}
  {{- $fault = "its value is no string; accepted is a string. Quote it if it looks like a number, and write several lines after `|`" -}}
{{- else if and (eq $of "list") (not (kindIs "slice" $given.value)) -}}
  {{- $fault = "its value is no list; accepted is a list of strings. Write `- ` before each" -}}
{{- else if eq $of "list" -}}
  {{- range $index, $item := $given.value -}}
    {{- if not (kindIs "string" $item) -}}
      {{- $fault = printf "item %d is no string; accepted is a list of strings. Put it into quotes" (add1 $index) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if $fault -}}
  {{- $_ := unset .holder .key -}}
  {{- include "stateful-pods.fault" (list .faults .path $fault) -}}
{{- end -}}
{{- end -}}

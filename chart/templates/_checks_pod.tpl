{{/*
The rest of the checks that inputs.yaml cannot make (see _checks.tpl): what becomes part of the pod.
*/}}

{{- define "stateful-pods.checkVolumes" -}}
{{- $ := . -}}
{{- $paths := dict -}}
{{- range $name, $volume := .machine.values.volumes -}}
  {{- $path := printf "%s.volumes.%s" $.path $name -}}
  {{- $over := sub (len (printf "data-%s" $name)) 63 -}}
  {{- if gt $over 0 -}}
    {{- include "stateful-pods.fault" (list $.faults $path (printf (print
          "the name of its claim begins with \"data-%s\", which is %d characters too long; accepted are 63. Shorten "
          "the volume's name: it cannot be changed later")
          $name $over)) -}}
  {{- end -}}
  {{- if and $volume.size $volume.existingClaim -}}
    {{- include "stateful-pods.fault" (list $.faults $path (print
          "has both a size and an existingClaim; accepted is one of them: a size for a claim that is made, "
          "existingClaim for one that is there. Remove the other")) -}}
  {{- else if not (or $volume.size $volume.existingClaim (hasKey $.faults.at (print $path ".size")) (hasKey $.faults.at (print $path ".existingClaim"))) -}}
    {{- include "stateful-pods.fault" (list $.faults $path (print
          "has neither a size nor an existingClaim; accepted is one of them. Give a size such as 8Gi for a claim "
          "that is made, or existingClaim for one that is there")) -}}
  {{- end -}}
  {{- range list "storageClassName" "dataSource" -}}
    {{- if and $volume.existingClaim (hasKey $volume .) -}}
      {{- include "stateful-pods.fault" (list $.faults (printf "%s.%s" $path .)
            "was given beside existingClaim, which exists with its own; it is accepted with a size. Remove it") -}}
    {{- end -}}
  {{- end -}}
  {{- with $volume.mountPath -}}
    {{- include "stateful-pods.checkMountPath" (dict "faults" $.faults "path" (print $path ".mountPath") "mountPath" .) -}}
    {{- if hasKey $paths . -}}
      {{- include "stateful-pods.fault" (list $.faults (print $path ".mountPath") (printf
            "%q is also the path of the volume %s; accepted is a path for each. Change one of them"
            . (get $paths .))) -}}
    {{- end -}}
    {{- $_ := set $paths . $name -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "stateful-pods.checkMountPath" -}}
{{- if eq .mountPath "/" -}}
  {{- include "stateful-pods.fault" (list .faults .path (print
        "\"/\" was given, which is the root filesystem's own place (`rootfs`); accepted is a directory below it, "
        "such as /srv. Choose one")) -}}
{{- else if ne (clean .mountPath) .mountPath -}}
  {{- include "stateful-pods.fault" (list .faults .path (printf
        "%q was given; accepted is the same path without . and .., doubled or final slashes. Write %q"
        .mountPath (clean .mountPath))) -}}
{{- else if regexMatch `^/(proc|sys|dev|run|tmp|\.stateful-pods)(/|$)` .mountPath -}}
  {{- include "stateful-pods.fault" (list .faults .path (printf (print
        "%q was given, and /proc, /sys, /dev, /run, /tmp and /.stateful-pods are mounted or used by the shim, which "
        "would hide the volume; accepted is any other directory. Choose one, such as /srv")
        .mountPath)) -}}
{{- end -}}
{{- end -}}

{{/* What `shim provision` would refuse, said while it can still be put right without a pod. Values are never shown. */}}
{{- define "stateful-pods.checkCloudInit" -}}
{{- $ := . -}}
{{- $given := default dict .machine.values.cloudInit -}}
{{- if and $given (eq .machine.values.guest.provisioning "exec") -}}
  {{- include "stateful-pods.fault" (list .faults (printf "%s.cloudInit" .path) (printf (print
        "%s would be ignored, because guest.provisioning is exec; accepted is nothing. Remove cloudInit, or set "
        "guest.provisioning to cloud-init")
        (keys $given | sortAlpha | join ", "))) -}}
{{- end -}}
{{- range $input := list "userData" "vendorData" -}}
  {{- with get $given $input -}}
    {{- if and (hasKey . "value") (not (regexMatch `(?i)^\s*(#cloud-config|#!|#include|#cloud-boothook|#part-handler|## template: jinja)|mime-version:` .value)) -}}
      {{- include "stateful-pods.fault" (list $.faults (printf "%s.cloudInit.%s" $.path $input) (print
            "cloud-init would ignore it: its value begins with nothing that cloud-init knows; accepted is "
            "#cloud-config, #!, #include, #cloud-boothook, #part-handler, ## template: jinja, or MIME. If it is "
            "YAML, make #cloud-config its first line")) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- with $given.user -}}
  {{- if and (hasKey . "value") (not (regexMatch `^[a-z_][a-z0-9_-]{0,31}$` .value)) -}}
    {{- include "stateful-pods.fault" (list $.faults (printf "%s.cloudInit.user" $.path) (printf
          "%s was given; accepted is a user name of lower-case letters, digits, - and _, at most 32. Choose another"
          (include "stateful-pods.given" .value))) -}}
  {{- end -}}
{{- end -}}
{{- with $given.password -}}
  {{- if hasKey . "value" -}}
    {{- include "stateful-pods.checkPassword" (dict "faults" $.faults "path" (printf "%s.cloudInit.password" $.path) "hash" (trim .value) "named" (hasKey $given "user")) -}}
  {{- end -}}
{{- end -}}
{{- $forms := dict
      "sshAuthorizedKeys" `^(\S.*[ \t])?(ssh|ecdsa|sk)-[A-Za-z0-9_@.-]+[ \t]+[A-Za-z0-9+/]+={0,2}([ \t].*)?$`
      "packages" `^[A-Za-z0-9@][!-~]*$`
      "runcmd" `^[^#\s\x00][^\n\r\x00]*$` -}}
{{- $accepted := dict
      "sshAuthorizedKeys" (print "a public key on one line: a type such as ssh-ed25519, and its base64. Take the line of "
        "the .pub file")
      "packages" (print "the name of a package, one word that begins with a letter or a digit. Give each package an item "
        "of its own")
      "runcmd" "a command on one line that does not begin with #. For a script of several lines, use userData" -}}
{{- range $input, $form := $forms -}}
  {{- with get $given $input -}}
    {{- range $index, $item := .value -}}
      {{- if not (regexMatch $form (trim $item)) -}}
        {{- include "stateful-pods.fault" (list $.faults (printf "%s.cloudInit.%s" $.path $input) (printf
              "item %d, which is not shown, is none; accepted is %s"
              (add1 $index) (get $accepted $input))) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* A crypt hash (crypt(5)), whole. Without a named user cloud-init takes the older kinds alone. */}}
{{- define "stateful-pods.checkPassword" -}}
{{- $everywhere := list
      `\$1\$[^$:\s]{1,8}\$[./A-Za-z0-9]{22}`
      `\$2[ay]\$\d\d\$[./A-Za-z0-9]{53}`
      `\$5\$(rounds=\d+\$)?[^$:\s]{1,16}\$[./A-Za-z0-9]{43}`
      `\$6\$(rounds=\d+\$)?[^$:\s]{1,16}\$[./A-Za-z0-9]{86}` | join "|" | printf `^(%s)$` -}}
{{- $named := list
      `\$2b\$\d\d\$[./A-Za-z0-9]{53}`
      `\$g?y\$[./A-Za-z0-9]+\$[./A-Za-z0-9]*\$[./A-Za-z0-9]{43}`
      `\$7\$[./A-Za-z0-9]{11,97}\$[./A-Za-z0-9]{43}` | join "|" | printf `^(%s)$` -}}
{{- if and (regexMatch $named .hash) (not .named) -}}
  {{- include "stateful-pods.fault" (list .faults .path (print
        "without a `user`, cloud-init takes no hash of this kind (yescrypt, scrypt, bcrypt 2b): the hash itself "
        "would become the password. Give a user, or make the hash with `openssl passwd -6`")) -}}
{{- else if not (or (regexMatch $named .hash) (regexMatch $everywhere .hash)) -}}
  {{- include "stateful-pods.fault" (list .faults .path (print
        "its value, which is not shown, is no crypt hash; accepted is one, whole. Make it with `openssl passwd -6`, "
        "and put it into single quotes")) -}}
{{- end -}}
{{- end -}}

{{- define "stateful-pods.checkNetwork" -}}
{{- $ := . -}}
{{- $seen := dict -}}
{{- range $name, $port := .machine.values.network.ports -}}
  {{- if $port.port -}}
    {{- $what := printf "%d/%s" (int $port.port) $port.protocol -}}
    {{- if hasKey $seen $what -}}
      {{- include "stateful-pods.fault" (list $.faults (printf "%s.network.ports.%s" $.path $name) (printf
            "%s is also the port %s; accepted is each port and protocol once. Remove one of them"
            $what (get $seen $what))) -}}
    {{- end -}}
    {{- $_ := set $seen $what $name -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels and what else only the API server would refuse, when it is too late. */}}
{{- define "stateful-pods.checkPod" -}}
{{- $ := . -}}
{{- $values := .machine.values -}}
{{- $key := `^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$` -}}
{{- $reserved := list
      `app\.kubernetes\.io/(name|instance)`
      `controller-revision-hash`
      `(.*\.)?stateful-pods\.io/.*`
      `(statefulset|apps)\.kubernetes\.io/.*`
      `kubectl\.kubernetes\.io/default-container`
      `container\.(apparmor|seccomp)\.security\..*` | join "|" | printf `^(%s)$` -}}
{{- range $what, $map := dict "labels" $values.labels "annotations" $values.annotations "placement.nodeSelector" $values.placement.nodeSelector -}}
  {{- range $name, $value := $map -}}
    {{- $path := printf "%s.%s.%s" $.path $what $name -}}
    {{- if or (not (regexMatch $key $name)) (gt (len (base $name)) 63) -}}
      {{- include "stateful-pods.fault" (list $.faults $path (print
            "its key is none; accepted is [PREFIX/]NAME, where NAME has letters, digits, -, _ and ., at most 63. "
            "Correct it")) -}}
    {{- else if and (ne $what "annotations") (or (gt (len $value) 63) (not (regexMatch `^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$` $value))) -}}
      {{- include "stateful-pods.fault" (list $.faults $path (printf (print
            "%s was given; accepted is a label's value: letters, digits, -, _ and . inside, at most 63. Correct it, "
            "or make it an annotation")
            (include "stateful-pods.given" $value))) -}}
    {{- else if and (ne $what "placement.nodeSelector") (regexMatch $reserved $name) -}}
      {{- include "stateful-pods.fault" (list $.faults $path
            "it is set by the chart or by Kubernetes; accepted is any other. Remove it") -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and $values.placement.node (hasKey (default dict $values.placement.nodeSelector) "kubernetes.io/hostname") -}}
  {{- include "stateful-pods.fault" (list .faults (printf "%s.placement.node" .path) (print
        "was given, and so was a nodeSelector for kubernetes.io/hostname, which is the same; accepted is one of "
        "them. Remove the other")) -}}
{{- end -}}
{{- if gt (len (default list $values.dns.config.nameservers)) 3 -}}
  {{- include "stateful-pods.fault" (list .faults (printf "%s.dns.config.nameservers" .path) (printf
        "%d were given; accepted are 3, because a resolver asks no more. Remove some"
        (len $values.dns.config.nameservers))) -}}
{{- end -}}
{{- if and (eq (default "" $values.dns.policy) "None") (not $values.dns.config.nameservers) -}}
  {{- include "stateful-pods.fault" (list .faults (printf "%s.dns.policy" .path) (print
        "None was given, which takes no resolver from the cluster, and no dns.config.nameservers; accepted is None "
        "with at least one of them. Give them, or another policy")) -}}
{{- end -}}
{{- range $name, $request := $values.resources.requests -}}
  {{- with get (default dict $values.resources.limits) $name -}}
    {{- if gt (include "stateful-pods.number" $request | float64) (include "stateful-pods.number" . | float64) -}}
      {{- include "stateful-pods.fault" (list $.faults (printf "%s.resources.requests.%s" $.path $name) (printf
            "%v was given, and the limit is %v; accepted is at most the limit. Lower one, or raise the other"
            $request .)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* A claim's name is made of three names joined with dashes, so two machines of one release could come to share one. */}}
{{- define "stateful-pods.checkClaims" -}}
{{- $ := . -}}
{{- $owners := dict -}}
{{- range $machine := .machines -}}
  {{- range $name, $volume := $machine.values.volumes -}}
    {{- $claim := printf "data-%s-%s-0" $name $machine.fullname -}}
    {{- $path := printf "machines.%s.volumes.%s" $machine.name $name -}}
    {{- if hasKey $owners $claim -}}
      {{- include "stateful-pods.fault" (list $.faults $path (printf (print
            "its claim would be named %s, as that of %s is; accepted is a claim for each. Give one of the two "
            "volumes another name")
            $claim (get $owners $claim))) -}}
    {{- end -}}
    {{- $_ := set $owners $claim $path -}}
  {{- end -}}
{{- end -}}
{{- end -}}

#!/bin/sh
# Has the machine's operating system started? Exits 0 if it has and 1 if it has not, with a line that says why.
#
# systemd and OpenRC know it themselves. runit, sysvinit and busybox init do not, so it is that the scripts of the boot
# have ended. Of another init nothing but the boot marker is known, and the line says so.

# shellcheck source=shim/guest/init.sh
. "${0%/*}/init.sh"

ready() {
    echo "ready: $1"
    exit 0
}

not_ready() {
    echo "not ready: $1"
    exit 1
}

# The command line of each child of PID 1, a line each.
children_of_init() {
    for status in /proc/[0-9]*/status; do
        while read -r name value; do
            [ "$name" = PPid: ] || continue
            if [ "$value" = 1 ]; then
                tr '\0' ' ' <"${status%status}cmdline"
                echo
            fi
            break
        done <"$status"
    done 2>/dev/null # a process may end at any moment
}

systemd_state() {
    state=$(systemctl is-system-running 2>/dev/null)
    case $state in
        running | degraded) ready "systemd is $state" ;;
        *) not_ready "systemd is ${state:-not answering}" ;;
    esac
}

openrc_state() {
    level=$(cat /run/openrc/softlevel 2>/dev/null)
    case $level in
        '') not_ready "OpenRC has entered no runlevel" ;;
        sysinit | boot | off | shutdown | reboot) not_ready "OpenRC is in the runlevel $level" ;;
    esac
    # The level is written when OpenRC enters it, and these are there while it starts what belongs to it.
    [ ! -e /run/openrc/rc.starting ] || not_ready "OpenRC is entering the runlevel $level"
    for service in /run/openrc/starting/*; do
        [ ! -e "$service" ] || not_ready "OpenRC is starting ${service##*/}"
    done
    ready "OpenRC is in the runlevel $level"
}

runit_state() {
    case $(children_of_init) in
        *runsvdir*) ready "runit supervises its services" ;;
        *) not_ready "runit has not reached its second stage" ;;
    esac
}

# sysvinit's and busybox' inittab agree in the fields that matter here: id:runlevels:action:process
inittab_state() {
    running=$(children_of_init)
    [ -n "$running" ] || not_ready "$1 has started nothing"
    if [ "$1" = sysvinit ]; then
        level=$(tr '\0' ' ' </proc/1/cmdline)
        case $level in
            *'['[2-5]']'*) ;; # it writes its runlevel there
            *) not_ready "sysvinit has entered no runlevel" ;;
        esac
    fi
    while IFS=: read -r _ _ action process; do
        case $action in
            sysinit | boot | bootwait | wait) ;;
            *) continue ;;
        esac
        process=${process#[+@-]}
        case $process in
            *[\;\&\|\<\>\(\)\$\`\"\'\\\*\?]*) process=${process%% *} ;; # a shell reads it, and replaces itself
        esac
        case $running in
            *"$process"*) not_ready "$1 waits for $process" ;;
        esac
    done <<INITTAB
$(if [ -r /etc/inittab ]; then cat /etc/inittab; else echo ::sysinit:/etc/init.d/rcS; fi)
INITTAB
    ready "the boot scripts of $1 have ended"
}

kind=$(kind_of_init)
case $kind in
    busybox | openrc-init | sysvinit)
        # OpenRC runs below each of them.
        if [ "$kind" = openrc-init ] || [ -d /run/openrc ] || grep -q '^[^#]*openrc' /etc/inittab 2>/dev/null; then
            openrc_state
        fi
        inittab_state "$kind"
        ;;
    systemd) systemd_state ;;
    runit) runit_state ;;
esac
[ -e /run/stateful-pods/booted ] || not_ready "the machine's root has not changed yet"
ready "$kind is an init that is not known here, so this only says that it was started"

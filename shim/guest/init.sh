# What ready.sh and stop.sh share; sourced, in whatever POSIX shell the guest has.
# shellcheck shell=sh

# The kind of this machine's init, by the program that PID 1 runs; of one that is not known, the program's name.
kind_of_init() {
    program=$(readlink /proc/1/exe) || program=unknown
    program=${program% (deleted)} # upgraded while it runs
    program=${program##*/}
    case $program in
        busybox*) echo busybox ;;
        init) echo sysvinit ;;
        runit*) echo runit ;;
        *) echo "$program" ;; # systemd, openrc-init, or another
    esac
}

#!/bin/sh
# Powers the machine off, in the words that its init understands, and waits until it is gone or its time is nearly up.
#
# usage: stop.sh [SECONDS]
# The grace period is SECONDS, or SHIM_STOP_SECONDS, or 20; the wait ends two seconds before it. A wait that ends well
# ends with the machine, and this script with it; so it exits only with 1, and a line that says what is the matter.

# shellcheck source=shim/guest/init.sh
. "${0%/*}/init.sh"

seconds=${1:-${SHIM_STOP_SECONDS:-20}}
case $seconds in
    '' | *[!0-9]*)
        echo "stop: '$seconds' is not a number of seconds; 20 are taken" >&2
        seconds=20
        ;;
esac

kind=$(kind_of_init)
case $kind in
    systemd) kill -37 1 ;; # SIGRTMIN+3, which not every shell can spell
    busybox) kill -USR2 1 ;;
    sysvinit) telinit 0 ;;
    runit) runit-init 0 ;;
    openrc-init) openrc-shutdown --poweroff now ;;
    *)
        echo "stop: $kind is an init that is not known here; it is asked with its own poweroff, or with SIGTERM" >&2
        poweroff 2>/dev/null || kill -TERM 1
        ;;
esac || {
    echo "stop: $kind did not take the request" >&2
    exit 1
}

left=$((seconds - 2))
while [ "$left" -gt 0 ]; do
    sleep 1
    left=$((left - 1))
done
echo "stop: the machine has not ended within $((seconds > 2 ? seconds - 2 : 0)) seconds" >&2
exit 1

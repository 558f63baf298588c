#!/bin/sh
#: about redis through gateways over soft-RoCE with few receives, with credits and without
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma redis-server redis-benchmark redis-cli
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: memory 768
#: limit 300

REQUESTS=240
rxe_up
if [ "$HOST" = a ]; then
    redis-server --bind 127.0.0.1 --port 6379 --save '' --appendonly no --dir /tmp >/out/redis &
    serves 6379 $!
fi
# Refusals for want of a receive, given and got by all of the adapter's queue pairs. An adapter does not
# count them for each, so `pollux show links` does not know them.
refusals() {
    cat /sys/class/infiniband/rxe0/ports/1/hw_counters/send_rnr_err \
        /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_rnr_err | tr '\n' ' '
}
# calls COMMAND: how often the server has executed it.
calls() {
    redis-cli -p 6000 info commandstats | tr -d '\r' | sed -n "s/^cmdstat_$1:calls=\([0-9]*\),.*/\1/p"
}
# benchmark TEXT: sets and gets by as many clients as have to wait for receives.
benchmark() {
    redis-cli -p 6000 config resetstat >/dev/null
    status=0
    redis-benchmark -p 6000 -t set,get -d 10 -n $REQUESTS -c 24 --csv >/out/benchmark 2>&1 || status=$?
    cat /out/benchmark
    [ "$status" = 0 ] || fail "$1: redis-benchmark ended with $status"
    ! grep -i error /out/benchmark || fail "$1: redis-benchmark tells of errors"
    redis-cli -p 6000 info errorstats | grep errorstat_ && fail "$1: the server has refused something"
    [ "$(calls set)" = $REQUESTS ] && [ "$(calls get)" = $REQUESTS ] ||
        fail "$1: $(calls set) sets and $(calls get) gets instead of $REQUESTS each"
    # Lines of the table end with a carriage return only where redis thinks of a terminal.
    say "$1: $(awk -F '"' '$2 == "SET" || $2 == "GET" { printf "%s %s/s ", $2, $4 }' /out/benchmark)"
}
for credits in on off; do
    configure device.recv_wr=16 "handshake.credits=$credits"
    if [ "$HOST" = a ]; then
        forward "smc:$ADDRESS:6001" tcp:127.0.0.1:6379
        start_appliance 6001
    else
        forward tcp:127.0.0.1:6000 "smc:$PEER:6001"
        start_appliance 6000
    fi
    before=$(refusals)
    barrier serving
    if [ "$HOST" = b ]; then
        for inline in on off; do
            pollux set inline $inline
            benchmark "credits $credits, inline $inline"
        done
    fi
    barrier measured
    pollux show links
    pollux stats
    after=$(refusals)
    say "credits $credits: refusals for want of a receive, given and got: before $before, after $after"
    if [ $credits = on ]; then
        [ "$after" = "$before" ] || fail "there were credits, and the receiver was not ready"
        [ "$(stat_of credit.initial)" -gt 0 ] || fail "no credits were agreed on"
    fi
    stop_in_turn
done

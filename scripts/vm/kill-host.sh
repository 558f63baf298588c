#!/bin/sh
#: about a host dies under traffic: the other resets its streams, says why, serves on, and keeps nothing
#: hosts a b
#: expect b killed
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: memory 768
#: limit 120

rxe_up
# An acknowledgement may take 4.096 us x 2^17, 0.54 s, and is awaited seven times: 3.8 s in all.
echo_gateways device.ack_timeout=17 device.retries=6
if [ "$HOST" = b ]; then
    barrier serving
    barrier "there is no other end for this host"
fi
has_all() {
    for stream in 1 2 3; do
        [ -e "$1-$stream" ] && [ "$(stat -c %s "$1-$stream")" -ge "$2" ] || return 1
    done
}
before=$(holdings)
barrier serving
for stream in 1 2 3; do
    {
        yes $stream | nc 127.0.0.1 6000 >back-$stream || true
        echo over >ended-$stream
    } &
done
until_true has_all back 32768
pollux show links
stat_is conns.open 3 || fail "not all streams are on the link"
kill_host b
death=$(uptime_ms)
until_true stat_is conns.open 0
reset=$(uptime_ms)
until_true has_all ended 1
until_true has_links 0
grep "a queue pair failed.*status=RetryExceeded conns=3" /out/polluxd ||
    fail "the log does not say why the streams ended"
stat_is conns.reset 3 || fail "$(stat_of conns.reset) streams were reset, not 3"
stat_is forward.tcp.resets 3 || fail "the gateway has passed on $(stat_of forward.tcp.resets) resets"
say "streams were reset $((reset - death)) ms after the host's death, with seven times 537 ms of patience"
keeps_nothing "$before"
pollux stats
stop_appliance

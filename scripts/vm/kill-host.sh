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
# arrived COUNT: whether so much has come back in each of the streams that never rest.
arrived() {
    for stream in 1 2 3; do
        [ "$(stat -c %s back-$stream)" -ge "$1" ] || return 1
    done
}
before=$(holdings)
registered=$(registrations)
barrier serving
clients=
for stream in 1 2 3; do
    # What comes back is sent again.
    mkfifo again-$stream
    : >back-$stream
    { head -c 2048 /dev/zero && cat again-$stream; } | nc 127.0.0.1 6000 | tee back-$stream >again-$stream &
    clients="$clients $!"
done
mkfifo words
nc 127.0.0.1 6000 <words >said &
clients="$clients $!"
exec 4>words
echo hello >&4
until_true grep -q hello said
until_true arrived 32768
pollux show links
stat_is conns.open 4 || fail "not all streams are on the link"
kill_host b
death=$(uptime_ms)
# Whatever was under way, this finds nobody.
echo "are you there?" >&4
until_true stat_is conns.open 0
reset=$(uptime_ms)
exec 4>&-
for client in $clients; do
    wait "$client" || true
done
until_true has_links 0
grep "a queue pair failed.*status=RetryExceeded conns=4" /out/polluxd ||
    fail "the log does not say why the streams ended"
stat_is conns.reset 4 || fail "$(stat_of conns.reset) streams were reset, not 4"
stat_is forward.tcp.resets 4 || fail "the gateway has passed on $(stat_of forward.tcp.resets) resets"
say "streams were reset $((reset - death)) ms after the host's death, with seven times 537 ms of patience"
keeps_nothing "$before" $((registered + 4))
pollux stats
stop_appliance

#!/bin/sh
#: about a host dies while nothing is sent: a TEST LINK without an answer resets the stream
#: hosts a b
#: expect b killed
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: memory 768
#: limit 120

rxe_up
echo_gateways device.test_link_s=2
if [ "$HOST" = b ]; then
    barrier serving
    barrier "there is no other end for this host"
fi
before=$(holdings)
registered=$(registrations)
barrier serving
mkfifo hold
nc 127.0.0.1 6000 <hold >back &
client=$!
exec 4>hold
echo hello >&4
until_true grep -q hello back
kill_host b
death=$(uptime_ms)
until_true stat_is conns.open 0
reset=$(uptime_ms)
wait "$client" || true
exec 4>&-
until_true has_links 0
grep "link failed.*was silent for 2 s after a link test" /out/polluxd ||
    fail "the log does not say why the stream ended"
stat_is conns.reset 1 || fail "$(stat_of conns.reset) streams were reset, not 1"
say "the idle stream was reset $((reset - death)) ms after the host's death, with 2 s before a TEST LINK and 2 s for its answer"
keeps_nothing "$before" $((registered + 1))
stop_appliance

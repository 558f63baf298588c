#!/bin/sh
#: about random bytes there and back through gateways over soft-RoCE, in rings of 16 KiB
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: memory 768
#: limit 900

# Each way. About half a second each on an idle machine.
MIB=64
rxe_up
echo_gateways attach.sndbuf=16K attach.rmb=16K
barrier serving
if [ "$HOST" = b ]; then
    head -c $((MIB << 20)) /dev/urandom >sent
    for inline in on off; do
        pollux set inline $inline
        begun=$(uptime_ms)
        nc 127.0.0.1 6000 <sent >back || say "inline $inline: the stream broke off"
        ended=$(uptime_ms)
        cmp sent back || fail "inline $inline: what came back differs"
        say "inline $inline: $MIB MiB came back as they were, after $((ended - begun)) ms"
    done
    pollux show links
    pollux stats
fi
barrier sent
lost_nothing
stop_in_turn

#!/bin/sh
#: about random bytes there and back through gateways over soft-RoCE, in rings of 16 KiB
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: memory 768
#: limit 600
#: capture

# Each way.
MIB=64
rxe_up
echo_gateways attach.sndbuf=16K attach.rmb=16K
barrier serving
if [ "$HOST" = b ]; then
    head -c $((MIB << 20)) /dev/urandom >sent
    for inline in on off; do
        pollux set inline $inline
        nc 127.0.0.1 6000 <sent >back || fail "inline $inline: the stream broke off"
        cmp sent back || fail "inline $inline: what came back differs"
        say "inline $inline: $MIB MiB came back as they were"
        say $(cat /proc/uptime) $(grep . /sys/class/infiniband/rxe0/ports/1/hw_counters/* | sed 's/.*counters.//' | grep -v ':0$')
    done
    pollux show links
    pollux stats
fi
grep . /sys/class/infiniband/rxe0/ports/1/hw_counters/*
stop_in_turn

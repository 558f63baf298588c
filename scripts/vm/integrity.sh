#!/bin/sh
#: about random bytes there and back through gateways over soft-RoCE, in rings of 16 KiB
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: memory 768
#: limit 600

# Each way. About half a second each on an idle machine.
MIB=8
rxe_up
cat >pollux.toml <<CONFIG
[appliance]
runtime_dir = "/run/pollux"
[device]
driver = "verbs"
name = "rxe0"
[attach]
sndbuf = "16K"
rmb = "16K"
[workers]
poll = "adaptive"
lock_dir = "/run"
[[peer]]
address = "$PEER"
[[forward]]
name = "in"
listen = "tcp:127.0.0.1:6000"
connect = "smc:$PEER:6001"
[[forward]]
name = "out"
listen = "smc:$ADDRESS:6001"
connect = "tcp:127.0.0.1:6002"
CONFIG
pollux() {
    command pollux --socket /run/pollux/control.sock "$@"
}
polluxd --config pollux.toml &
appliance=$!
serves 6000 "$appliance"
nc -ll -p 6002 -e /usr/bin/cat &
serves 6002 $!
barrier serving
if [ "$HOST" = b ]; then
    head -c $((MIB << 20)) /dev/urandom >sent
    for inline in on off; do
        pollux set inline $inline
        nc 127.0.0.1 6000 <sent >back || say "inline $inline: the stream broke off"
        # Frames that the host's own kernel dropped show as retries here.
        grep . /sys/class/infiniband/rxe0/ports/1/hw_counters/*
        cmp sent back || fail "inline $inline: what came back differs"
        say "inline $inline: $MIB MiB came back as they were"
    done
    pollux show links
    pollux stats
fi
barrier sent
kill "$appliance"
wait "$appliance"
barrier down

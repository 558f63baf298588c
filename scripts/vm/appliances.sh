#!/bin/sh
#: about two appliances carry streams over soft-RoCE: the verbs driver end to end
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: memory 768
#: limit 180
#: capture

rxe_up
cat >pollux.toml <<CONFIG
[appliance]
runtime_dir = "/run/pollux"
[device]
driver = "verbs"
name = "rxe0"
[workers]
poll = "adaptive"
lock_dir = "/run"
[[peer]]
address = "$PEER"
[[service]]
kind = "echo"
listen = "$ADDRESS:7001"
CONFIG
pollux() {
    command pollux --socket /run/pollux/control.sock "$@"
}
polluxd --config pollux.toml &
appliance=$!
serves 7001 "$appliance"
barrier serving
if [ "$HOST" = b ]; then
    pollux show devices
    for inline in off on; do
        pollux latency "$PEER:7001" --sizes 1,64,4K,64K --iterations 50 --inline $inline
    done
    pollux show links
    pollux show groups
fi
barrier measured
kill "$appliance"
wait "$appliance"
barrier down

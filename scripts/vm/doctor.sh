#!/bin/sh
#: about pollux doctor tells what a host with soft-RoCE has, and what one without its modules lacks
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: limit 60

# doctor STATUS NAME ARGUMENT...: the report goes to /out/NAME; fails unless it ends with the status.
doctor() {
    expected=$1 name=$2
    shift 2
    status=0
    command pollux doctor "$@" >"/out/$name" 2>"/out/$name.error" || status=$?
    cat "/out/$name" "/out/$name.error"
    [ "$status" = "$expected" ] || fail "$name: status $status instead of $expected"
}
# says NAME TEXT: the report has this line, or the beginning of it.
says() {
    grep -qF -- "$2" "/out/$1" || fail "$1 does not say: $2"
}
# as_polluxd NAME STATUS CONFIG: polluxd ends with the same words and the same status.
as_polluxd() {
    status=0
    polluxd --config "$3" 2>polluxd.error || status=$?
    [ "$status" = "$2" ] || fail "polluxd ends with $status, doctor foretold $2"
    [ "$(sed -n 's/^polluxd: //p' polluxd.error)" = "$(sed 's/^pollux: //' "/out/$1.error")" ] ||
        fail "polluxd says $(tail -n 1 polluxd.error)"
}

cat >pollux.toml <<CONFIG
[appliance]
runtime_dir = "/run/pollux"
[device]
driver = "verbs"
name = "rxe0"
[workers]
lock_dir = "/run"
[[service]]
kind = "echo"
listen = "$ADDRESS:7001"
[[peer]]
address = "$PEER"
CONFIG

# The modules are loaded, the device is not made.
doctor 69 without-device --config pollux.toml
says without-device "  failure  rxe0 port 1, as configured: there is no RDMA device"
as_polluxd without-device 69 pollux.toml

rxe_up
gids
doctor 0 with-rxe --config pollux.toml --peer "$PEER"
says with-rxe "  ok       rxe0 port 1, as configured: can be opened, with GID 1 ::ffff:$ADDRESS"
says with-rxe "  ok       rxe0: the kernel's soft-RoCE"
says with-rxe "  ok       rxe0 port 1: active, Ethernet, path MTU 1024, network device eth0"
says with-rxe "  n/a      rxe0 port 1 GID 0: RoCEv2 fe80::"
says with-rxe "  ok       rxe0 port 1 GID 1: RoCEv2 ::ffff:$ADDRESS on eth0; chosen: RoCEv2, and of"
says with-rxe "  ok       way: $PEER is reached from $ADDRESS"
says with-rxe "result: polluxd would start"
while read -r line; do
    say "$line"
done <<LINES
$(grep 'rxe0 port 1' /out/with-rxe)
LINES
# What was found well starts.
polluxd --config pollux.toml &
appliance=$!
serves 7001 "$appliance"
kill "$appliance"
wait "$appliance"

ip link set eth0 down
until_true grep -q DOWN /sys/class/infiniband/rxe0/ports/1/state
doctor 69 down --config pollux.toml
says down "port 1 of RDMA device rxe0 is down, not active"
ip link set eth0 up

# Without the module that lets programs at the device.
rdma link delete rxe0
rmmod rdma_rxe
rmmod ib_uverbs
doctor 69 without-module --config pollux.toml
says without-module "  warning  RDMA for programs: the kernel does not give it: ib_uverbs is not loaded"
says without-module "  failure  rxe0 port 1, as configured: the kernel gives programs no access"
as_polluxd without-module 69 pollux.toml
say "$(sed -n 's/^pollux: //p' /out/without-module.error)"

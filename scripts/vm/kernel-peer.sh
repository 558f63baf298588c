#!/bin/sh
#: about an appliance and the kernel's AF_SMC over soft-RoCE, in both roles
#: hosts a b
#: modules smc smc_diag rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux kernel-smc/kernel-smc
#: memory 768
#: limit 180
#: capture

rxe_up
case $HOST in
    a)
        kernel-smc ueid POLLUX
        kernel-smc pnet NET1 --interface eth0 --device rxe0
        barrier serving
        for bytes in 1 4096 1048576; do
            said=$(kernel-smc exchange "$PEER:7001" --bytes $bytes --smcr) || fail "kernel client, $bytes: $said"
            say "kernel client: $said"
        done
        barrier served
        kernel-smc echo "$ADDRESS:7000" --connections 3 &
        echo=$!
        serves 7000 "$echo"
        barrier listening
        barrier asked
        wait "$echo"
        ;;
    b)
        # Where the SMC option's program is attached.
        mkdir /cgroup
        mount -t cgroup2 none /cgroup
        cat >pollux.toml <<CONFIG
[appliance]
runtime_dir = "/run/pollux"
ueids = ["POLLUX"]
[device]
driver = "verbs"
name = "rxe0"
[workers]
poll = "adaptive"
lock_dir = "/run"
[handshake]
syn_option = "required"
[[service]]
kind = "echo"
listen = "$ADDRESS:7001"
[[forward]]
name = "in"
listen = "tcp:127.0.0.1:6000"
connect = "smc:$PEER:7000"
CONFIG
        pollux() {
            command pollux --socket /run/pollux/control.sock "$@"
        }
        polluxd --config pollux.toml &
        appliance=$!
        serves 7001 "$appliance"
        barrier serving
        barrier served
        barrier listening
        for bytes in 1 4096 1048576; do
            head -c $bytes /dev/urandom >sent
            nc 127.0.0.1 6000 <sent >back
            cmp sent back || fail "kernel server: of $bytes bytes others came back"
            say "kernel server: $bytes bytes came back"
        done
        pollux show links
        pollux show groups
        # One for each role, however many connections there were, and all of those on SMC-R.
        groups=$(pollux show groups | grep -c "Linux .*POLLUX")
        [ "$groups" = 2 ] || fail "$groups groups with Linux instead of 2"
        pollux show fallbacks | grep -q "no fallbacks" || fail "$(pollux show fallbacks)"
        barrier asked
        kill "$appliance"
        wait "$appliance"
        ;;
esac
barrier down

#!/bin/sh
#: about the kernel's AF_SMC carries streams between two hosts over soft-RoCE
#: hosts a b
#: modules smc smc_diag rdma_rxe ib_uverbs
#: programs rdma
#: built kernel-smc/kernel-smc
#: capture

rxe_up
kernel-smc ueid POLLUX
kernel-smc pnet NET1 --interface eth0 --device rxe0
case $HOST in
    a)
        kernel-smc echo 192.0.2.1:7000 --connections 3 &
        echo=$!
        serves 7000 "$echo"
        barrier listening
        wait "$echo"
        ;;
    b)
        barrier listening
        for bytes in 1 4096 1048576; do
            said=$(kernel-smc exchange "$PEER:7000" --bytes $bytes --smcr) || fail "$bytes: $said"
            say "$said"
        done
        ;;
esac
barrier down

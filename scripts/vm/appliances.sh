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
configure
echo_service 7001
start_appliance 7001
barrier serving
if [ "$HOST" = b ]; then
    pollux show devices
    for inline in off on; do
        pollux latency "$PEER:7001" --sizes 1,64,4K,64K --iterations 50 --inline $inline
    done
    pollux show links
    pollux show groups
fi
stop_in_turn

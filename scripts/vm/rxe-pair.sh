#!/bin/sh
#: about two hosts exchange messages over soft-RoCE: reliable connections and their latency
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma ibv_rc_pingpong ib_send_lat ib_write_lat
#: capture

rxe_up
barrier up
# The servers listen on TCP before they can be asked for their queue pairs' numbers.
run() {
    name=$1 port=$2
    shift 2
    case $HOST in
        a)
            "$@" >/out/"$name" 2>&1 &
            server=$!
            until_true listens "$port"
            barrier "$name"
            wait "$server"
            ;;
        b)
            barrier "$name"
            "$@" "$PEER" >/out/"$name" 2>&1
            cat /out/"$name"
            ;;
    esac
}
run pingpong 18515 ibv_rc_pingpong -d rxe0 -g 1 -p 18515 -n 200
run send 18516 ib_send_lat -d rxe0 -x 1 -F -p 18516 -n 500 -s 64
run write 18517 ib_write_lat -d rxe0 -x 1 -F -p 18517 -n 500 -s 64
if [ "$HOST" = b ]; then
    say "pingpong: $(grep iters /out/pingpong)"
    for what in send write; do
        # Columns: size, iterations, then microseconds: least, most, typical.
        say "ib_${what}_lat: $(awk '$1 == 64 { print $1, "bytes,", $5, "us typical" }' /out/$what)"
    done
fi
barrier down

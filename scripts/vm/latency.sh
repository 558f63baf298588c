#!/bin/sh
#: about the same link's latency by TCP and by soft-RoCE's sends and writes, side by side
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma chrt qperf ib_send_lat ib_write_lat
#: limit 120

rxe_up
barrier up
# serve PORT COMMAND...: starts a server, and lets the other host go on when it listens.
serve() {
    port=$1
    shift
    "$@" >/out/server 2>&1 &
    server=$!
    serves "$port" "$server"
    barrier "$port"
}
# perftest polls without a pause. With the idle policy it gives way to rxe, which does its work on the
# same processor; otherwise most messages wait for a tick of the guest's clock.
perftest() {
    chrt -i 0 "$@" -d rxe0 -x 1 -F -n 500 -s 64
}
case $HOST in
    a)
        serve 19765 qperf
        barrier asked
        kill "$server"
        for what in send write; do
            serve 18515 perftest ib_${what}_lat
            wait "$server"
        done
        ;;
    b)
        barrier 19765
        qperf -t 3 -m 64 -uu "$PEER" tcp_lat >/out/qperf
        barrier asked
        cat /out/qperf
        # qperf tells half a round trip in nanoseconds, perftest in microseconds.
        tcp=$(awk '$1 == "latency" { print $3 / 1000 }' /out/qperf)
        say "TCP 64 bytes, one way: $tcp us"
        for what in send write; do
            barrier 18515
            perftest ib_${what}_lat "$PEER" >/out/ib_${what}_lat 2>&1
            cat /out/ib_${what}_lat
            # Columns: size, iterations, then microseconds: least, most, typical.
            set -- $(awk '$1 == 64 { print $3, $5 }' /out/ib_${what}_lat)
            ratio=$(awk -v one="$2" -v tcp="$tcp" 'BEGIN { printf "%.2f", one / tcp }')
            say "RoCE $what 64 bytes, one way: $2 us (least $1), $ratio of TCP"
        done
        ;;
esac
barrier down

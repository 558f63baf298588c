#!/bin/sh
#: about the same link's latency by TCP, by soft-RoCE's sends and writes, and by Pollux, side by side
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma chrt qperf ib_send_lat ib_write_lat
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: memory 768
#: limit 180

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
# Whoever polls without a pause has the idle policy: so it gives way to rxe, which does its work on the same
# processor; otherwise most messages wait for a tick of the guest's clock.
perftest() {
    chrt -i 0 "$@" -d rxe0 -x 1 -F -n 500 -s 64
}
# row WHAT MEDIAN: a line of the table.
row() {
    [ "$1" != "RoCE send" ] || send=$2
    say "$(awk -v what="$1" -v one="$2" -v tcp="$tcp" -v send="$send" 'BEGIN {
        printf "%-28s %10.2f %15s", what, one / tcp, send ? sprintf("%.2f", one / send) : "-" }')"
}
pollux_serves() {
    configure workers.poll=$1
    echo_service 7001
    start_appliance 7001 chrt -i 0
    barrier "$1 serving"
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
        send=
        say "$(printf '%-28s %10s %15s' '64 bytes, one way' '/ TCP' '/ RoCE send')"
        row TCP "$tcp"
        for what in send write; do
            barrier 18515
            perftest ib_${what}_lat "$PEER" >/out/ib_${what}_lat 2>&1
            cat /out/ib_${what}_lat
            # Columns: size, iterations, then microseconds: least, most, typical.
            row "RoCE $what" "$(awk '$1 == 64 { print $5 }' /out/ib_${what}_lat)"
        done
        ;;
esac
for poll in busy adaptive; do
    pollux_serves $poll
    if [ "$HOST" = b ]; then
        for inline in off on; do
            pollux latency "$PEER:7001" --sizes 64 --iterations 300 --inline $inline >/out/pollux
            cat /out/pollux
            grep -q "^# transport: smc-r, " /out/pollux || fail "that was not over RDMA"
            # Columns: size, iterations, then microseconds: least, median.
            row "Pollux $poll, inline $inline" "$(awk '$1 == 64 { print $4 }' /out/pollux)"
        done
    fi
    stop_in_turn
done

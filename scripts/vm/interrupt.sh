#!/bin/sh
#: about an idle appliance sleeps with workers.poll = "interrupt", and makes no system call when busy
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma strace
#: libraries libibverbs.so.1
#: built pollux-control/polluxd pollux-control/pollux
#: memory 768
#: limit 180

rxe_up
configure workers.poll=interrupt
echo_service 7001
start_appliance 7001
barrier serving
# cpu_ms: processor time of the appliance so far.
cpu_ms() {
    awk '{ print ($14 + $15) * 10 }' "/proc/$appliance/stat"
}
# measure: processor time for each second of a stretch without traffic, in ms.
measure() {
    from=$(uptime_ms) spent=$(cpu_ms)
    # Not to wait for something: this is the stretch.
    sleep 4
    echo $((($(cpu_ms) - spent) * 1000 / ($(uptime_ms) - from)))
}
# calls FILE [NAME]: how many system calls, all or of that name, are in a table of strace.
calls() {
    awk -v name="${2:-total}" '$NF == name { calls = $4 } END { print calls + 0 }' "$1"
}
streams() {
    pollux latency "$PEER:7001" --sizes 64,64K --iterations 20
}
if [ "$HOST" = b ]; then
    streams
    barrier "b has streamed"
    # Both are idle, with a link between them.
    sleeping=$(measure)
    barrier "the stretch is over"
    pollux set poll busy
    busy=$(measure)
    say "idle, for each second: $sleeping ms of the processor with interrupt, $busy ms with busy"
    [ $((sleeping * 20)) -lt "$busy" ] || fail "an idle appliance uses too much"
    worker=
    for task in "/proc/$appliance/task"/*; do
        [ "$(cat "$task/comm")" = pollux-w0 ] && worker=${task##*/}
    done
    [ -n "$worker" ] || fail "the appliance has no worker"
    passes=$(stat_of worker.passes)
    strace -qq -c -o /out/idle -p "$worker" &
    tracer=$!
    until_true grep -q "TracerPid:	$tracer" "/proc/$worker/status"
    sleep 2
    kill -INT $tracer
    wait $tracer || true
    cat /out/idle
    passed=$(($(stat_of worker.passes) - passes))
    say "a busy worker without traffic: $(calls /out/idle) system calls, $passed passes"
    streams
else
    barrier "b has streamed"
    barrier "the stretch is over"
fi
stop_in_turn

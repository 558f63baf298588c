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
# trace FILE COMMAND...: counts the worker's system calls while the command runs.
trace() {
    table=$1
    shift
    strace -qq -c -o "$table" -p "$worker" &
    tracer=$!
    until_true grep -q "TracerPid:	$tracer" "/proc/$worker/status"
    "$@"
    kill -INT $tracer
    wait $tracer || true
    cat "$table"
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
    trace /out/idle sleep 2
    passed=$(($(stat_of worker.passes) - passes))
    say "busy, without traffic: $(calls /out/idle) system calls in $passed passes"
    [ "$passed" -gt 1000 ] || fail "the worker does not poll"
    [ "$(calls /out/idle)" = 0 ] || fail "the worker makes system calls without a reason"
    doorbells=$(stat_of link.doorbells)
    trace /out/streaming streams
    doorbells=$(($(stat_of link.doorbells) - doorbells))
    others=$(($(calls /out/streaming) - $(calls /out/streaming write)))
    say "busy, with traffic: $(calls /out/streaming write) writes, which rxe posts by, for $doorbells doorbells; $others other system calls"
    [ $others -lt 20 ] || fail "the worker makes system calls beside those of the adapter"
else
    barrier "b has streamed"
    barrier "the stretch is over"
fi
stop_in_turn

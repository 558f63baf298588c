# What scenarios can call. README.md describes it for those who write them.

# say TEXT...: a line for the operator.
say() {
    echo "say $*" >&3
    echo "$*"
}

# fail TEXT...: the scenario has failed.
fail() {
    say "$*"
    exit 1
}

# barrier NAME: waits until the other host has come to the same barrier.
barrier() {
    echo "barrier $1" >&3
    read -r answer <&3
    case $answer in
        "go $1") ;;
        *) fail "at barrier $1: $answer" ;;
    esac
}

# kill_host HOST: the other host loses its power.
kill_host() {
    echo "kill $1" >&3
    read -r answer <&3
    [ "$answer" = "done" ] || fail "kill_host $1: $answer"
}

# until_true COMMAND...: looks again and again until the command succeeds. The limit of the scenario
# is its limit as well.
until_true() {
    until "$@"; do
        usleep 50000
    done
}

# listens PORT: whether there is a TCP socket that listens at this port.
listens() {
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk -v port="$(printf '%04X' "$1")" \
            '$4 == "0A" && $2 ~ ":" port "$" { found = 1 } END { exit !found }'
}

# serves PORT PROCESS: waits until the process, which this script has started, listens at the port.
serves() {
    until listens "$1"; do
        kill -0 "$2" || fail "the server for port $1 has ended"
        usleep 50000
    done
}

# rxe_up: makes rxe0 of eth0, and waits until its port is active.
rxe_up() {
    rdma link add rxe0 type rxe netdev eth0
    until_true grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
}

# lost_nothing: every frame of rxe0's connections has arrived, and in its order.
lost_nothing() {
    counters=/sys/class/infiniband/rxe0/ports/1/hw_counters
    grep . $counters/*
    for counter in out_of_seq_request rcvd_seq_err retry_exceeded_err; do
        [ "$(cat $counters/$counter)" = 0 ] || fail "$counter: $(cat $counters/$counter)"
    done
}

# gids: the table of addresses of rxe0: index, address, kind, interface.
gids() {
    port=/sys/class/infiniband/rxe0/ports/1
    for place in "$port"/gids/*; do
        # The table is long and mostly empty: without a process for each entry.
        read -r gid <"$place"
        if [ "$gid" != 0000:0000:0000:0000:0000:0000:0000:0000 ]; then
            index=${place##*/}
            read -r type <"$port/gid_attrs/types/$index"
            read -r interface <"$port/gid_attrs/ndevs/$index"
            echo "$index $gid $type $interface"
        fi
    done
}

# configure [KEY=VALUE...]: the configuration of an appliance on rxe0 whose only peer is the other host. Keys
# are those of conf/pollux.toml with their table, as attach.rmb=16K. An emulated host may have to wait
# seconds for the machine's processors, so whoever waits for it is patient: 30 s for an acknowledgement.
configure() {
    {
        printf '%s\n' appliance.runtime_dir=/run/pollux device.driver=verbs device.name=rxe0 \
            device.ack_timeout=20 device.retries=6 handshake.timeout_ms=60000 \
            handshake.peek_timeout_ms=60000 workers.poll=adaptive workers.lock_dir=/run "$@"
        # Whoever names a key again changes it.
    } | awk -F = '
        { value[$1] = $2 }
        END {
            for (key in value) {
                quote = value[key] ~ /^[0-9]+$/ ? "" : "\""
                print key " = " quote value[key] quote
            }
        }' >pollux.toml
    printf '[[peer]]\naddress = "%s"\n' "$PEER" >>pollux.toml
}

# echo_service PORT: adds a service that sends back what it gets.
echo_service() {
    printf '[[service]]\nkind = "echo"\nlisten = "%s:%s"\n' "$ADDRESS" "$1" >>pollux.toml
}

# forward LISTEN CONNECT: adds a gateway.
forward() {
    printf '[[forward]]\nname = "%s"\nlisten = "%s"\nconnect = "%s"\n' "${1%%:*}" "$1" "$2" >>pollux.toml
}

# pollux COMMAND...: asks the appliance, again if it lives and has not answered in time: 69.
pollux() {
    until command pollux --socket /run/pollux/control.sock "$@"; do
        [ $? = 69 ] && kill -0 "$appliance" || return 1
    done
}

# start_appliance PORT [BEFORE...]: starts polluxd, BEFORE it what may precede a command, and waits until it
# listens there. $appliance is its process; what it says goes to /out/polluxd as well.
start_appliance() {
    port=$1
    shift
    rm -f polluxd.says
    mkfifo polluxd.says
    tee -a /out/polluxd <polluxd.says &
    scribe=$!
    "$@" polluxd --config pollux.toml >polluxd.says 2>&1 &
    appliance=$!
    serves "$port" "$appliance"
}

# stop_appliance: ends it in order, and fails if it says that this was not one.
stop_appliance() {
    kill "$appliance"
    status=0
    wait "$appliance" || status=$?
    [ "$status" = 0 ] || fail "the appliance ended with $status"
    # All that it said is in the file.
    wait "$scribe"
}

# stat_of COUNTER: its value in `pollux stats`.
stat_of() {
    pollux stats | awk -v name="$1" '$1 == name { print $2; found = 1 } END { exit !found }'
}

# stat_is COUNTER VALUE: whether it has this value.
stat_is() {
    [ "$(stat_of "$1")" = "$2" ]
}

# has_links COUNT: whether the appliance has this number of links.
has_links() {
    [ "$(pollux show links | grep -c "client\|server")" = "$1" ]
}

# stop_in_turn: the appliance of b ends, then that of a; a has to let the link go by itself, without a
# complaint.
stop_in_turn() {
    barrier "all is done"
    if [ "$HOST" = b ]; then
        stop_appliance
        barrier "b has stopped"
    else
        barrier "b has stopped"
        until_true has_links 0
        if grep "a queue pair failed\|link failed\|RemoteOperation" /out/polluxd; then
            fail "an appliance complains of a peer that has ended in order"
        fi
        stop_appliance
    fi
    barrier "a has stopped"
}

# uptime_ms: milliseconds since the guest's start.
uptime_ms() {
    awk '{ print int($1 * 1000) }' /proc/uptime
}

# echo_gateways [KEY=VALUE...]: an appliance whose port 6000 leads to the other host's appliance and there to
# a program that sends everything back; clients that do not speak SMC reach their own host's at port 6001.
echo_gateways() {
    configure "$@"
    forward tcp:127.0.0.1:6000 "smc:$PEER:6001"
    forward "smc:$ADDRESS:6001" tcp:127.0.0.1:6002
    start_appliance 6000
    until_true stat_is sessions.open 1
    nc -ll -p 6002 -e /usr/bin/cat &
    serves 6002 $!
}

# holdings: what the appliance has of the kernel: open files, and objects of the adapter.
holdings() {
    echo "$(ls "/proc/$appliance/fd" | wc -l) files"
    rdma resource show | sed 's/ mr [0-9]*//'
}

# registrations: pieces of memory that the adapter knows.
registrations() {
    rdma resource show | sed 's/.* mr \([0-9]*\).*/\1/'
}

# keeps_nothing HOLDINGS REGISTRATIONS: after the other host's death the appliance serves a client by TCP, and
# then has no more than that. A receive ring stays registered for the slot's next connection.
keeps_nothing() {
    fallbacks=$(stat_of fallbacks.total)
    [ "$(echo "still here" | nc "$ADDRESS" 6001)" = "still here" ] || fail "nobody is served any more"
    stat_is fallbacks.total $((fallbacks + 1)) || fail "that client was not served by TCP"
    for counter in conns.open handshakes.open forward.tcp.active forward.smc.active; do
        until_true stat_is $counter 0
    done
    now=$(holdings)
    if [ "$now" != "$1" ] || [ "$(registrations)" -gt "$2" ]; then
        printf '%s\n' "before:" "$1" "now:" "$now" "registrations: $(registrations), at most $2"
        fail "the appliance has not given back all that it had"
    fi
}

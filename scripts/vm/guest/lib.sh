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

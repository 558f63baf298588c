#!/bin/sh
#: about two hosts exchange messages over soft-RoCE's reliable connections, by IPv4 and by IPv6
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma ibv_rc_pingpong
#: capture

rxe_up
barrier up
for gid in 1 2; do
    # The server listens on TCP before it can be asked for its queue pair's number.
    case $HOST in
        a)
            ibv_rc_pingpong -d rxe0 -g $gid -n 200 -c >/out/pingpong-$gid 2>&1 &
            server=$!
            serves 18515 "$server"
            barrier $gid
            wait "$server"
            ;;
        b)
            barrier $gid
            ibv_rc_pingpong -d rxe0 -g $gid -n 200 -c "$PEER" >/out/pingpong-$gid 2>&1
            say "GID $gid: $(grep iters /out/pingpong-$gid)"
            ;;
    esac
done
barrier down

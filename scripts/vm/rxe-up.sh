#!/bin/sh
#: about the kernel's soft-RoCE device comes up, and verbs programs see it
#: hosts a b
#: modules rdma_rxe ib_uverbs
#: programs rdma ibv_devinfo

rxe_up
rdma link show
ibv_devinfo -v -d rxe0 | tee /out/devinfo
grep -q 'state:.*PORT_ACTIVE' /out/devinfo
gids | tee /out/gids
grep -q "ffff:c000:020[12] RoCE v2 eth0" /out/gids
if [ "$HOST" = a ]; then
    say "device $(rdma link show | sed 's/ *$//')"
    while read -r line; do
        say "GID $line"
    done </out/gids
fi

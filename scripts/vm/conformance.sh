#!/bin/sh
#: about the tests of the driver contract, in a guest that has soft-RoCE
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: tests pollux-provider/conformance
#: memory 768
#: limit 240

rxe_up
export POLLUX_VERBS_DEVICE=rxe0
status=0
conformance >/out/conformance 2>&1 || status=$?
cat /out/conformance
say "$(grep '^test result' /out/conformance)"
exit $status

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
# Where the driver for adapters is, its cases; otherwise all of them, on the embedded fabric. One at a
# time: they share the adapter, and it shares the processor with them.
cases=
conformance --list verbs:: | grep -q ': test$' && cases=verbs::
status=0
conformance --test-threads=1 $cases >/out/conformance 2>&1 || status=$?
cat /out/conformance
say "${cases:-all cases}: $(grep '^test result' /out/conformance)"
exit $status

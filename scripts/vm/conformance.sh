#!/bin/sh
#: about the tests of the driver contract, in a guest that has soft-RoCE
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: tests pollux-provider/conformance
#: memory 768
#: limit 400

rxe_up
export POLLUX_VERBS_DEVICE=rxe0
# Where the driver for adapters is, its cases; otherwise all of them, on the embedded fabric. One at a
# time: they share the adapter, and it shares the processor with them.
cases=
conformance --list verbs:: | grep -q ': test$' && cases=verbs::
# Printed while it runs, so that the log of a case that hangs ends with its name.
{
    status=0
    conformance --test-threads=1 $cases || status=$?
    echo $status >/tmp/status
} 2>&1 | tee /out/conformance
say "${cases:-all cases}: $(grep '^test result' /out/conformance)"
exit "$(cat /tmp/status)"

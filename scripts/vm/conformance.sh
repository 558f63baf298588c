#!/bin/sh
#: about the tests of the driver contract, in a guest that has soft-RoCE
#: modules rdma_rxe ib_uverbs
#: programs rdma
#: libraries libibverbs.so.1
#: tests pollux-provider/conformance
#: features pollux-provider/adapter
#: memory 768
#: limit 400

rxe_up
export POLLUX_VERBS_DEVICE=rxe0
echo 8 >/proc/sys/vm/nr_hugepages
there=$(conformance --list verbs:: | grep -c ': test$')
# One at a time: they share the adapter, and it shares the processor with them. Printed while it runs, so
# that the log of a case that hangs ends with its name.
{
    status=0
    conformance --test-threads=1 --show-output verbs:: || status=$?
    echo $status >/tmp/status
} 2>&1 | tee /out/conformance
status=$(cat /tmp/status)
[ "$status" = 0 ] || fail "the suite ended with $status"
# Each says that it held or why it cannot; the driver's own say nothing but pass.
count() {
    grep -c "$1" /out/conformance || true
}
own=$(conformance --list verbs:: | grep -c '^verbs::.*: test$')
held=$(count '^held on rxe0: ')
cannot=$(count '^cannot hold on rxe0: ')
say "$there tests: $held cases held, $cannot cannot hold on soft-RoCE, $own are the driver's own"
[ "$held" -gt 0 ] && [ "$own" -gt 0 ] && [ "$there" = $((held + cannot + own)) ] || fail "that is not all"
grep -q "^test result: ok. $there passed; 0 failed; 0 ignored" /out/conformance ||
    fail "$(grep '^test result' /out/conformance)"

#!/bin/sh
# Stands between cargo and rustc (RUSTC_WORKSPACE_WRAPPER) when `cargo xtask fuzz` builds: the crates of
# this workspace, and only they, get the counters by which libFuzzer sees what an input reaches. The
# options are rustc's own, so no nightly toolchain is needed. Cargo does not see changes here: after one,
# run `cargo clean --profile fuzz` and `cargo clean --profile dev`.
rustc=$1
shift
exec "$rustc" "$@" \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares

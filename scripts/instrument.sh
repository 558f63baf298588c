#!/bin/sh
# Stands between cargo and rustc (RUSTC_WORKSPACE_WRAPPER) when `cargo xtask fuzz` builds: the crates of
# this workspace, and only they, get the counters by which libFuzzer sees what an input reaches, and tell
# it what they compare. The targets themselves only count: what they compare is long and says little. The
# options are rustc's own, so no nightly toolchain is needed. Cargo does not see changes here: after one,
# run `cargo clean --profile fuzz` and `cargo clean --profile dev`.
rustc=$1
shift
case " $* " in
*" --crate-name pollux_fuzz "*) compares= ;;
*) compares=-Cllvm-args=-sanitizer-coverage-trace-compares ;;
esac
exec "$rustc" "$@" \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    $compares

#!/bin/sh
# Builds the fuzz targets and runs each for a number of seconds: fuzz/run.sh [SECONDS] [TARGET...]
#
# libFuzzer with coverage counters, on the stable compiler: the counters are an LLVM pass, which needs no switch of a
# nightly one. There is no address sanitizer, since the code under test forbids `unsafe`. Finds are written to
# target/fuzz/<target>; seeds/ holds the inputs to begin with.
set -eu
seconds="${1:-60}"
[ $# -gt 0 ] && shift
targets="${*:-http json line}"
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here"
work="${CARGO_TARGET_DIR:-$here/target}"
host="$(rustc -vV | sed -n 's/^host: //p')"
flags="--cfg fuzzing -Ccodegen-units=4 -Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    flags="$flags -Cllvm-args=-sanitizer-coverage-$option"
done
# For the host alone, so that build scripts and macros get no counters.
RUSTFLAGS="$flags" cargo build --release --locked --target "$host"
status=0
for target in $targets; do
    mkdir -p "$work/fuzz/$target/corpus"
    echo "== $target: $seconds s"
    "$work/$host/release/$target" -max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=2048 \
        -print_final_stats=1 -verbosity="${FUZZ_VERBOSITY:-1}" -dict="$here/seeds/$target.dict" \
        -artifact_prefix="$work/fuzz/$target/" \
        "$work/fuzz/$target/corpus" "$here/seeds/$target" || status=1
done
exit $status

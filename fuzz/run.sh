#!/bin/sh
# Builds the fuzz targets and runs each for a number of seconds: fuzz/run.sh [SECONDS] [TARGET...]
#
# libFuzzer with coverage counters, on the stable compiler: the counters are an LLVM pass, which needs no switch of a
# nightly one. There is no address sanitizer, since the code under test forbids `unsafe`. Finds are written to
# <target folder>/fuzz/<target>; seeds/ holds the inputs to begin with.
set -eu
seconds="${1:-60}"
[ $# -gt 0 ] && shift
targets="${*:-http json line}"
here="$(cd "$(dirname "$0")" && pwd)"
cd "$here"
# A folder of its own by default: what is built here must not be linked into anything else.
work="${CARGO_TARGET_DIR:-$here/target}"
export CARGO_TARGET_DIR="$work"
RUSTC_WRAPPER="$here/rustc.sh" cargo build
status=0
for target in $targets; do
    mkdir -p "$work/fuzz/$target/corpus"
    echo "== $target: $seconds s"
    "$work/debug/$target" -max_total_time="$seconds" -max_len=4096 -timeout=30 -rss_limit_mb=2048 \
        -print_final_stats=1 -verbosity="${FUZZ_VERBOSITY:-1}" -dict="$here/seeds/$target.dict" \
        -artifact_prefix="$work/fuzz/$target/" \
        "$work/fuzz/$target/corpus" "$here/seeds/$target" || status=1
done
exit $status

#!/bin/sh
# Stands before the compiler (RUSTC_WRAPPER): counters of coverage go into what is fuzzed, and into nothing else.
rustc="$1"
shift
case " $* " in
*" --crate-name tokenrouter_server "* | *" --crate-name httparse "* | *" fuzz_targets/"*)
    exec "$rustc" "$@" --cfg fuzzing -Cpasses=sancov-module \
        -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
esac
exec "$rustc" "$@"

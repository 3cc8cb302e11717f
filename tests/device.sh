#!/usr/bin/env bash
# What only a GPU can show, in at most four minutes: conformance of the emulation, the kernel tests on the real driver,
# compute-sanitizer on the small ones, graphs and two models on one card, and tables of times beside what the card can
# do: products, then whole steps through the engine, two models sharing the card, and handoffs. Every part that cannot
# run says why in one line; the exit status counts the parts that failed.
#
#   tests/device.sh            on a machine with a GPU and cargo: builds what it runs
#   tests/device.sh prepare    on a machine without one: builds everything into target/device, to be carried
#   tests/device.sh toy        no GPU: runs the parts that the emulation can, with toy sizes
#
# Carried: target/device (test programs, bench, probe image) and this script. The bench writes its checkpoints of random
# weights where it runs.
# Environment: DEVICE_SECONDS (in all; 240), DEVICE_MODE=carried (build nothing), DEVICE_BIG=1 (Qwen3-8B too, 16.4 GB of
# disk), DEVICE_MODELS (folder of the bench's checkpoints, kept; else a temporary one).
set -uo pipefail
cd "$(dirname "$0")/.."
carried="target/device"
limit="${DEVICE_SECONDS:-240}"
failed=0
mode="${1:-run}"

say() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }
skip() { echo "cannot run: $1"; }

# part NAME SECONDS COMMAND...: one part with a time limit, cut to what is left.
part() {
  local name="$1" seconds="$2" left=$((limit - SECONDS)); shift 2
  say "$name"
  [ "$left" -gt 5 ] || { skip "the $limit s are over"; return; }
  [ "$seconds" -lt "$left" ] || seconds="$left"
  timeout "$seconds" "$@"
  local status=$?
  if [ "$status" -eq 124 ]; then echo "FAILED: $name: not done after $seconds s"; fi
  [ "$status" -eq 0 ] || { [ "$status" -eq 124 ] || echo "FAILED: $name: status $status"; failed=$((failed + 1)); }
}

# The newest test program of a name among cargo's messages.
built() {
  cargo "$@" --no-run --message-format=json 2>/dev/null |
    python3 -c 'import json,sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("executable") and m.get("profile", {}).get("test") or m.get("executable") and "bench" in m.get("target", {}).get("kind", []):
        print(m["executable"])' | tail -1
}

find_nvcc() {
  for f in "${NVCC:-}" "${CUDA_HOME:-/none}/bin/nvcc" "$(command -v nvcc || true)" "${VIRTUAL_ENV:-/none}"/lib/python3*/site-packages/nvidia/cu*/bin/nvcc \
      .venv/lib/python3*/site-packages/nvidia/cu*/bin/nvcc /usr/local/cuda/bin/nvcc; do
    [ -n "$f" ] && [ -x "$f" ] && { echo "$f"; return; }
  done
}

prepare() {
  local features="$1" nvcc
  mkdir -p "$carried"
  for test in cuda device cuda_engine; do
    [ -f "tests/$test.rs" ] || continue
    program="$(built test --release $features --test "$test")"
    [ -n "$program" ] && cp "$program" "$carried/$test"
  done
  program="$(built bench $features --bench device)"
  [ -n "$program" ] && cp "$program" "$carried/bench"
  program="$(built test --release -p tokenrouter-emulate --test emulate)"
  [ -n "$program" ] && cp "$program" "$carried/probe"
  nvcc="$(find_nvcc)"
  if [ -n "$nvcc" ] && [ -n "$features" ]; then
    "$nvcc" -std=c++17 -O3 -fmad=false -fatbin -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
      -gencode arch=compute_90,code=compute_90 -I kernels/cuda -o "$carried/probe.fatbin" kernels/emulate/testdata/probe.cu
  fi
  ls -la "$carried"
}

gpu=""
if [ "$mode" != toy ] && command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then gpu=yes; fi

if [ "$mode" = prepare ]; then
  prepare "--features cuda"
  exit
fi

say "machine"
if [ -n "$gpu" ]; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
else
  skip "no GPU here (nvidia-smi sees none); what follows runs on the emulation where it can, with toy sizes"
  export TOKENROUTER_EMU_SEEDS="${TOKENROUTER_EMU_SEEDS:-0}"
fi
if [ "${DEVICE_MODE:-}" != carried ] && ! ls "$carried"/* >/dev/null 2>&1; then
  if command -v cargo >/dev/null; then
    say "build (not counted)"
    if [ -n "$gpu" ]; then prepare "--features cuda"; else prepare ""; fi
    SECONDS=0
  fi
fi

have() { [ -x "$carried/$1" ]; }

if have probe; then
  if [ -n "$gpu" ] && [ -f "$carried/probe.fatbin" ]; then
    part "conformance: fragments, N8, shuffles, conversions; matrix rate" 20 \
      env TOKENROUTER_PROBE="$carried/probe.fatbin" "$carried/probe" probe:: --test-threads 1 --nocapture
  elif [ -n "$gpu" ]; then
    say "conformance"; skip "no $carried/probe.fatbin: it is compiled where nvcc is (prepare)"
  else
    part "conformance: the emulation against its own claims" 20 "$carried/probe" probe:: --test-threads 1 --nocapture
  fi
else
  say "conformance"; skip "no $carried/probe"
fi

if have cuda; then
  part "kernel tests" 40 "$carried/cuda" --test-threads 1 -q
else
  say "kernel tests"; skip "no $carried/cuda"
fi

sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)"
if [ -n "$gpu" ] && [ -n "$sanitizer" ] && have cuda; then
  for tool in memcheck racecheck; do
    part "compute-sanitizer $tool on the small tests" 15 \
      "$sanitizer" --tool "$tool" --error-exitcode 9 "$carried/cuda" layers:: signals:: --test-threads 1 -q
  done
else
  say "compute-sanitizer"; skip "$([ -n "$gpu" ] && echo "there is no compute-sanitizer here" || echo "it needs a GPU")"
fi

if have cuda_engine; then
  part "engine: graphs, two models on one card" 40 "$carried/cuda_engine" --test-threads 1 -q
else
  say "engine"; skip "no $carried/cuda_engine"
fi

if have bench; then
  part "bench: copies, products, steps of products, launch gaps, two models" 30 \
    "$carried/bench" --bench copy products steps models
  # Its lines come one by one: what is done stands there when the time is over.
  part "bench: whole steps through the engine, graphs on and off, sharing, handoffs" 80 \
    env DEVICE_ENGINE_SECONDS="${DEVICE_ENGINE_SECONDS:-60}" "$carried/bench" --bench engine
else
  say "bench"; skip "no $carried/bench"
fi

say "done, $failed parts failed"
exit "$failed"

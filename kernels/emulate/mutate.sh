#!/usr/bin/env bash
# Does a test command notice a missing barrier? Runs it once to learn which barriers, warp syncs, copy waits and
# fences its kernels execute, then once per line without that one. Prints the lines whose absence nothing noticed, and
# fails if there are any that are not listed, with a reason, in the file named by TOKENROUTER_EMU_SURVIVORS.
#
#   kernels/emulate/mutate.sh [every Nth line, default 1] COMMAND...
#   TOKENROUTER_EMU=race kernels/emulate/mutate.sh 4 target/debug/deps/cuda-0123456789abcdef --quiet
#
# The race build sees most; a line that only orders atomics shows under several seeds of the plain build. To ask both:
#   mutate.sh bash -c "TOKENROUTER_EMU=race $test && TOKENROUTER_EMU=plain TOKENROUTER_EMU_SEEDS=0,1,2,3 $test"
set -uo pipefail
step=1
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then step="$1"; shift; fi
[ $# -gt 0 ] || { sed -n "2,11p" "$0"; exit 2; }
list="$(mktemp)"
trap 'rm -f "$list" "$list.sorted"' EXIT
TOKENROUTER_EMU_SITES="$list" "$@" >/dev/null 2>&1 || { echo "the command fails as it is"; exit 2; }
sort -u -t: -k1,1 -k2,2n "$list" > "$list.sorted"
[ -s "$list.sorted" ] || { echo "the command runs no kernel with a barrier, sync, wait or fence"; exit 2; }
total=0 survivors=0
while read -r site kind; do
  total=$((total + 1))
  [ $((total % step)) -eq 0 ] || continue
  if TOKENROUTER_EMU_REMOVE="$site" timeout "${MUTATE_TIMEOUT:-300}" "$@" >/dev/null 2>&1 </dev/null; then
    if [ -n "${TOKENROUTER_EMU_SURVIVORS:-}" ] && grep -q "^$site " "$TOKENROUTER_EMU_SURVIVORS"; then
      echo "survives, as listed: $(grep "^$site " "$TOKENROUTER_EMU_SURVIVORS")"
    else
      echo "nothing notices that $site ($kind) is missing"
      survivors=$((survivors + 1))
    fi
  fi
done < "$list.sorted"
echo "$total lines, every ${step}th removed, $survivors unnoticed"
[ "$survivors" -eq 0 ]

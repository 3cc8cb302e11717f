#!/usr/bin/env bash
# Does a test program notice a missing barrier? Numbers every barrier, warp sync, copy wait and fence that its kernels
# execute, then runs the tests once per line without that one. Every removal must make a test fail. Lines whose absence
# nothing notices are allowed when the list of survivors gives a reason, and that list must fit the sources.
#
#   kernels/emulate/mutate.sh [every Nth line, default 1] PROGRAM [FILTER...]
#   kernels/emulate/mutate.sh 8 target/debug/deps/cuda-0123456789abcdef attention:: linear:: layers::
#
# With filters, PROGRAM runs once per filter (as a test program's argument), and a line is only tried where it runs.
# The race build sees most; a line that only orders atomics shows under several seeds of the plain build, so both are
# asked. Environment: MUTATE_SURVIVORS (the list; default kernels/cuda/survivors.txt; "none"), MUTATE_TIMEOUT (seconds
# per run), MUTATE_ONLY (a pattern that lines must match, as in "linear.cu:"), MUTATE_WHOLE=1 (the filters are all
# there are: a line of the sources that never runs is a failure too).
#
# The list: file.cu | text of the line | which line of that text in the file, from 1 | reason
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
sources="$here/../cuda"
step=1
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then step="$1"; shift; fi
[ $# -gt 0 ] || { sed -n "2,17p" "$0"; exit 2; }
program="$1"; shift
filters=("$@")
[ ${#filters[@]} -gt 0 ] || filters=("")
survivors="${MUTATE_SURVIVORS:-$sources/survivors.txt}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# run FILTER: one run of the program, silent.
run() { timeout "${MUTATE_TIMEOUT:-120}" "$program" ${1:+"$1"} >/dev/null 2>&1 </dev/null; }
# key file.cu 12: the line as the list of survivors names it.
key() {
  awk -v file="$1" -v at="$2" '{ text = $0; gsub(/^[ \t]+|[ \t]+$/, "", text); n[text]++ }
    NR == at { print file " | " text " | " n[text]; exit }' "$sources/$1" 2>/dev/null
}

# Every entry of the list must name a line that is there.
stale=0
: > "$work/list"
if [ -f "$survivors" ]; then
  while IFS= read -r entry; do
    [[ "$entry" =~ ^[[:space:]]*(#|$) ]] && continue
    file="${entry%% | *}"; rest="${entry#* | }"; text="${rest%% | *}"; rest="${rest#* | }"; nth="${rest%% | *}"
    reason="${rest#* | }"
    count="$(awk -v want="$text" '{ text = $0; gsub(/^[ \t]+|[ \t]+$/, "", text); if (text == want) n++ } END { print n + 0 }' \
      "$sources/$file" 2>/dev/null || echo 0)"
    if [ -z "$reason" ] || [ "$reason" = "$nth" ] || ! [[ "$nth" =~ ^[0-9]+$ ]] || [ "${count:-0}" -lt "$nth" ] || [ "$nth" -lt 1 ]; then
      echo "the list of survivors names no line of the sources, or no reason: $entry"
      stale=$((stale + 1))
    fi
    printf '%s\n' "$file | $text | $nth" >> "$work/list"
  done < "$survivors"
fi

# Which lines run, and where.
i=0
for filter in "${filters[@]}"; do
  TOKENROUTER_EMU=plain TOKENROUTER_EMU_SEEDS=0 TOKENROUTER_EMU_SITES="$work/ran.$i" run "$filter" ||
    { echo "${program##*/} $filter fails as it is"; exit 2; }
  [ -f "$work/ran.$i" ] && sort -u "$work/ran.$i" -o "$work/ran.$i"
  i=$((i + 1))
done
cat "$work"/ran.* 2>/dev/null | sort -u -t: -k1,1 -k2,2n | grep -- "${MUTATE_ONLY:-.}" > "$work/all"
[ -s "$work/all" ] || { echo "no kernel with a barrier, sync, wait or fence runs"; exit 2; }

idle=0
if [ -n "${MUTATE_WHOLE:-}" ]; then
  (cd "$sources" && grep -HnE '__sync(threads|warp)|cp_async_wait<|__threadfence' -- *.cu *.cuh) |
    grep -vE '^simt.cuh:|^[a-z_.]+:[0-9]+: *//' | cut -d: -f1,2 | sort -u > "$work/written"
  while read -r site; do
    name="$(key "${site%%:*}" "${site##*:}")"
    grep -qxF "$name" "$work/list" && continue
    echo "no test runs $site: $name"
    idle=$((idle + 1))
  done < <(comm -23 "$work/written" <(cut -d' ' -f1 "$work/all" | sort -u))
fi

# noticed SITE: whether some test fails without it.
noticed() {
  local i
  for build in race plain; do
    for i in "${!filters[@]}"; do
      grep -q "^$1 " "$work/ran.$i" 2>/dev/null || continue
      local seeds=0,1
      [ "$build" = plain ] && seeds=0,1,2,3
      TOKENROUTER_EMU=$build TOKENROUTER_EMU_SEEDS=$seeds TOKENROUTER_EMU_REMOVE="$1" run "${filters[$i]}" || return 0
    done
  done
  return 1
}

number=0 tried=0 unnoticed=0 listed=0
while read -r site kind; do
  number=$((number + 1))
  [ $((number % step)) -eq 0 ] || continue
  tried=$((tried + 1))
  noticed "$site" && continue
  name="$(key "${site%%:*}" "${site##*:}")"
  if grep -qxF "$name" "$work/list"; then
    echo "survives, as listed: line $number, $site ($kind)"
    listed=$((listed + 1))
  else
    echo "nothing notices that line $number, $site ($kind), is missing; in the list of survivors it would be: $name | REASON"
    unnoticed=$((unnoticed + 1))
  fi
done < "$work/all"
echo "$number lines, $tried removed: $((tried - listed - unnoticed)) noticed, $listed listed, $unnoticed unnoticed; $SECONDS s"
[ "$unnoticed" -eq 0 ] && [ "$stale" -eq 0 ] && [ "$idle" -eq 0 ]

#!/usr/bin/env bash
# Stream a chat answer from a running server with curl and check the event stream.
#
#   tests/clients/curl_stream.sh http://127.0.0.1:8000 [--kill]
#
# --kill: start a long answer, kill curl in the middle of it, then check that the server still answers.
# Exit status 0 when everything is as expected, else 1 with a message.
set -euo pipefail

base=${1:?usage: curl_stream.sh http://HOST:PORT [--kill]}
mode=${2:-}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# body MAX_TOKENS IGNORE_EOS
body() {
    printf '{"messages":[{"role":"user","content":"%s"}],"stream":true,"temperature":0,"max_tokens":%d,"ignore_eos":%s}' \
        "In January Max has 12 apples. In February Max picks 80 apples. How many apples does Max have?" "$1" "$2"
}

stream_once() {
    local out=$tmp/stream head=$tmp/head
    curl --silent --show-error --no-buffer --max-time 60 --dump-header "$head" --output "$out" \
        --header 'Content-Type: application/json' --data "$(body 300 false)" "$base/v1/chat/completions" ||
        fail "curl gave exit status $?"
    grep --quiet '^HTTP/1\.1 200' "$head" || fail "status line: $(head -n 1 "$head")"
    grep --quiet --ignore-case '^content-type: *text/event-stream' "$head" || fail "not an event stream: $(cat "$head")"
    # every line is empty or a data line; the last data line is [DONE]
    if grep --invert-match --quiet --extended-regexp '^(data: .*|:.*|)$' <(tr -d '\r' <"$out"); then
        fail "a line that is no event: $(cat "$out")"
    fi
    [ "$(tr -d '\r' <"$out" | grep '^data: ' | tail -n 1)" = 'data: [DONE]' ] || fail "the stream does not end with [DONE]"
    [ "$(grep --count 'data: \[DONE\]' "$out")" = 1 ] || fail "more than one [DONE]"
    [ "$(grep --count --extended-regexp '"finish_reason": ?"(stop|length)"' "$out")" = 1 ] || fail "not exactly one finish_reason"
    [ "$(grep --count '^data: {' "$out")" -gt 2 ] || fail "fewer than three chunks"
    echo "streamed $(grep --count '^data: {' "$out") chunks and [DONE]"
}

kill_in_the_middle() {
    local out=$tmp/long
    : >"$out"
    # the slow reader keeps the answer under way until it is killed
    curl --silent --no-buffer --limit-rate 2k --max-time 60 --output "$out" \
        --header 'Content-Type: application/json' --data "$(body 3000 true)" "$base/v1/chat/completions" &
    local pid=$!
    for _ in $(seq 200); do
        grep --quiet '^data: {' "$out" && break
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    grep --quiet '^data: {' "$out" || fail "no chunk arrived before the kill"
    kill -0 "$pid" 2>/dev/null || fail "the answer ended before it could be cut"
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true
    if grep --quiet 'data: \[DONE\]' "$out"; then
        fail "the whole answer had arrived before the kill"
    fi
    [ "$(curl --silent --max-time 10 --output /dev/null --write-out '%{http_code}' "$base/health")" = 200 ] ||
        fail "/health is not 200 after the kill"
    echo "killed curl in the middle of an answer"
}

case $mode in
--kill) kill_in_the_middle ;;
'') ;;
*) fail "unknown option $mode" ;;
esac
stream_once

#!/usr/bin/env bash
# HTTP as curl speaks it: 1.0, Expect, chunked bodies, HEAD, kept connections, refusals.
#
#   tests/clients/curl_protocol.sh http://127.0.0.1:8000
#
# Exit status 0 when everything is as expected, else 1 with a message.
set -euo pipefail

base=${1:?usage: curl_protocol.sh http://HOST:PORT}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
completions=$base/v1/completions
body='{"prompt":"Ann has","max_tokens":4,"temperature":0}'

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# ask ARGS..: the body to $tmp/body, the head to $tmp/head, what curl says to $tmp/said; prints the status
ask() {
    curl --silent --show-error --verbose --max-time 60 --dump-header "$tmp/head" --output "$tmp/body" \
        --write-out '%{http_code}' "$@" 2>"$tmp/said" || fail "curl $*: exit status $?: $(tail -n 3 "$tmp/said")"
}

# is STATUS WHAT ARGS..
is() {
    local status=$1 what=$2 got
    shift 2
    got=$(ask "$@")
    [ "$got" = "$status" ] || fail "$what: status $got instead of $status: $(head -c 300 "$tmp/body")"
    echo "$what: $got"
}

head_has() {
    grep --quiet --ignore-case --extended-regexp "$1" "$tmp/head" || fail "no header $1 in: $(cat "$tmp/head")"
}

is 200 "plain" --data "$body" "$completions"
plain=$(sed 's/.*"text":"\([^"]*\)".*/\1/' "$tmp/body")
[ -n "$plain" ] || fail "no text"
same() {
    [ "$(sed 's/.*"text":"\([^"]*\)".*/\1/' "$tmp/body")" = "$plain" ] || fail "$1: another answer: $(cat "$tmp/body")"
}

is 200 "HTTP/1.0" --http1.0 --data "$body" "$completions"
same "HTTP/1.0"
is 200 "HTTP/1.0, streamed" --http1.0 --data "${body%\}},\"stream\":true}" "$completions"
grep --quiet '^data: \[DONE\]' "$tmp/body" || fail "the stream of HTTP/1.0 has no end"
if grep --quiet --ignore-case '^transfer-encoding' "$tmp/head"; then fail "HTTP/1.0 knows no chunks"; fi

is 200 "Expect: 100-continue" --header 'Expect: 100-continue' --data "$body" "$completions"
grep --quiet '^HTTP/1.1 100' "$tmp/head" || fail "no interim answer: $(cat "$tmp/head")"
same "Expect"
is 417 "another expectation" --header 'Expect: a miracle' --data "$body" "$completions"

is 200 "chunked body" --header 'Transfer-Encoding: chunked' --data "$body" "$completions"
same "chunked"
printf '%s' "$body" | tee "$tmp/request" >/dev/null
is 200 "chunked body from a pipe" --header 'Transfer-Encoding: chunked' --data-binary @- "$completions" <"$tmp/request"
same "chunked from a pipe"

is 200 "no content type" --header 'Content-Type:' --data "$body" "$completions"
is 200 "content type with a charset" --header 'Content-Type: application/json; charset=utf-8' --data "$body" "$completions"
is 415 "compressed body" --header 'Content-Encoding: gzip' --data "$body" "$completions"

is 200 "HEAD" --head "$base/v1/models"
[ ! -s "$tmp/body" ] || grep --quiet '^HTTP/1.1 200' "$tmp/body" || fail "HEAD has a body"
head_has '^content-length: [1-9]'
is 200 "a slash and a query" "$base/v1/models/?limit=3"
is 404 "no such path" "$base/v1/nothing"
grep --quiet '"error":{' "$tmp/body" || fail "404 is no JSON error: $(cat "$tmp/body")"
is 405 "wrong method" --request DELETE "$base/v1/models"
head_has '^allow: .*GET'
is 400 "truncated JSON" --data '{"prompt":' "$completions"
is 400 "both framings" --header 'Transfer-Encoding: chunked' --header 'Content-Length: 3' --data "$body" "$completions"
head_has '^connection: close'

head -c 40000000 /dev/zero >"$tmp/large"
is 413 "a body over the limit, without waiting for it" --header 'Expect: 100-continue' --data-binary @"$tmp/large" "$completions"
if grep --quiet '^HTTP/1.1 100' "$tmp/head"; then fail "a body that is too large was asked for"; fi

# Three requests, the second refused, on one connection.
curl --silent --show-error --verbose --max-time 60 --output "$tmp/body" --data "$body" "$completions" \
    --next --silent --output "$tmp/body" --data '{' "$completions" \
    --next --silent --output "$tmp/body" --data "$body" "$completions" 2>"$tmp/said" || fail "kept connection: $?"
[ "$(grep --count --ignore-case 're-using existing connection' "$tmp/said")" = 2 ] || fail "not kept: $(cat "$tmp/said")"
echo "one connection for three requests, a refused one among them"

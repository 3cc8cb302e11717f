#!/usr/bin/env python3
"""Read the metrics of a running server with Prometheus' own Python parser, and check that the numbers agree.

    pip install -r tests/clients/requirements.txt
    python tests/clients/metrics_page.py http://127.0.0.1:8000

The server must be idle. Exit status 0 when everything fits.
"""

import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

VLLM = """
gauge num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc cache_config_info
counter prompt_tokens generation_tokens request_success prefix_cache_queries prefix_cache_hits num_preemptions
histogram time_to_first_token_seconds inter_token_latency_seconds time_per_output_token_seconds
histogram e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
histogram request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
histogram request_generation_tokens request_max_num_generation_tokens iteration_tokens_total
"""
OWN = """
counter committed_tokens discarded_tokens handoffs graph_fallback nonfinite_logits peer_errors
histogram routed_fraction admission_wait_seconds batch_size step_seconds
gauge pending_requests running_requests ready_requests batch_threshold kv_blocks last_step_age_seconds
"""
OTHERS = """
counter http_requests process_cpu_seconds
histogram http_request_duration_seconds
gauge process_resident_memory_bytes process_open_fds process_start_time_seconds
"""


def check(ok, message):
    if not ok:
        sys.exit(f"FAILED: {message}")


def scrape(url):
    with urllib.request.urlopen(f"{url}/metrics") as response:
        kind = response.headers["Content-Type"]
        check(kind == "text/plain; version=0.0.4; charset=utf-8", f"Content-Type is {kind}")
        text = response.read().decode()
    families = {}
    for family in text_string_to_metric_families(text):
        # The parser takes `_total` off the names of counters only.
        check(family.name not in families, f"{family.name} comes twice")
        families[family.name] = family
    return families


def names(lines, prefix):
    for line in lines.split("\n"):
        kind, *words = line.split() or [""]
        yield from ((f"{prefix}{word}", kind) for word in words)


def check_names(families):
    wanted = [*names(VLLM, "vllm:"), *names(OWN, "tokenrouter:"), *names(OTHERS, "")]
    for name, kind in wanted:
        check(name in families, f"there is no {name}")
        check(families[name].type == kind, f"{name} is a {families[name].type}, not a {kind}")
        check(families[name].samples, f"{name} has no sample")
    print(f"{len(families)} families, {len(wanted)} of them looked for")


def check_histograms(families):
    for family in (f for f in families.values() if f.type == "histogram"):
        series = {}
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            series.setdefault(labels, {}).setdefault(sample.name.rsplit("_", 1)[1], []).append(sample)
        for labels, parts in series.items():
            where = f"{family.name} {dict(labels)}"
            buckets = [(float(s.labels["le"]), s.value) for s in parts["bucket"]]
            check(buckets == sorted(buckets), f"{where}: the buckets are not cumulative")
            check(buckets[-1][0] == float("inf"), f"{where}: no +Inf bucket")
            check(buckets[-1][1] == parts["count"][0].value, f"{where}: +Inf is not the count")


def check_sums(families):
    def total(name, part="", **labels):
        samples = families[name].samples
        fits = (s for s in samples if s.name.endswith(part) and labels.items() <= s.labels.items())
        return sum(s.value for s in fits)

    ended = total("vllm:request_success")
    for name, _ in names(VLLM, "vllm:"):
        if "vllm:request_" in name and families[name].type == "histogram" or "e2e" in name:
            check(total(name, "_count") == ended, f"{name} counts {total(name, '_count')} of {ended} requests")
    pairs = [
        ("the prompts", total("vllm:request_prompt_tokens", "_sum"), total("vllm:prompt_tokens")),
        ("the answers", total("vllm:request_generation_tokens", "_sum"), total("vllm:generation_tokens")),
        ("the writers", total("tokenrouter:committed_tokens"), total("vllm:generation_tokens")),
        ("prefix queries", total("vllm:prefix_cache_queries"), total("vllm:prompt_tokens")),
    ]
    for model in {s.labels["model"] for s in families["tokenrouter:launches"].samples}:
        of = {"model": model}
        pairs.append((f"batches of {model}", total("tokenrouter:batch_size", "_count", **of), total("tokenrouter:launches", **of)))
        pairs.append((f"rows of {model}", total("tokenrouter:batch_size", "_sum", **of), total("tokenrouter:batch_rows", **of)))
        pairs.append((f"steps of {model}", total("tokenrouter:step_seconds", "_count", **of), total("tokenrouter:steps", **of)))
    for what, left, right in pairs:
        check(left == right, f"{what}: {left} and {right}")
    close = [
        (
            "times",
            total("vllm:request_queue_time_seconds", "_sum") + total("vllm:request_inference_time_seconds", "_sum"),
            sum(total(f"vllm:request_{phase}_time_seconds", "_sum") for phase in ["queue", "prefill", "decode"]),
        ),
        ("busy", total("tokenrouter:step_seconds", "_sum"), total("tokenrouter:busy_seconds")),
    ]
    for what, left, right in close:
        check(abs(left - right) < 1e-6 * max(1, left), f"{what}: {left} and {right}")
    # A request may end between the verdict and the batch.
    waited, handed = total("tokenrouter:admission_wait_seconds", "_count"), total("tokenrouter:handoffs")
    check(handed - ended <= waited <= handed, f"{waited} of {handed} handoffs waited")
    whole = total("vllm:e2e_request_latency_seconds", "_sum")
    check(close[0][1] <= whole + 1e-6, f"the engine took {close[0][1]} s of {whole} s")
    for name in ["vllm:num_requests_running", "vllm:num_requests_waiting", "tokenrouter:pending_requests"]:
        check(total(name) == 0, f"{name} is {total(name)} on an idle server")
    print(f"{ended:.0f} requests, {total('vllm:generation_tokens'):.0f} tokens: the sums agree")


def main():
    families = scrape(sys.argv[1])
    check_names(families)
    check_histograms(families)
    check_sums(families)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Hit rate and TTFT with a working set of 2 and 4 times the memory, with and without --ssd: simulated, and live with
costed workers. Prints one row a run; nothing passes or fails.

    MC_BUILD=build PYTHONPATH=tests/integration python3 tests/bench/tier.py [requests]
"""

import concurrent.futures
import json
import os
import statistics
import sys
import tempfile
import time

from cluster import BUILD, Cluster, Random, run

BLOCK = 512  # tokens, as in the public traces
BLOCKS_A_PROMPT = 4
MEMORY_BLOCKS = 48  # twelve prompts
RATE = 4.0  # requests a second
SSD = "1GiB"  # 512 simulated blocks: all prompts fit

PROFILE = f"""
name = "tier"
[node]
layers = 8
kv_bytes_per_token = 4096
kv_capacity_tokens = 65536
dram_bytes = {MEMORY_BLOCKS * BLOCK * 4096}
context_tokens = 4096
chunk_tokens = 2048
[paths.net]
bytes_per_s = 1e9
[paths.ssd_read]
bytes_per_s = 1e9
latency_s = 1e-4
[paths.ssd_write]
bytes_per_s = 1e9
latency_s = 1e-4
[prefill]
fixed_s = 5e-3
s_per_token = 8e-5
[decode]
fixed_s = 5e-3
s_per_row = 0.5e-3
"""


def requests(prompts, count):
    """(seconds, prompt) of each request: even gaps, prompts drawn evenly."""
    random = Random(prompts)
    return [(n / RATE, random.below(prompts)) for n in range(count)]


def row(kind, factor, ssd, hit, ttfts):
    ttfts = sorted(ttfts)
    print(
        f"{kind:9} {factor}x  {'ssd' if ssd else '-':4} hit {100 * hit:5.1f} %  "
        f"TTFT mean {statistics.mean(ttfts):7.1f}  p50 {ttfts[len(ttfts) // 2]:7.1f}  "
        f"p90 {ttfts[len(ttfts) * 9 // 10]:7.1f} ms",
        flush=True,
    )


def simulate(folder, factor, ssd, count):
    prompts = factor * MEMORY_BLOCKS // BLOCKS_A_PROMPT
    trace, profile, out = (os.path.join(folder, name) for name in ("t.jsonl", "p.toml", "requests.jsonl"))
    with open(trace, "w") as file:
        for at, prompt in requests(prompts, count):
            ids = [prompt * BLOCKS_A_PROMPT + i for i in range(BLOCKS_A_PROMPT)]
            length = BLOCKS_A_PROMPT * BLOCK
            line = {"timestamp": int(at * 1000), "input_length": length, "output_length": 1, "hash_ids": ids}
            file.write(json.dumps(line) + "\n")
    words = ["mc-bench", "sim", trace, "--rules", "machines", "--cluster", "1p1d", "--profile", profile]
    words += ["--cache-blocks", MEMORY_BLOCKS, "--ssd", SSD if ssd else "0"]
    code, _, err = run(*words, "--save-requests", out, timeout=600)
    assert code == 0, err
    with open(out) as file:
        served = [json.loads(line) for line in file]
    hit = sum(r["dram_tokens"] + r["ssd_tokens"] + r["remote_tokens"] for r in served)
    row("simulated", factor, ssd, hit / (len(served) * BLOCKS_A_PROMPT * BLOCK), [1000 * r["ttft_s"] for r in served])


def live(folder, factor, ssd, count):
    prompts = factor * MEMORY_BLOCKS // BLOCKS_A_PROMPT
    worker = ["--runner", f"costed:{os.path.join(folder, 'p.toml')}", "--block-tokens", str(BLOCK)]
    with Cluster() as c, tempfile.TemporaryDirectory(dir=BUILD) as disk:
        c.start("conductor")
        c.start("p0", *worker, *(["--ssd", f"{disk}/kv:{SSD}"] if ssd else []))
        c.start("d0", *worker)
        c.wait_nodes()
        texts = [Random(1000 + n).ids(BLOCKS_A_PROMPT * BLOCK) for n in range(prompts)]
        began = time.monotonic()

        def ask(planned):
            at, prompt = planned
            time.sleep(max(0, began + at - time.monotonic()))
            answer = c.complete(ids=texts[prompt], max_tokens=1)
            return 1000 * (time.monotonic() - began - at), answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            results = list(pool.map(ask, requests(prompts, count)))
    hit = sum(cached for _, cached in results) / (count * BLOCKS_A_PROMPT * BLOCK)
    row("live", factor, ssd, hit, [ttft for ttft, _ in results])


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "p.toml"), "w") as file:
            file.write(PROFILE)
        for factor in (2, 4):
            for ssd in (False, True):
                simulate(folder, factor, ssd, count)
                live(folder, factor, ssd, count)


if __name__ == "__main__":
    main()

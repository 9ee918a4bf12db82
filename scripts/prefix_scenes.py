"""Small clusters in which some node has the prefix of a prompt, for sim-demonstrations and sim-vs-live."""

import json

# The KV of a prefix is large against the compute of a prompt, and small.
LARGE = """extends = "a800-llama3-70b"
[node]
layers = 4
"""
SMALL = """[node]
layers = 4
kv_bytes_per_token = 4096
kv_capacity_tokens = 1000000
dram_bytes = 8000000000
context_tokens = 131072
chunk_tokens = 2048
[prefill]
fixed_s = 5e-3
s_per_token = 1e-3
[decode]
fixed_s = 5e-3
s_per_row = 5e-4
"""


def profile(node, bits_per_s):
    """A cost profile whose nodes load nothing into a device."""
    return f'name = "load"\n{node}[paths.net]\nbytes_per_s = {bits_per_s / 8}\n[paths.load]\nbytes_per_s = 1e18\n'


def write(prompts, path):
    """Writes a trace of prompts, as scenes() has them. Returns its path."""
    with open(path, "w", encoding="utf-8") as file:
        for at_s, ids, answer in prompts:
            line = {"timestamp": at_s * 1000, "input_length": 512 * len(ids), "output_length": answer, "hash_ids": ids}
            file.write(json.dumps(line) + "\n")
    return path


def scenes(blocks, own):
    """Prompts whose last one has a prefix of so many blocks somewhere, and `own` more blocks.

    By name: the cluster, the prompts as (time in seconds, blocks, tokens of the answer), and flags of mc-bench sim. A
    node with a long prompt makes another one fetch. Many prompts push the prefix to the disk of its node. Only a prompt
    with a long answer moves its prefix to the decode node, so that the links are free later."""
    prefix, half, last = [*range(blocks)], [*range(blocks // 2)], [*range(1000, 1000 + own)]
    longer = [[*range(at, at + 60)] for at in range(2000, 2240, 60)]
    memory, disk = ["--cache-blocks", 600], ["--cache-blocks", 300, "--ssd", "20GiB"]
    others = [(100 + 100 * i, [*range(4000 + 20 * i, 4020 + 20 * i)], 1) for i in range(20)]
    once = [(0, prefix, 20), (1000, prefix + longer[0], 1)]
    two = [(0, half, 20), (1000, half + longer[0], 20), (1000.01, prefix, 20)]
    two += [(3000, half + longer[0] + longer[1][:40], 1), (3000.01, prefix + longer[2], 1)]
    end = prefix + last
    return {
        "own memory": ("2p1d", [(0, prefix, 20), (1000, end, 1)], memory),
        "own disk": ("1p1d", [(0, prefix, 20), *others, (3000, end, 1)], disk),
        "another node": ("2p1d", [*once, (1000.01, end, 1)], memory),
        "two nodes": ("3p1d", [*two, (3000.02, end, 1)], memory),
        "another node, sent twice": ("3p1d", [*once, (1000.01, prefix + longer[1], 1), (1000.02, end, 1)], memory),
        "two nodes, sent twice": ("4p1d", [*two, (3000.02, prefix + longer[3], 1), (3000.03, end, 1)], memory),
    }

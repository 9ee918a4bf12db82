"""Parts that the tests of the simulator share: its runs, figures as they are printed, and traces nobody has seen."""

import json
import os

import cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TRACES = os.environ.get("MCT_TRACES", os.path.join(ROOT, "..", "Mooncake", "FAST25-release", "traces"))
PUBLIC = {name: os.path.join(TRACES, name + "_trace.jsonl") for name in ("conversation", "synthetic")}
SMALL = os.path.join(ROOT, "tests", "golden", "sim", "small_trace.jsonl")


def sim(trace, shape, *words, rules="paper", stdin=None):
    """All objects a run prints, the last one last."""
    code, out, err = cluster.run(
        "mc-bench", "sim", trace, "--cluster", shape, "--rules", rules, *words, "--json", stdin=stdin, timeout=600
    )
    assert code == 0, f"{words}: exit {code}: {err}"
    return [json.loads(line) for line in out.splitlines()]


def trace(*words, stdin=None):
    code, out, err = cluster.run("mc-bench", "trace", *words, "--json", stdin=stdin)
    assert code == 0, f"{words}: exit {code}: {err}"
    return json.loads(out.splitlines()[-1])


def digits(value, printed):
    """The value with as many digits as the printed one has."""
    return f"{value:.{len(printed.partition('.')[2])}f}".removeprefix("0" if printed.startswith(".") else "")


def invented(rng, count):
    """A trace of bursts and sessions, some of whose ids stand after two different prefixes."""
    sessions, out, now, fresh = [[0]], [], 0, 1
    for _ in range(count):
        now += rng.choice([0, 0, 0, 1, 200, 3000])
        head = rng.choice(sessions)
        ids = head[: rng.randint(0, len(head))] + list(range(fresh, fresh + rng.choice([1, 1, 2, 5, 30])))
        fresh = ids[-1] + 1
        if rng.random() < 0.05:
            ids = ids + [rng.randrange(fresh)]
        if rng.random() < 0.1:
            ids = rng.choice(out)["hash_ids"] if out else ids
        sessions.append(ids)
        tokens = 512 * (len(ids) - 1) + rng.choice([1, 2, 100, 511, 512])
        answer = rng.choice([0, 1, 2, 3, 10, 11, 20, 21, 30, 100])
        out.append({"timestamp": now, "input_length": tokens, "output_length": answer, "hash_ids": ids})
    return out


def merged(rng, trace):
    """The trace twice, the second time perhaps shifted and with other ids."""
    shift, names = rng.choice([0, 0, 17, 5000]), rng.choice([0, 0, 10**12])
    again = [dict(r, timestamp=r["timestamp"] + shift, hash_ids=[i + names for i in r["hash_ids"]]) for r in trace]
    return sorted(trace + again, key=lambda r: r["timestamp"])

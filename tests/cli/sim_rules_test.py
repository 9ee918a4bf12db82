"""mc-bench sim on traces and clusters nobody printed figures of: it does what a second, plain statement of the rules
does (paper_rules.py)."""

import json
import os
import random
import tempfile
import unittest

import cluster
import paper_rules
from sim_cases import PUBLIC, SMALL, invented, merged, sim


class AgainstThePlainStatement(unittest.TestCase):
    """Every request of every run: same node, same times, same tokens."""

    def compare(self, trace, rng):
        nodes, decode = rng.choice([1, 2, 3, 5, 8, 65]), rng.choice([0, 1, 2, 3, 9])
        policy, rule = rng.choice(
            [
                ("random", "threshold"),
                ("load-count", "cost"),
                ("load", "cost"),
                ("cache-aware", "cost"),
                ("affinity", "cost"),
                ("kv-centric", "threshold"),
                ("kv-centric", "cost"),
                ("kv-centric", "threshold"),
            ]
        )
        options = {
            "theta": rng.choice([0, 0.5, 1, 1, 1.5, 2, 8]),
            "blocks": rng.choice([0, 1, 3, 20, 200, 5859, None]),
            "speed": rng.choice([0.5, 1, 1.5, 2, 3.7, 1000]),
            "bandwidth": rng.choice([1e8, 1.5e9, 2.97e9, 12.5e9, 87e9, 1e15]),
            "seed": rng.choice([0, 1, 7, 2**63]),
        }
        slo = {"ttft_slo": rng.choice([0.2, 1, 10.0]), "tbt_slo": rng.choice([0.0265, 0.028, 0.1])}
        words = ["--policy", policy, "--fetch-rule", rule, "--theta", options["theta"], "--speedup", options["speed"]]
        words += ["--cache-blocks", "unlimited" if options["blocks"] is None else options["blocks"]]
        words += ["--bandwidth", options["bandwidth"], "--seed", options["seed"]]
        words += ["--ttft-slo", f"{slo['ttft_slo']}s", "--tbt-slo", f"{slo['tbt_slo'] * 1000}ms"]
        with tempfile.TemporaryDirectory(prefix="mct-sim-") as directory:
            fates = os.path.join(directory, "requests.jsonl")
            text = "".join(json.dumps(r) + "\n" for r in trace).encode()
            shape = f"{nodes}p{decode}d" if decode else f"{nodes}p"
            ours = sim("-", shape, *words, "--save-requests", fates, stdin=text)[-1]
            with open(fates, encoding="utf-8") as file:
                fates = [json.loads(line) for line in file]
        theirs = paper_rules.prefill(trace, nodes, policy, rule=rule, **options)
        self.assertEqual(
            [(f["node"], f["ttft_s"], f["prefill_s"], f["reused_tokens"]) for f in fates],
            [(p["node"], p["ttft"], p["gpu"], p["tokens"]) for p in theirs],
            words,
        )
        summary = paper_rules.summary(trace, nodes, decode, policy, rule=rule, **slo, **options)
        for key, value in summary.items():
            self.assertAlmostEqual(ours[key], value, delta=1e-9 * max(1.0, abs(value)), msg=f"{key} {shape} {words}")

    def compare_admission(self, trace, rng):
        """The same requests turned away at the same stage, and the same gaps of the others."""
        nodes, decode = rng.choice([1, 2, 3, 5]), rng.choice([1, 2, 3])
        admission = rng.choice(["baseline", "early", "predict"])
        t_d, slack = rng.choice([1, 5, 20]), rng.choice([0.9, 1, 1.1])
        ttft, tbt, speed = rng.choice([0.3, 2, 30]), rng.choice([26.5, 27, 28, 32]), rng.choice([1, 3, 10])
        words = ["--admission", admission, "--t-d", f"{t_d}s", "--slack", slack, "--speedup", speed]
        words += ["--ttft-slo", f"{ttft}s", "--tbt-slo", f"{tbt}ms", "--cache-blocks", 50]
        with tempfile.TemporaryDirectory(prefix="mct-sim-") as directory:
            fates = os.path.join(directory, "requests.jsonl")
            text = "".join(json.dumps(r) + "\n" for r in trace).encode()
            ours = sim("-", f"{nodes}p{decode}d", *words, "--save-requests", fates, stdin=text)[-1]
            with open(fates, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
        slo = {"ttft_slo": float(ttft), "tbt_slo": tbt / 1000}
        told, plans, gaps = paper_rules.overload(
            trace, nodes, decode, admission, t_d=t_d, slack=slack, policy="kv-centric", speed=speed, blocks=50, **slo
        )
        self.assertEqual([line["fate"] for line in lines], told, words)
        self.assertEqual([line["ttft_s"] for line in lines], [p["ttft"] for p in plans], words)
        wasted = sum(p["gpu"] for p, fate in zip(plans, told) if fate == "rejected_after_prefill")
        self.assertAlmostEqual(ours["wasted_gpu_s"], wasted, delta=1e-6)
        self.assertEqual(ours["rejected"], sum(fate != "served" for fate in told))
        for line, g in zip(lines, gaps):
            if g:
                self.assertAlmostEqual(line["tbt_ms"], 1e3 * paper_rules.longest_mean(g), delta=1e-6)
        return {fate for fate in told}

    def test_admission_turns_the_same_requests_away(self):
        seen = set()
        for seed in range(30):
            rng = random.Random(1000 + seed)
            with self.subTest(seed=seed):
                seen |= self.compare_admission(invented(rng, rng.choice([60, 300])), rng)
        self.assertEqual(len(seen), 4, "some fate never came up")

    def test_the_trace_that_ships(self):
        with open(SMALL, encoding="utf-8") as file:
            trace = [json.loads(line) for line in file]
        for seed in range(100, cluster.count(104, 108)):
            with self.subTest(seed=seed):
                self.compare(trace, random.Random(seed))

    def test_traces_nobody_printed_figures_of(self):
        for seed in range(60):
            rng = random.Random(seed)
            trace = invented(rng, rng.choice([1, 2, 10, 60, 300]))
            with self.subTest(seed=seed):
                self.compare(merged(rng, trace) if rng.random() < 0.4 else trace, rng)

    def test_pieces_of_the_public_traces(self):
        for seed, name in enumerate(["conversation", "synthetic"] * 4):
            path = PUBLIC[name]
            if not os.path.exists(path):
                self.skipTest(f"{path} is not here; MCT_TRACES names its folder")
            with open(path, encoding="utf-8") as file:
                lines = file.readlines()
            rng = random.Random(seed)
            first = rng.randrange(len(lines))
            trace = [json.loads(line) for line in lines[first : first + rng.choice([50, 500])]]
            with self.subTest(seed=seed):
                self.compare(trace, rng)


if __name__ == "__main__":
    unittest.main()

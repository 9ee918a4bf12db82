"""mc-bench sim --calibrate: a profile fitted to runs whose costs are known."""

import json
import os
import tempfile
import tomllib
import unittest

import cluster
from cluster import Random, run


def made_run(path, count=60):
    """Requests one after the other on one decode node: 5 ms + 0.1 ms a token, steps of 4 ms + 1 us a kv token."""
    random = Random(3)
    at = 0.0
    with open(path, "w") as file:
        for i in range(count):
            tokens = 200 + random.below(4000)
            local = random.below(3) * 64
            remote = 64 * random.below(8) if i % 2 else 0
            prefill = 5 + 0.1 * (tokens - local - remote)
            fetch = 1 + remote * 0.01 if remote else 0
            gaps = [4 + 0.001 * (tokens + k) for k in range(24)]
            ttft = prefill + fetch + 2
            file.write(
                json.dumps(
                    {
                        "type": "request",
                        "index": i,
                        "outcome": "completed",
                        "start_s": at,
                        "ttft_ms": ttft,
                        "e2el_ms": ttft + sum(gaps),
                        "itl_ms": gaps,
                        "input_tokens": tokens,
                        "output_tokens": 25,
                        "mc": {
                            "prefill_node": "p0",
                            "decode_node": "d0",
                            "attempts": 1,
                            "prefill_ms": prefill,
                            "fetch_ms": fetch,
                            "fallback": "",
                            "cached_local_tokens": local,
                            "cached_remote_tokens": remote,
                        },
                    }
                )
                + "\n"
            )
            at += (ttft + sum(gaps)) / 1e3 + 0.5


class Calibrate(unittest.TestCase):
    def test_the_costs_that_made_the_runs_are_found_and_the_error_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            runs, out = os.path.join(folder, "runs"), os.path.join(folder, "mine.toml")
            os.mkdir(runs)
            made_run(os.path.join(runs, "a.requests.jsonl"))
            code, text, err = run("mc-bench", "sim", "--calibrate", runs, "-o", out, "--json")
            self.assertEqual(code, 0, err)
            told = json.loads(text)
            self.assertEqual((told["runs"], told["requests"]), (1, 60))
            for key in ("prefill_mape", "step_mape", "net_mape", "ttft_mape"):
                self.assertLess(told[key], 0.02, key)
            with open(out, "rb") as file:
                profile = tomllib.load(file)
            self.assertEqual(profile["kind"], "fitted")
            self.assertAlmostEqual(profile["prefill"]["s_per_token"], 1e-4, delta=3e-6)
            self.assertAlmostEqual(profile["prefill"]["fixed_s"], 5e-3, delta=5e-4)
            self.assertAlmostEqual(profile["decode"]["s_per_kv_token"], 1e-6, delta=1e-7)
            self.assertAlmostEqual(profile["paths"]["net"]["latency_s"], 1e-3, delta=2e-4)
            code, _, err = run("mc-prefill", "--runner", f"costed:{out}", "--check")
            self.assertEqual(code, 0, err)

    def test_a_folder_without_runs_and_runs_too_short_are_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            code, _, err = run("mc-bench", "sim", "--calibrate", folder)
            self.assertEqual(code, 2)
            self.assertIn("has no results of a run", err)
            made_run(os.path.join(folder, "a.requests.jsonl"), count=3)
            code, _, err = run("mc-bench", "sim", "--calibrate", folder)
            self.assertEqual(code, 2)
            self.assertIn("3 prompts", err)
            code, _, err = run("mc-bench", "sim")
            self.assertEqual(code, 2)
            self.assertIn("--calibrate RUNS", err)


if __name__ == "__main__":
    cluster.program("mc-bench")
    unittest.main(verbosity=2)

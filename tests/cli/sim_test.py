"""mc-bench sim on the trace that ships with the tests: its figures, its determinism, and what it refuses."""

import json
import unittest

import cluster
from sim_cases import SMALL, digits, sim


class Usage(unittest.TestCase):
    """On the trace that ships: made by `trace synth --requests 600 --seed 1` from the conversation trace."""

    def test_figures_of_the_trace_that_ships_do_not_change(self):
        printed = {
            "random": "34.079 114.108 0.1086 1.501 0 35.4 39.8 0.4717",
            "load-count": "19.808 80.036 0.0778 1.553 0 36.6 39.8 0.8450",
            "load": "19.673 44.222 0.0673 1.573 0 36.7 39.6 0.8100",
            "cache-aware": "14.867 29.727 0.1460 1.439 0 38.0 42.5 0.9917",
            "kv-centric": "13.086 26.071 0.1688 1.406 63 38.3 42.6 0.9950",
            "affinity": "349.801 693.625 0.1169 1.496 0 29.0 30.9 0.0367",
        }
        points = sim(SMALL, "4p2d", "--policy", ",".join(printed), "--seed", 1)[-1]["points"]
        keys = "mean_ttft_s p99_ttft_s token_hit gpu_s_mean fetches mean_tbt_ms p99_tbt_ms effective".split()
        for point in points:
            row = printed[point["policy"]].split()
            self.assertEqual([digits(point[key], p) for key, p in zip(keys, row)], row, point["policy"])

    def test_the_same_arguments_give_the_same_bytes(self):
        runs = [
            cluster.run("mc-bench", "sim", SMALL, "--rules", "paper", "--policy", "random,kv-centric", "--json")[1]
            for _ in range(2)
        ]
        self.assertEqual(runs[0], runs[1])

    def test_a_limit_is_a_cut_of_the_file(self):
        with open(SMALL, encoding="utf-8") as file:
            head = "".join(file.readlines()[:100])
        runs = [sim(SMALL, "3p1d", "--limit", 100)[-1], sim("-", "3p1d", stdin=head.encode())[-1]]
        for run in runs:
            del run["argv"], run["trace"]
        self.assertEqual(runs[0], runs[1])

    def test_wrong_use_is_named(self):
        for words, told in (
            (["--cluster", "8"], "no cluster"),
            (["--cluster", "0p4d"], "1 to 4096"),
            (["--policy", "best"], "is not one of kv-centric|cache-aware"),
            (["--bandwidth", "0"], "--bandwidth is 0"),
            (["--speedup", "-1"], "'-1' is not from 0.000001 to 1000000"),
            (["--speedup", "1e300"], "is not from 0.000001"),
            (["--theta", "-0.5"], "--theta is -0.5; it must be"),
            (["--limit", "0"], "--limit is 0; it must be"),
            (["--admission", "early,predict"], "one --admission"),
        ):
            code, _, err = cluster.run("mc-bench", "sim", SMALL, "--rules", "paper", *words)
            self.assertEqual(code, 2, err)
            self.assertIn(told, err)
        line = json.dumps({"timestamp": 0, "input_length": 5, "output_length": 2**31, "hash_ids": [0]}).encode()
        self.assertIn("500000000", cluster.run("mc-bench", "sim", "-", "--rules", "paper", stdin=line)[2])
        self.assertEqual(sim("-", "8p", stdin=line)[-1]["requests"], 1)


if __name__ == "__main__":
    unittest.main()

"""mc-bench sim over a simulated cluster: determinism, laws that hold for every run, and what it refuses."""

import json
import os
import tempfile
import unittest

import cluster
from sim_cases import SMALL, sim


def run(shape, *words):
    return sim(SMALL, shape, *words, rules="cluster")[-1]


class Cluster(unittest.TestCase):
    def test_the_same_arguments_give_the_same_bytes(self):
        for words in (
            ["--cluster", "4p2d", "--policy", "random,kv-centric", "--admission", "predict,goodput", "--hold"],
            ["--cluster", "6m", "--policy", "load", "--seed", "7"],
            ["--cluster", "4p2d", "--fail", "p1@60s-120s,d0@100s-200s", "--pipeline", "2", "--ssd", "1TiB"],
        ):
            runs = []
            for _ in range(2):
                with tempfile.TemporaryDirectory(prefix="mct-sim-") as directory:
                    fates = os.path.join(directory, "r.jsonl")
                    samples = os.path.join(directory, "s.jsonl")
                    files = ["--save-requests", fates, "--save-samples", samples]
                    code, out, err = cluster.run("mc-bench", "sim", SMALL, *words, *files, "--json")
                    self.assertEqual(code, 0, err)
                    with open(fates, "rb") as a, open(samples, "rb") as b:
                        runs.append((out.replace(directory.encode(), b""), a.read(), b.read()))
            self.assertEqual(runs[0], runs[1])

    def test_nothing_is_lost(self):
        for shape, *words in (
            ["4p2d"],
            ["2p1d", "--admission", "goodput", "--hold", "--tbt-slo", "40ms"],
            ["2p1d", "--admission", "baseline", "--tbt-slo", "30ms", "--ttft-slo", "5s"],
            ["3m", "--coupled", "prefill-first"],
            ["3m", "--coupled", "chunked", "--dram", "0B"],
            ["4p2d", "--fail", "p0@30s,p1@40s-50s,d1@60s-90s"],
            ["4p1d", "--fail", "d0@60s-90s"],
            ["1p1d", "--fail", "p0@60s"],
            ["3m", "--fail", "m1@60s-90s"],
            ["4p2d", "--overlap", "none", "--bandwidth", "1e9"],
        ):
            with self.subTest(shape=shape, words=words):
                r = run(shape, *words)
                self.assertEqual(r["requests"], r["served"] + r["rejected"], r)
                self.assertLessEqual(r["good"], r["served"])
                parts = ["rejected_ttft", "rejected_decode", "rejected_after_prefill", "rejected_no_node"]
                self.assertEqual(r["rejected"], sum(r[part] for part in parts))
                self.assertLessEqual(r["goodput_per_s_low"], r["goodput_per_s"] + 1e-9)
                self.assertLessEqual(r["token_hit"], 1)

    def test_more_of_what_binds_is_better(self):
        few, many = run("3p2d"), run("6p2d")
        self.assertGreater(few["mean_ttft_s"], many["mean_ttft_s"])
        few, many = run("4p1d"), run("4p3d")
        self.assertGreater(few["mean_tbt_ms"], many["mean_tbt_ms"])
        slow, fast = run("4p2d", "--bandwidth", "1e9"), run("4p2d", "--bandwidth", "87e9")
        self.assertGreater(slow["mean_ttft_s"], fast["mean_ttft_s"])
        small, large = run("4p2d", "--cache-blocks", 500), run("4p2d", "--cache-blocks", "unlimited")
        self.assertLess(small["token_hit"], large["token_hit"])
        self.assertGreater(run("4p2d", "--cache-blocks", 500, "--ssd", "10TiB")["ssd_hit"], 0)
        late, early = run("4p2d", "--overlap", "none"), run("4p2d")
        self.assertGreater(late["mean_handoff_ms"], early["mean_handoff_ms"])

    def test_wrong_use_is_named(self):
        for words, told in (
            (["--cluster", "8"], "no cluster"),
            (["--cluster", "0p4d"], "1 to 4096"),
            (["--policy", "best"], "there are: kv-centric"),
            (["--admission", "all"], "there are: none"),
            (["--profile", "h9000"], "there are"),
            (["--fail", "p9@1s"], "names no node"),
            (["--fail", "p1"], "is no failure"),
            (["--fail", "d0@2m-1m"], "later time"),
            (["--cluster", "5p2d", "--pipeline", "2"], "no whole groups"),
            (["--rules", "mine"], "rules"),
        ):
            code, _, err = cluster.run("mc-bench", "sim", SMALL, *words)
            self.assertEqual(code, 2, err)
            self.assertIn(told, err)


if __name__ == "__main__":
    unittest.main()

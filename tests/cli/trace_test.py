"""mc-bench trace on traces nobody printed figures of: cache does what a plain replay does (paper_rules.py), synth and
convert make what they promise."""

import json
import os
import random
import unittest

import cluster
import paper_rules
from sim_cases import PUBLIC, SMALL, invented, merged, trace


class AgainstThePlainReplay(unittest.TestCase):
    def test_traces_nobody_printed_figures_of(self):
        for seed in range(30):
            rng = random.Random(seed)
            requests = invented(rng, rng.choice([1, 2, 10, 100]))
            if rng.random() < 0.4:
                requests = merged(rng, requests)
            size = rng.choice([1, 2, 10, 100, None])
            text = "".join(json.dumps(r) + "\n" for r in requests).encode()
            found = trace("cache", "-", "--blocks", "unlimited" if size is None else size, stdin=text)
            blocks, tokens = paper_rules.cache_hits(requests, size)
            with self.subTest(seed=seed):
                self.assertAlmostEqual(found["block_hit"], blocks, delta=1e-12)
                self.assertAlmostEqual(found["token_hit"], tokens, delta=1e-12)

    def test_one_policy_and_size_is_the_last_line_itself(self):
        line = json.dumps({"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [4, 5]}) + "\n"
        found = trace("cache", "-", "--policy", "lru", "--blocks", 2, stdin=(line * 2).encode())
        self.assertEqual((found["policy"], found["cache_blocks"], found["block_hit"]), ("lru", 2, 0.5))
        for words in (["--policy", "magic"], ["--blocks", 0]):
            self.assertEqual(cluster.run("mc-bench", "trace", "cache", "-", *words, stdin=line.encode())[0], 2)


class Making(unittest.TestCase):
    def make(self, *words):
        code, out, err = cluster.run("mc-bench", "trace", *words)
        assert code == 0, f"{words}: exit {code}: {err}"
        return [json.loads(line) for line in out.splitlines()]

    def test_synth_makes_one_like_it_from_a_seed(self):
        once, again, other = (self.make("synth", SMALL, "--seed", seed) for seed in (3, 3, 4))
        self.assertEqual(once, again)
        self.assertNotEqual(once, other)
        text = "".join(json.dumps(r) + "\n" for r in once).encode()
        fitted, made = trace("stats", SMALL), trace("stats", "-", stdin=text)
        self.assertEqual(made["requests"], 600)
        for key in ("input_tokens", "output_tokens"):
            self.assertAlmostEqual(made[key]["mean"], fitted[key]["mean"], delta=0.15 * fitted[key]["mean"])
        self.assertAlmostEqual(made["ideal"]["token_hit"], fitted["ideal"]["token_hit"], delta=0.06)
        self.assertEqual(len(self.make("synth", SMALL, "--requests", 7)), 7)

    def test_owners_are_kept(self):
        """convert passes them on; of what synth makes a session is one tenant's."""
        with open(SMALL, encoding="utf-8") as file:
            requests = [json.loads(line) for line in file]
        for i, r in enumerate(requests):
            r["tenant"], r["priority"] = "ab"[i % 2], i % 3 - 1
        text = "".join(json.dumps(r) + "\n" for r in requests).encode()
        for words in (["convert", "-"], ["synth", "-"]):
            code, out, err = cluster.run("mc-bench", "trace", *words, stdin=text)
            self.assertEqual(code, 0, err)
            made = [json.loads(line) for line in out.splitlines()]
            self.assertEqual({r["tenant"] for r in made}, {"a", "b"})
            self.assertEqual({r.get("priority", 0) for r in made}, {-1, 0, 1})
            if words[0] == "convert":
                self.assertEqual(
                    [(r["tenant"], r.get("priority", 0)) for r in made],
                    [(r["tenant"], r["priority"]) for r in requests],
                )

    def test_synth_keeps_what_the_public_traces_are_known_for(self):
        for name, hit in (("conversation", 0.3736), ("synthetic", 0.6512)):
            path = PUBLIC[name]
            if not os.path.exists(path):
                self.skipTest(f"{path} is not here; MCT_TRACES names its folder")
            text = "".join(json.dumps(r) + "\n" for r in self.make("synth", path)).encode()
            self.assertAlmostEqual(trace("stats", "-", stdin=text)["ideal"]["token_hit"], hit, delta=0.03)

    def test_convert_cuts_scales_and_merges(self):
        with open(SMALL, encoding="utf-8") as file:
            original = [json.loads(line) for line in file]
        part = self.make("convert", SMALL, "--from", "60s", "--to", "90s", "--speedup", 2)
        kept = [r for r in original if 60000 <= r["timestamp"] < 90000]
        self.assertEqual([r["timestamp"] for r in part], [(r["timestamp"] - 60000) / 2 for r in kept])
        self.assertEqual([r["output_length"] for r in part], [r["output_length"] for r in kept])
        twice = self.make("convert", SMALL, SMALL)
        self.assertEqual(len(twice), 1200)
        self.assertEqual(
            len({i for r in twice for i in r["hash_ids"]}), 2 * len({i for r in original for i in r["hash_ids"]})
        )
        self.assertEqual(self.make("convert", SMALL), original)
        err = cluster.run("mc-bench", "trace", "convert", SMALL, "--from", "10h")[2]
        self.assertRegex(err, r"none of the \d+ requests is between --from and --to; the last comes at [\d.]+ s")
        self.assertEqual(cluster.run("mc-bench", "trace", "stats", SMALL, SMALL)[0], 2)


if __name__ == "__main__":
    unittest.main()

"""mc-bench sim: the reference rules give the figures of the Mooncake brief (sections 12.2 to 12.4) to the last printed
digit, and on traces and clusters nobody printed figures of, those of a second, plain statement (paper_rules.py)."""

import json
import os
import random
import tempfile
import unittest

import cluster
import paper_rules

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TRACES = os.environ.get("MCT_TRACES", os.path.join(ROOT, "..", "shared", "traces"))
SMALL = os.path.join(ROOT, "tests", "golden", "sim", "small_trace.jsonl")
BASELINES = ["load-count", "load", "cache-aware"]


def sim(trace, shape, *words, stdin=None):
    """All objects a run prints, the last one last."""
    code, out, err = cluster.run("mc-bench", "sim", trace, "--cluster", shape, *words, "--json", stdin=stdin)
    assert code == 0, f"{words}: exit {code}: {err}"
    return [json.loads(line) for line in out.splitlines()]


def digits(value, printed):
    """The value with as many digits as the printed one has."""
    return f"{value:.{len(printed.partition('.')[2])}f}".removeprefix("0" if printed.startswith(".") else "")


class Published(unittest.TestCase):
    def trace(self, name):
        path = os.path.join(TRACES, name + "_trace.jsonl")
        if not os.path.exists(path):
            self.skipTest(f"{path} is not here; MCT_TRACES names its folder")
        return path

    def check(self, run, keys, printed):
        printed = printed.split()
        self.assertEqual([digits(run[key], p) for key, p in zip(keys.split(), printed)], printed, run["argv"])

    def check_all(self, name, shape, policies, keys, rows, *words):
        """One run with several policies: a row of printed figures for each."""
        points = sim(self.trace(name), shape, "--policy", ",".join(policies), *words)
        for point, policy, row in zip(points, policies, rows):
            self.assertEqual(point["policy"], policy)
            self.check(dict(point, argv=words), keys, row)

    def test_conversation_prefill(self):
        ttft_hit = "mean_ttft_s token_hit"
        three = BASELINES + ["kv-centric"]
        self.check_all("conversation", "6p", three, ttft_hit, ["5.109", "3.526 .1189", "2.046 .2876", "1.751 .3346"])
        self.check_all("conversation", "7p", three, ttft_hit, ["3.408", "2.257", "1.581 .3033", "1.400 .3494"])
        self.check_all("conversation", "8p", three, ttft_hit, ["2.803", "1.931 .1097", "1.408 .3110", "1.258 .3584"])
        self.check_all("conversation", "10p", three, ttft_hit, ["2.146", "1.651 .1082", "1.265 .3204", "1.158 .3618"])
        rows = ["8.544", "5.673 .1117", "2.002 .2922", "1.553 .3580"]
        self.check_all("conversation", "8p", three, ttft_hit, rows, "--speedup", "1.5")
        self.check_all("conversation", "8p", three[2:], ttft_hit, ["1.598", "1.348"], "--speedup", "1.25")
        rows = ["4.56", "3.20", "1.702", "1.417"]
        self.check_all("conversation", "8p", three, ttft_hit, rows, "--speedup", "1.35")

    def test_conversation_prefill_in_full(self):
        keys = "p50_ttft_s p90_ttft_s p99_ttft_s gpu_s_mean"
        rows = ["1.12 4.23 14.96 1.509", ".71 3.11 12.75 1.174", ".57 2.77 12.43 1.105"]
        self.check_all("conversation", "8p", ["load", "cache-aware", "kv-centric"], keys, rows)
        rows = ["1.25 4.63 13.40 1.212", ".97 4.01 13.52 1.146"]
        self.check_all("conversation", "6p", ["cache-aware", "kv-centric"], keys, rows)

    def test_conversation_fetches_by_threshold(self):
        for theta, six, eight, others in (
            ("1", "1.751 2777", "1.258 .3584 2722", ["1.400", "1.158", "1.553"]),
            ("2", "1.789 2361", "1.263 .3567 2293", ["1.406", "1.161", "1.577"]),
            ("4", "1.781", "1.269 .3542 1945", ["1.420", "1.164", "1.577"]),
            ("8", "1.811", "1.279 .3495 1506", ["1.428", "1.171", "1.604"]),
        ):
            run = lambda *words: sim(self.trace("conversation"), *words, "--theta", theta)[-1]
            self.check(run("6p"), "mean_ttft_s fetches", six)
            self.check(run("8p"), "mean_ttft_s token_hit fetches", eight)
            for words, printed in zip((["7p"], ["10p"], ["8p", "--speedup", "1.5"]), others):
                self.check(run(*words), "mean_ttft_s", printed)

    def test_conversation_random(self):
        for seed, printed in enumerate(
            (
                ["17.017", "8.603", "7.315", "4.715", "40.29"],
                ["17.344", "8.901", "6.802", "4.890", "38.42"],
                ["17.703", "9.540", "6.812", "4.947", "42.42"],
            ),
            1,
        ):
            for words, value in zip((["6p"], ["7p"], ["8p"], ["10p"], ["8p", "--speedup", "1.5"]), printed):
                run = sim(self.trace("conversation"), *words, "--policy", "random", "--seed", seed)[-1]
                self.check(run, "mean_ttft_s", value)

    def test_longest_match_collapses_onto_one_node(self):
        for words in (["6p"], ["7p"], ["8p"], ["10p"]):
            run = sim(self.trace("conversation"), *words, "--policy", "affinity")[-1]
            self.check(run, "mean_ttft_s token_hit", "7339 .1387")
        run = sim(self.trace("conversation"), "8p", "--policy", "affinity", "--speedup", "1.5")[-1]
        self.check(run, "mean_ttft_s", "7955")

    def test_conversation_bandwidth_and_cache_size(self):
        for bandwidth, printed in (("87e9", "1.258"), ("12.5e9", "1.303"), ("3e9", "1.401"), ("1.5e9", "1.489")):
            self.check(sim(self.trace("conversation"), "8p", "--bandwidth", bandwidth)[-1], "mean_ttft_s", printed)
        cost = ["--fetch-rule", "cost"]
        run = sim(self.trace("conversation"), "8p", *cost, "--bandwidth", "1.5e9")[-1]
        self.check(run, "mean_ttft_s fetches", "1.408 2")
        both, keys = ["cache-aware", "kv-centric"], "mean_ttft_s token_hit"
        self.check_all("conversation", "8p", both, keys, ["1.820 .1463", "1.715 .1752"], "--cache-blocks", 1000)
        self.check_all("conversation", "8p", both, keys, ["1.383 .3230", "1.225 .3736"], "--cache-blocks", 585900)
        self.check_all(
            "conversation", "8p", both, keys, ["1.383 .3230", "1.225 .3736"], "--cache-blocks", "unlimited"
        )
        # Moving a token costs less than computing it from 3 GB/s up: the two fetch rules are one schedule.
        for bandwidth in ("3e9", "87e9"):
            runs = [sim(self.trace("conversation"), "8p", *rule, "--bandwidth", bandwidth)[-1] for rule in ([], cost)]
            self.assertEqual(runs[0]["mean_ttft_s"], runs[1]["mean_ttft_s"])

    def test_synthetic_prefill(self):
        for nodes, local, fetching in (
            (5, "5.036 .5911", "3.741 .6036"),
            (6, "1.519 .6059", "1.247 .6276"),
            (7, "1.114 .6148", ".946 .6368"),
            (8, ".995 .6204", ".843 .6399"),
            (9, ".933 .6196", ".814 .6398"),
            (10, ".938 .6150", ".805 .6393"),
            (11, ".912 .6194", ".801 .6390"),
        ):
            both = ["cache-aware", "kv-centric"]
            self.check_all("synthetic", f"{nodes}p", both, "mean_ttft_s token_hit", [local, fetching])
        self.check(sim(self.trace("synthetic"), "8p")[-1], "p50_ttft_s p99_ttft_s", ".10 8.02")
        rest = ["load-count", "load", "affinity"]
        self.check_all("synthetic", "8p", rest, "mean_ttft_s token_hit", ["3.877", "4.021", "1.123 .6462"])
        self.check_all("synthetic", "10p", rest[:2], "mean_ttft_s", ["2.392", "2.121"])
        for seed, eight, ten in ((1, "21.1", "8.1"), (2, "18.2", "10.4"), (3, "17.4", "10.1")):
            for nodes, printed in (("8p", eight), ("10p", ten)):
                run = sim(self.trace("synthetic"), nodes, "--policy", "random", "--seed", seed)[-1]
                self.check(run, "mean_ttft_s", printed)

    def test_decode(self):
        keys = "mean_ttft_s mean_tbt_ms p50_tbt_ms p90_tbt_ms p99_tbt_ms batch_mean batch_max effective"
        for name, shape, words, printed in (
            ("synthetic", "5p11d", ["--ttft-slo", "10s"], "3.741 27.2 27.1 27.8 28.8 1.64 6 .8655"),
            ("synthetic", "6p10d", ["--ttft-slo", "10s"], "1.247 27.2 27.1 27.9 28.9 1.75 7 .9880"),
            ("synthetic", "7p9d", ["--ttft-slo", "10s"], ".946 27.3 27.2 28.0 29.0 1.92 7 .9957"),
            ("synthetic", "8p8d", ["--ttft-slo", "10s"], ".843 27.4 27.4 28.2 29.1 2.12 9 .9965"),
            ("synthetic", "9p7d", ["--ttft-slo", "10s"], ".814 27.6 27.5 28.3 29.4 2.40 8 .9970"),
            ("synthetic", "10p6d", ["--ttft-slo", "10s"], ".805 27.8 27.7 28.6 29.6 2.77 9 .9970"),
            ("synthetic", "11p5d", ["--ttft-slo", "10s"], ".801 28.0 28.0 29.0 30.0 3.31 11 .9972"),
            ("conversation", "8p8d", [], "1.258 29.3 29.2 30.6 32.1 4.18 13 1.0000"),
            ("conversation", "8p4d", [], "1.258 33.0 32.9 35.4 37.0 9.24 24 1.0000"),
            ("conversation", "8p2d", [], "1.258 43.1 42.9 48.3 51.7 23.57 52 1.0000"),
            ("conversation", "8p2d", ["--speedup", "1.5"], "1.553 58.8 59.0 66.8 69.6 47.60 83 1.0000"),
            ("conversation", "8p8d", ["--speedup", "2"], "7.135 32.7 32.7 34.5 35.9 9.16 23 .9889"),
            ("conversation", "8p2d", ["--speedup", "2"], "7.135 91.9 93.4 104.7 113.3 98.02 151 .7376"),
        ):
            self.check(sim(self.trace(name), shape, *words)[-1], keys, printed)


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
        runs = [cluster.run("mc-bench", "sim", SMALL, "--policy", "random,kv-centric", "--json")[1] for _ in range(2)]
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
            (["--policy", "best"], "there are: random, load-count"),
            (["--bandwidth", "0"], "--bandwidth is 0"),
            (["--speedup", "-1"], "--speedup is -1"),
            (["--theta", "-0.5"], "--theta must be"),
            (["--limit", "0"], "--limit must be"),
            (["--rules", "mine"], "rules"),
        ):
            code, _, err = cluster.run("mc-bench", "sim", SMALL, *words)
            self.assertEqual(code, 2, err)
            self.assertIn(told, err)
        line = json.dumps({"timestamp": 0, "input_length": 5, "output_length": 2**31, "hash_ids": [0]}).encode()
        self.assertIn("500000000", cluster.run("mc-bench", "sim", "-", stdin=line)[2])
        self.assertEqual(sim("-", "8p", stdin=line)[-1]["requests"], 1)


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

    def test_the_trace_that_ships(self):
        with open(SMALL, encoding="utf-8") as file:
            trace = [json.loads(line) for line in file]
        for seed in range(100, 108):
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
            path = os.path.join(TRACES, name + "_trace.jsonl")
            if not os.path.exists(path):
                self.skipTest(f"{path} is not here; MCT_TRACES names its folder")
            with open(path, encoding="utf-8") as file:
                trace = [json.loads(line) for line in file]
            rng = random.Random(seed)
            first = rng.randrange(len(trace))
            with self.subTest(seed=seed):
                self.compare(trace[first : first + rng.choice([50, 500])], rng)


if __name__ == "__main__":
    unittest.main()

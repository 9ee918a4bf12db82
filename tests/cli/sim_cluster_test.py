"""mc-bench sim over a simulated cluster: determinism, laws that hold for every run, and what it refuses."""

import contextlib
import functools
import itertools
import json
import os
import tempfile
import unittest

import cluster
from sim_cases import SMALL, sim


def run(shape, *words):
    return sim(SMALL, shape, *words, rules="cluster")[-1]


@functools.cache
def run_machines(shape, *words):
    return sim(SMALL, shape, *words, rules="machines")[-1]


AGREED = ("4p2d", "--limit", 150)  # two tests compare the model with this run of the machines


def requests_of(shape, *words):
    """The fate of each request, with its trace's output_tokens."""
    with open(SMALL, encoding="utf-8") as file:
        answers = [json.loads(line)["output_length"] for line in file]
    with tempfile.NamedTemporaryFile() as saved:
        run(shape, *words, "--save-requests", saved.name)
        with open(saved.name, encoding="utf-8") as file:
            return [dict(r, output_tokens=answers[r["index"]]) for r in map(json.loads, file)]


KEYS = """
[tenant.search]
keys = ["sk-search-1"]
weight = 3
[tenant.chat]
keys = ["sk-chat-123"]
tokens_per_s = 9000
burst_tokens = 90000
[tenant.batch]
keys = ["sk-batch-12"]
priority = 2
requests_max = 8
salt = "search"
"""


@contextlib.contextmanager
def owned(keys=KEYS, names=("search", "chat", "batch"), priorities=(0,)):
    """Paths of the small trace with owners in turn, and of a file of tenants."""
    with tempfile.TemporaryDirectory(prefix="mct-sim-") as directory:
        trace, tenants = os.path.join(directory, "t.jsonl"), os.path.join(directory, "keys.toml")
        with open(SMALL, encoding="utf-8") as file, open(trace, "w", encoding="utf-8") as out:
            for i, line in enumerate(file):
                line = dict(json.loads(line), tenant=names[i % len(names)], priority=priorities[i % len(priorities)])
                out.write(json.dumps(line) + "\n")
        with open(tenants, "w", encoding="utf-8") as file:
            file.write(keys)
        os.chmod(tenants, 0o600)
        yield trace, tenants


class Owners(unittest.TestCase):
    def test_tenants_are_told_apart_and_nothing_is_lost(self):
        with owned() as (trace, tenants):
            words = ("2p1d", "--api-keys", tenants, "--limit", 200)
            r = sim(trace, *words, rules="cluster")[-1]
            again = sim(trace, *words, rules="cluster")[-1]
            code, out, err = cluster.run("mc-bench", "sim", trace, "--cluster", *words)
        self.assertEqual(code, 0, err)
        self.assertEqual(r["tenants"], again["tenants"])
        self.assertEqual([t["tenant"] for t in r["tenants"]], ["batch", "chat", "search"])
        for key in ("requests", "served", "good", "rejected", "rejected_quota"):
            self.assertEqual(r[key], sum(t[key] for t in r["tenants"]), key)
        self.assertAlmostEqual(sum(t["token_share"] for t in r["tenants"]), 1)
        quotas = {t["tenant"]: t["rejected_quota"] for t in r["tenants"]}
        self.assertEqual(quotas["search"], 0)
        self.assertGreater(quotas["chat"], 0)
        self.assertGreater(quotas["batch"], 0)
        self.assertGreater(r["held"], 0)
        self.assertEqual(r["hold_order"], "arrival")
        rows = [line.split() for line in out.decode().splitlines()]
        self.assertEqual([row[2] for row in rows if len(row) > 2 and row[2] in quotas], [*quotas])

    def test_tenants_with_a_salt_of_their_own_share_no_blocks(self):
        """Two tenants take turns with the same prompts: reuse is of one's own or of both."""
        requests = [
            dict(timestamp=2000 * i, input_length=5120, output_length=2, hash_ids=[*range(10)]) for i in (0, 1)
        ]
        hits = []
        for names in (("search", "chat"), ("search", "batch")):
            text = "".join(json.dumps(dict(r, tenant=n)) + "\n" for r, n in zip(requests, names)).encode()
            with owned() as (_, tenants):
                hits.append(sim("-", "1p1d", "--api-keys", tenants, rules="cluster", stdin=text)[-1]["token_hit"])
        self.assertEqual(hits[0], 0)
        self.assertGreater(hits[1], 0.4)

    def test_owners_change_nothing_where_nobody_asks_for_them(self):
        with owned() as (trace, _):
            with_owners = sim(trace, "3p2d", rules="cluster")[-1]
        without = run("3p2d")
        self.assertEqual(len(with_owners.pop("tenants")), 3)
        self.assertEqual(with_owners.pop("trace") != without.pop("trace"), True)
        with_owners.pop("argv"), without.pop("argv")
        self.assertEqual(with_owners, without)

    def test_the_daemons_machines_agree_about_tenants_and_priorities(self):
        for order in cluster.count(("work",), ("arrival", "work")):
            with owned(priorities=(0, 1, 0, -1)) as (trace, tenants):
                words = ["2p2d", "--api-keys", tenants, "--hold", "--hold-order", order, "--limit", 150]
                model = sim(trace, *words, rules="cluster")[-1]
                machines = sim(trace, *words, rules="machines")[-1]
            self.assertAlmostEqual(model["rejected_quota"], machines["rejected_quota"], delta=4)
            for a, b in zip(model["tenants"] + model["priorities"], machines["tenants"] + machines["priorities"]):
                with self.subTest(order=order, group=a.get("tenant", a.get("priority"))):
                    self.assertAlmostEqual(a["served"], b["served"], delta=4)
                    self.assertAlmostEqual(a["token_share"], b["token_share"], delta=0.05)
                    self.assertAlmostEqual(a["mean_ttft_s"], b["mean_ttft_s"], delta=0.15 * b["mean_ttft_s"])

    def test_copies_are_told_by_the_model_and_by_the_machines(self):
        requests, now = [], 0.0
        for i in range(120):
            now += 400 if i < 60 else 200
            ids = [*range(40), *range(1000 + 8 * i, 1008 + 8 * i)]
            requests.append(dict(timestamp=now, input_length=512 * 48, output_length=4, hash_ids=ids))
        text = "".join(json.dumps(r) + "\n" for r in requests).encode()
        words = ["3p2d", "--policy", "cache-aware", "--replicate", 3, "--replicate-rate", "20GiB"]
        model, machines = (sim("-", *words, rules=rules, stdin=text)[-1] for rules in ("cluster", "machines"))
        self.assertGreater(model["copies"], 0)
        self.assertEqual(model["copies"], machines["copies"])
        self.assertEqual(model["copied_bytes"], machines["copied_bytes"])
        self.assertGreater(model["copies_used"], 0)
        self.assertIsNone(machines["copies_used"])

    def test_wrong_use_is_named(self):
        with owned() as (trace, tenants):
            for words, told in (
                (["--api-keys", tenants, "--rules", "paper"], "--api-keys means nothing"),
                (["--replicate", "3", "--cluster", "4m"], "nothing to copy"),
                (["--replicate", "3", "--rules", "paper"], "--replicate means nothing"),
                (["--hold-order", "size"], "hold-order"),
                (["--api-keys", "/nowhere"], "/nowhere"),
            ):
                code, _, err = cluster.run("mc-bench", "sim", trace, *words)
                self.assertNotEqual(code, 0, words)
                self.assertIn(told, err)
        with owned(names=("search", "stranger")) as (trace, tenants):
            code, _, err = cluster.run("mc-bench", "sim", trace, "--api-keys", tenants)
            self.assertEqual(code, 2, err)
            self.assertIn("'stranger'", err)


class Cluster(unittest.TestCase):
    def test_the_same_arguments_give_the_same_bytes(self):
        for words in (
            ["--cluster", "4p2d", "--policy", "random,kv-centric", "--admission", "predict,goodput", "--hold"],
            ["--cluster", "6m", "--policy", "load", "--seed", "7"],
            ["--cluster", "4p2d", "--replicate", "3", "--replicate-rate", "10GiB", "--policy", "random,cache-aware"],
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
            ["4p2d", "--load-by-layer", "1MiB", "--bandwidth", "2e9", "--fail", "p0@30s,p1@40s-50s,d1@60s-90s"],
        ):
            with self.subTest(shape=shape, words=words):
                r = run(shape, *words)
                self.assertEqual(r["requests"], r["served"] + r["rejected"], r)
                self.assertLessEqual(r["good"], r["served"])
                parts = ["ttft", "decode", "after_prefill", "no_node", "too_long"]
                self.assertEqual(r["rejected"], sum(r[f"rejected_{part}"] for part in parts))
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

    def test_loading_by_layers_brings_the_first_token_earlier_if_the_prefix_is_large(self):
        """The second prompt keeps the node of the prefix busy, so the third one fetches it."""
        prefix, busy, last = [*range(20)], [*range(100, 200)], [*range(200, 204)]
        lines = [(0, prefix), (60_000, prefix + busy), (60_010, prefix + last)]
        text = "".join(
            json.dumps({"timestamp": at, "input_length": 512 * len(ids), "output_length": 2, "hash_ids": ids}) + "\n"
            for at, ids in lines
        )

        def ttft(shape, size, *words):
            words = ["--bandwidth", "1e10", "--fetch-rule", "threshold", "--load-by-layer", size, *words]
            return sim("-", shape, *words, rules="cluster", stdin=text.encode())[-1]["mean_ttft_s"]

        whole = ttft("2p1d", "off")
        self.assertLess(ttft("2p1d", "1MiB"), whole - 0.03)
        self.assertEqual(ttft("2p1d", "4GiB"), whole)

    def test_a_slow_hand_off_is_a_gap_that_the_client_sees(self):
        """The first token comes from prefill; until the KV is on the decode node there is no second one."""
        fast, slow = run("4p2d"), run("4p2d", "--bandwidth", "1e9")
        self.assertGreater(fast["effective"], 0.9)
        self.assertEqual(slow["served"], slow["requests"])
        self.assertLess(slow["effective"], fast["effective"] / 2)
        self.assertGreater(slow["mean_tbt_ms"], 2 * fast["mean_tbt_ms"])
        for r in requests_of("4p2d", "--bandwidth", "1e9"):
            if 1 < r["output_tokens"] <= 11:  # its longest tenth is its longest gap
                self.assertGreaterEqual(r["tbt_ms"], r["handoff_ms"])
        rates = [run("4p2d", "--find-max-rate", *words)["rate_per_s"] for words in ([], ["--bandwidth", "10e9"])]
        self.assertGreater(rates[0], rates[1])

    def test_what_is_longer_than_the_context_is_refused_as_by_live_nodes(self):
        with open(SMALL, encoding="utf-8") as file:
            tokens = [(r["input_length"], max(1, r["output_length"])) for r in map(json.loads, file)]
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as profile:
            profile.write('extends = "a800-llama3-70b"\n[node]\ncontext_tokens = 9000\n')
            profile.flush()
            r = run("4p2d", "--profile", profile.name)
        self.assertEqual(r["rejected_too_long"], sum(a + b > 9000 for a, b in tokens))
        self.assertEqual(r["served"], sum(a + b <= 9000 for a, b in tokens))

    def test_requests_that_all_come_at_once_have_no_rate(self):
        line = json.dumps({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}).encode()
        self.assertIsNone(sim("-", "1p1d", rules="cluster", stdin=line)[-1]["goodput_per_s"])
        code, out, err = cluster.run("mc-bench", "sim", "-", "--cluster", "1p1d", "--wide", stdin=line)
        self.assertEqual(code, 0, err)
        self.assertEqual(out.splitlines()[-1].split()[3:5], [b"-", b"-"])

    def test_of_all_splits_the_best_is_marked(self):
        code, out, err = cluster.run("mc-bench", "sim", SMALL, "--cluster", "3p2d", "--find-ratio")
        self.assertEqual(code, 0, err)
        lines = sim(SMALL, "3p2d", "--find-ratio", rules="cluster")
        points = lines[-1]["points"]
        self.assertEqual([(p["prefill_nodes"], p["decode_nodes"]) for p in points], [(1, 4), (2, 3), (3, 2), (4, 1)])
        marked = [line.split()[0].decode() for line in out.splitlines() if b" *" in line[:12]]
        self.assertEqual(marked, [lines[-1]["cluster"]])
        self.assertEqual(lines[-1]["good"], max(p["good"] for p in points))

    def test_splits_are_of_whole_pipelines_and_simulated_as_such(self):
        words = ("--pipeline", "2")
        points = sim(SMALL, "5p2d", "--find-ratio", *words, rules="cluster")[-1]["points"]
        self.assertEqual([(p["prefill_nodes"], p["decode_nodes"]) for p in points], [(2, 5), (4, 3), (6, 1)])
        alone = sim(SMALL, "4p3d", *words, rules="cluster")[-1]
        self.assertEqual(points[1]["mean_ttft_s"], alone["mean_ttft_s"])
        code, out, err = cluster.run("mc-bench", "advise", SMALL, "--nodes", "3", *words, "--json")
        self.assertEqual(code, 0, err)
        clusters = {p["cluster"] for p in json.loads(out.splitlines()[-1])["points"]}
        self.assertEqual(clusters, {"2p1d", "3m"})
        made = json.loads(out.splitlines()[-1])
        for point in made["points"]:
            self.assertEqual(point["search_limit"], point["max_speedup"] >= 64, point)
        loose = ("--ttft-slo", "10h", "--tbt-slo", "1h", "--limit", "100")
        code, out, err = cluster.run("mc-bench", "advise", SMALL, "--nodes", "2", *loose)
        self.assertEqual(code, 0, err)
        for told in (rb" >= [0-9.]+$", rb"^>=: the search ends at 64 times", rb"bears at least "):
            self.assertRegex(out, b"(?m)" + told)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as burst, open(SMALL, encoding="utf-8") as small:
            for line in itertools.islice(small, 20):
                burst.write(json.dumps(dict(json.loads(line), timestamp=0)) + "\n")
            burst.flush()
            code, out, err = cluster.run("mc-bench", "advise", burst.name, "--nodes", "2", *loose)
            self.assertEqual(code, 0, err)
            self.assertRegex(out, rb"(?m) -$")
            self.assertNotIn(b">=", out)
            self.assertIn(b"all requests of the trace come at once", out)
            code, out, err = cluster.run("mc-bench", "advise", burst.name, "--nodes", "2", *loose, "--json")
            self.assertIsNone(json.loads(out.splitlines()[-1])["max_rate_per_s"], err)
        for words, told in (
            (["--nodes", "2", "--pipeline", "2"], "no group of 2"),
            (["--policy", "load,kv-centric"], "one policy"),
        ):
            code, _, err = cluster.run("mc-bench", "advise", SMALL, *words)
            self.assertEqual(code, 2, err)
            self.assertIn(told.encode() if isinstance(err, bytes) else told, err)

    def test_the_daemons_machines_agree_with_the_model_of_them(self):
        """The same trace message by message through conductor, prefill and decode machines, under the same clock."""
        cases = (
            [*AGREED],
            ["3p1d", "--limit", cluster.count(40, 100), "--policy", "load"],
            ["4p2d", "--limit", 150, "--admission", "committed", "--tbt-slo", "33ms", "--ttft-slo", "10s"],
        )
        for shape, *words in cluster.count(cases[:2], cases):
            with self.subTest(shape=shape, words=words):
                model = run(shape, *words)
                machines = run_machines(shape, *words)
                self.assertEqual(machines["requests"], machines["served"] + machines["rejected"])
                for key, share in (
                    ("served", 0.05),
                    ("mean_ttft_s", 0.10),
                    ("p50_ttft_s", 0.10),
                    ("p90_ttft_s", 0.10),
                    ("p99_ttft_s", 0.10),
                    ("mean_client_tbt_ms", 0.10),
                    ("p50_client_tbt_ms", 0.10),
                    ("p90_client_tbt_ms", 0.10),
                    ("p99_client_tbt_ms", 0.15),
                ):
                    self.assertAlmostEqual(machines[key], model[key], delta=share * model[key], msg=key)

    def test_a_prefix_of_two_nodes_is_fetched_from_both_as_by_the_machines(self):
        """One holder alone would take twice as long for both fetches."""
        fresh = itertools.count(1000)
        stem, first = [*range(80)], [next(fresh) for _ in range(100)]
        more = lambda ids, count: [*ids, *(next(fresh) for _ in range(count))]
        requests = [
            (0, stem[:40]),
            (30, [*stem[:40], *first]),  # keeps the node of the forty blocks busy
            (31, stem),  # on another node, which fetches those and computes the others
            (60, more([*stem[:40], *first], 60)),  # on the first node
            (60, more(stem, 100)),  # on the second node
            (61, more(stem, 40)),  # these two fetch
            (61, more(stem, 40)),
        ]
        lines = [dict(timestamp=1000 * t, input_length=512 * len(i), output_length=2, hash_ids=i) for t, i in requests]
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        runs = {}
        with tempfile.TemporaryDirectory(prefix="mct-sim-") as directory:
            profile, fates = os.path.join(directory, "p.toml"), os.path.join(directory, "r.jsonl")
            with open(profile, "w", encoding="utf-8") as file:
                file.write('extends = "a800-llama3-70b"\n[node]\nlayers = 4\n')  # as many as the machines have
            for rules in ("cluster", "machines"):
                words = ["--profile", profile, "--bandwidth", "40e9", "--save-requests", fates]
                sim("-", "4p4d", *words, rules=rules, stdin=text)
                with open(fates, encoding="utf-8") as file:
                    runs[rules] = [json.loads(line) for line in file]
        for model, machines in zip(runs["cluster"], runs["machines"]):
            for key in ("prefill", "dram_tokens", "remote_tokens"):
                self.assertEqual(model[key], machines[key], (key, model, machines))
            self.assertAlmostEqual(model["ttft_s"], machines["ttft_s"], delta=0.05 * machines["ttft_s"])
        for r in (5, 6):
            model, machines = (runs[rules][r] for rules in ("cluster", "machines"))
            self.assertEqual(model["remote_tokens"], 80 * 512)
            self.assertAlmostEqual(model["queue_s"], machines["queue_s"], delta=0.2 * machines["queue_s"])

    def test_the_machines_give_the_same_bytes_for_the_same_seed(self):
        runs = []
        for seed in ("7", "7", "8"):
            with tempfile.TemporaryDirectory(prefix="mct-sim-") as directory:
                fates = os.path.join(directory, "r.jsonl")
                words = ["--cluster", "3p2d", "--policy", "random,kv-centric", "--limit", cluster.count(12, 60)]
                words += ["--seed", seed, "--rules", "machines", "--save-requests", fates, "--json"]
                code, out, err = cluster.run("mc-bench", "sim", SMALL, *words)
                self.assertEqual(code, 0, err)
                with open(fates, "rb") as file:
                    runs.append((out.replace(directory.encode(), b""), file.read()))
        self.assertEqual(runs[0], runs[1])
        self.assertNotEqual(runs[0][1], runs[2][1])

    def test_the_machines_tell_what_their_clients_hear_and_null_for_the_rest(self):
        model, machines = run(*AGREED), run_machines(*AGREED)
        for key, share in (("gpu_s", 0.1), ("gpu_s_mean", 0.1), ("token_hit", 0.1)):
            self.assertGreater(machines[key], 0, key)
            self.assertAlmostEqual(machines[key], model[key], delta=share * model[key], msg=key)
        unknown = {key for key, value in machines.items() if value is None and model[key] is not None}
        percentiles = {f"{p}_handoff_ms" for p in ("mean", "p50", "p90", "p99")}
        others = {"wasted_gpu_s", "fetches", "moved_bytes", "prefill_busy", "batch_mean", "batch_max", "preempted"}
        self.assertEqual(unknown, percentiles | others)

    def test_the_machines_evict_as_the_named_policy_does(self):
        """A hot prompt comes back after every five cold ones, which together fill half of the cache."""
        hot, lines = [*range(60)], []
        for i in range(72):
            ids = hot if i % 6 == 0 else [*range(1000 + 60 * i, 1060 + 60 * i)]
            line = {"timestamp": 20_000 * i, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
            lines.append(json.dumps(line) + "\n")

        def hit(*words):
            words = ["--cache-blocks", 600, *words]
            return sim("-", "1p1d", *words, rules="machines", stdin="".join(lines).encode())[-1]["token_hit"]

        kept = hit()
        self.assertEqual(hit("--eviction", "lru-tail"), kept)
        self.assertGreater(kept, 0.1)
        self.assertLess(hit("--eviction", "fifo"), kept - 0.02)

    def test_progress_is_told_where_someone_reads_it_or_asked_for_it(self):
        for words in ([], ["--progress", "auto"], ["--progress", "never"], ["--progress", "always", "--quiet"]):
            code, _, err = cluster.run("mc-bench", "sim", SMALL, "--cluster", "4p2d", *words)
            self.assertEqual((code, err), (0, ""), words)

    def test_wrong_use_is_named(self):
        for words, told in (
            (["--cluster", "8"], "no cluster"),
            (["--cluster", "0p4d"], "1 to 4096"),
            (["--policy", "best"], "is not one of kv-centric|cache-aware"),
            (["--admission", "all"], "is not one of none|baseline"),
            (["--profile", "h9000"], "there are"),
            (["--fail", "p9@1s"], "names no node"),
            (["--fail", "p1"], "is no failure"),
            (["--fail", "d0@2m-1m"], "later time"),
            (["--cluster", "5p2d", "--pipeline", "2"], "no whole groups"),
            (["--rules", "mine"], "rules"),
            (["--rules", "machines", "--cluster", "8p1d", "--pipeline", "8"], "at most that many stages, not 8"),
            (["--rules", "machines", "--cluster", "2p1d", "--pipeline", "2", "--ssd", "1TiB"], "no disk"),
            (["--rules", "machines", "--cluster", "4m"], "no live node that does both"),
            (["--rules", "machines", "--cache-blocks", "8"], "less than a context"),
            (["--find-ratio", "--find-max-rate"], "advise"),
            (["--find-max-rate", "--save-requests", "x"], "--save-requests means nothing under --find-max-rate"),
            (["--rules", "paper", "--first-token", "with-second"], "--first-token means nothing under --rules paper"),
            (["--rules", "paper", "--load-by-layer", "1MiB"], "--load-by-layer means nothing under --rules paper"),
            (["--cluster", "4p1d", "--pipeline", "2", "--load-by-layer", "1MiB"], "loads a prefix as a whole"),
            (["--cluster", "4m", "--load-by-layer", "1MiB"], "loads a prefix as a whole"),
            (["--rules", "machines", "--device-blocks", "9999", "--load-by-layer", "1"], "loads a prefix as a whole"),
            (["--find-ratio", "--cluster", "3p2d", "--counterfactual", "1"], "--counterfactual means nothing"),
            (["--eviction", "fifo"], "--eviction means nothing under --rules cluster"),
            (["--sample", "0"], "'0' measures nothing"),
            (["--t-d", "5s"],
             "--t-d 5s applies to --admission predict; this run has --admission none, which does not read it"),
            (["--admission", "early,goodput", "--aggregate", "max"], "has --admission early, goodput, which do not"),
            (["--slack", "1.2", "--admission", "baseline"], "leave --slack out, or choose --admission early"),
        ):
            code, _, err = cluster.run("mc-bench", "sim", SMALL, *words)
            self.assertEqual(code, 2, err)
            self.assertIn(told, err)
        code, _, err = cluster.run("mc-bench", "sim", SMALL, "--admission", "none,predict", "--t-d", "5s")
        self.assertEqual(code, 0, err)  # of those compared, one reads it


if __name__ == "__main__":
    unittest.main()

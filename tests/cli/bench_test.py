"""mc-bench without a cluster: traces, plans of load, test models, speeds, comparisons; and what it refuses."""

import csv
import json
import math
import os
import select
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import unittest.mock

import cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TRACES = os.environ.get("MCT_TRACES", os.path.join(ROOT, "..", "Mooncake", "FAST25-release", "traces"))


def bench(*words, expect=0, **kwargs):
    code, out, err = cluster.run("mc-bench", *words, **kwargs)
    assert code == expect, f"{words}: exit {code}: {err}"
    return out.decode(), err


def result(*words, **kwargs):
    return json.loads(bench(*words, "--json", **kwargs)[0].splitlines()[-1])


def trace_line(at, tokens, ids, output=4):
    return json.dumps({"timestamp": at, "input_length": tokens, "output_length": output, "hash_ids": ids})


def takes(pid, number):
    """Whether the process holds this signal back for the thread that reads it. While a thread starts, all are held."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        held = int(next(line for line in file if line.startswith("SigBlk:")).split()[1], 16)
    return held >> (number - 1) & 1 and not held >> (signal.SIGALRM - 1) & 1


class Scratch(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="mct-bench-")
        self.addCleanup(directory.cleanup)
        self.dir = directory.name

    def set_flag(self, **variables):
        patch = unittest.mock.patch.dict(os.environ, variables)
        patch.start()
        self.addCleanup(patch.stop)

    def one_thread(self):
        """Each thread reads 512 MiB and runs at its peak before a verb measures anything."""
        self.set_flag(MCT_THREADS="1")

    def file(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def trace(self, *lines):
        return self.file("trace.jsonl", "".join(line + "\n" for line in lines))


class TraceStatistics(Scratch):
    def test_small_trace_by_hand(self):
        path = self.trace(
            trace_line(0, 1000, [0, 1]), trace_line(1000, 1024, [0, 2]), trace_line(4000, 1500, [0, 1, 3])
        )
        s = result("trace", "stats", path)
        self.assertEqual((s["requests"], s["duration_s"]), (3, 4.0))
        self.assertEqual(s["arrivals"]["rate_per_s"], 0.75)
        self.assertEqual(s["arrivals"]["gap_mean_ms"], 2000)
        self.assertEqual(s["blocks"]["total"], 7)
        self.assertEqual(s["popularity"]["unique_blocks"], 4)
        self.assertEqual((s["ideal"]["hit_blocks"], s["ideal"]["hit_tokens"]), (3, 512 + 1024))
        self.assertEqual(s["inputs_of_whole_blocks"], 1)
        # The ceil(qN)-th smallest of three values.
        self.assertEqual(
            (s["input_tokens"]["p25"], s["input_tokens"]["p50"], s["input_tokens"]["p75"]), (1000, 1024, 1500)
        )

    def test_stdin_and_limit(self):
        text = "".join(trace_line(i, 100, [i]) + "\n" for i in range(5))
        self.assertEqual(result("trace", "stats", "-", "--limit", 3, stdin=text.encode())["requests"], 3)

    def published(self, name):
        path = os.path.join(TRACES, name)
        if not os.path.exists(path):
            self.skipTest(f"{name} is not here; MCT_TRACES names its folder")
        return result("trace", "stats", path, "--cache", "1000,10k,30k")

    def test_conversation_trace_has_the_published_figures(self):
        s = self.published("conversation_trace.jsonl")
        self.assertEqual(
            (s["requests"], s["arrivals"]["last_ms"], s["arrivals"]["distinct_timestamps"]), (12031, 3536999, 1180)
        )
        self.assertEqual(round(s["arrivals"]["rate_per_s"], 4), 3.4015)
        self.assertEqual(
            (round(s["arrivals"]["gap_cv"], 2), round(s["arrivals"]["gap_zero_share"], 3)), (3.03, 0.902)
        )
        self.assertEqual(s["input_tokens"]["total"], 144793823)
        self.assertEqual(
            [
                s["input_tokens"][p]
                for p in ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9", "max", "min")
            ],
            [894, 901, 964, 2306, 6909, 15368, 27367, 39552, 85401, 121301, 126195, 891],
        )
        self.assertEqual(s["output_tokens"]["total"], 4122048)
        self.assertEqual(round(s["output_tokens"]["mean"], 2), 342.62)
        self.assertEqual(
            [s["blocks"][p] for p in ("total", "p50", "p90", "p99", "p99.9", "max")], [288500, 14, 54, 167, 237, 247]
        )
        self.assertEqual(s["popularity"]["unique_blocks"], 182790)
        self.assertEqual(s["inputs_of_whole_blocks"], 22)
        windows = {w["window_s"]: w for w in s["arrivals"]["windows"]}
        self.assertEqual([windows[10][k] for k in ("min", "max")], [14, 67])
        self.assertEqual([windows[60][k] for k in ("min", "max")], [144, 247])
        self.assertEqual(windows[300]["counts"], [918, 832, 978, 930, 1007, 1054, 1039, 1093, 1089, 1103, 1104, 884])
        ideal = s["ideal"]
        self.assertEqual((ideal["hit_blocks"], ideal["hit_tokens"]), (105710, 54098411))
        self.assertEqual(
            [
                ideal[k]
                for k in ("requests_hit", "requests_hit_one_block", "requests_hit_more", "requests_fully_known")
            ],
            [12030, 7372, 4658, 118],
        )
        self.assertEqual(round(ideal["mean_request_token_hit"], 4), 0.4094)
        self.assertEqual(
            [round(v, 3) for v in ideal["token_hit_per_5_minutes"]],
            [0.207, 0.374, 0.349, 0.368, 0.401, 0.387, 0.384, 0.395, 0.385, 0.416, 0.413, 0.413],
        )
        self.assertEqual(
            [(round(c["block_hit"], 4), round(c["token_hit"], 4)) for c in s["caches"]],
            [(0.0445, 0.0454), (0.2116, 0.2157), (0.3257, 0.3322)],
        )

    def test_synthetic_trace_has_the_published_figures(self):
        s = self.published("synthetic_trace.jsonl")
        self.assertEqual((s["requests"], s["popularity"]["unique_blocks"]), (3993, 43924))
        self.assertEqual((s["input_tokens"]["total"], s["output_tokens"]["total"]), (61194628, 595432))
        self.assertEqual((s["ideal"]["hit_blocks"], s["ideal"]["hit_tokens"]), (77953, 39852661))
        self.assertEqual(
            [s["ideal"][k] for k in ("requests_hit", "requests_hit_one_block", "requests_fully_known")],
            [1782, 34, 213],
        )
        self.assertEqual(round(s["input_output_ratio_mean"], 1), 2045.7)
        self.assertEqual([round(c["block_hit"], 4) for c in s["caches"]], [0.0841, 0.4239, 0.6242])

    def test_a_bad_line_is_named(self):
        good = trace_line(5, 100, [0])
        for bad, told in (
            ("{", "line 2 "),
            ("[]", "not an object"),
            ('{"timestamp":6}', "has no input_length"),
            (trace_line(6, 1000, [1]), "needs 2"),
            (trace_line(4, 10, [1]), "before the line above"),
            (trace_line(6, -1, []), "input_length is -1"),
            (trace_line(6, 10, ["x"]), "whole numbers"),
            (trace_line(6, 10, [-1]), "whole numbers"),
            ('{"timestamp":6,"timestamp":7}', "timestamp"),
            (good + "{", "line 2 "),
        ):
            path = self.trace(good, bad)
            for words in (["trace", "stats", path], ["replay", path, "--dry-run"]):
                code, out, err = cluster.run("mc-bench", *words)
                self.assertEqual((code, out), (1, b""), bad)
                self.assertIn("error MC6005 trace-invalid: line 2 ", err)
                self.assertIn(told, err)
                self.assertIn(f"where: {path}:2", err)
        self.assertIn("MC6005", bench("trace", "stats", self.file("empty", ""), expect=1)[1])
        self.assertIn("MC5005", bench("trace", "stats", self.dir + "/none", expect=1)[1])
        self.assertIn("MC1001", bench("trace", "shake", path, expect=2)[1])


class Plans(Scratch):
    """--dry-run prints what would be sent."""

    def plan(self, *words):
        return [json.loads(line) for line in bench(*words, "--dry-run", "--json")[0].splitlines()]

    def test_a_seed_gives_the_same_bytes_and_another_seed_others(self):
        words = ["serve", "--num-prompts", 7, "--input-len", 50, "--range-ratio", "0.5", "--request-rate", 20]
        self.assertEqual(bench(*words, "--dry-run", "--seed", 3)[0], bench(*words, "--dry-run", "--seed", 3)[0])
        self.assertNotEqual(self.plan(*words, "--seed", 3), self.plan(*words, "--seed", 4))

    def test_without_a_seed_only_the_prompts_change(self):
        words = ["serve", "--num-prompts", 5, "--input-len", 50, "--range-ratio", "0.5", "--request-rate", 20]
        a, b = self.plan(*words), self.plan(*words)
        self.assertNotEqual([r.pop("prompt") for r in a], [r.pop("prompt") for r in b])
        self.assertEqual(a, b)

    def test_gaps_follow_rate_and_burstiness(self):
        def gaps(burstiness):
            plan = self.plan(
                "serve", "--num-prompts", 2000, "--input-len", 1, "--request-rate", 10, "--burstiness", burstiness
            )
            at = [r["at_ms"] for r in plan]
            self.assertEqual(at, sorted(at))
            gap = [b - a for a, b in zip(at, at[1:])]
            mean = sum(gap) / len(gap)
            return mean, math.sqrt(sum((g - mean) ** 2 for g in gap) / len(gap)) / mean

        for burstiness, cv in (("1", 1.0), ("0.25", 2.0), ("4", 0.5)):
            mean, measured = gaps(burstiness)  # a gamma of shape k has CV 1/sqrt(k)
            self.assertLess(abs(mean - 100), 15, burstiness)
            self.assertLess(abs(measured - cv), 0.2 * cv, burstiness)
        self.assertLess(gaps("inf")[1], 1e-6)

    def test_the_shared_prefix_is_shared_and_the_rest_is_not(self):
        plan = self.plan("serve", "--num-prompts", 4, "--input-len", 200, "--prefix-share", "0.5")
        prompts = [r["prompt"] for r in plan]
        for a, b in zip(prompts, prompts[1:]):
            self.assertEqual(a[:100], b[:100])
            self.assertNotEqual(a[100:120], b[100:120])
        self.assertTrue(all(len(p) == 200 for p in prompts))

    def test_ids_stay_in_the_vocabulary(self):
        for vocab in (17, 100, 1024):
            prompt = self.plan("serve", "--num-prompts", 1, "--input-len", 3000, "--vocab", vocab)[0]["prompt"]
            self.assertTrue(all(16 <= t < vocab for t in prompt), vocab)
            self.assertGreater(len(set(prompt)), 0.8 * (vocab - 16))

    def test_equal_hash_ids_become_equal_blocks(self):
        path = self.trace(
            trace_line(0, 1400, [0, 1, 2]), trace_line(500, 1400, [0, 1, 3]), trace_line(2000, 700, [0, 1])
        )
        a, b, c = self.plan("replay", path, "--speedup", 2, "--seed", 1)
        self.assertEqual([r["at_ms"] for r in (a, b, c)], [0, 250, 1000])
        self.assertEqual([len(r["prompt"]) for r in (a, b, c)], [1400, 1400, 700])
        self.assertEqual(a["prompt"][:1024], b["prompt"][:1024])
        self.assertEqual(c["prompt"], a["prompt"][:700])
        self.assertNotEqual(a["prompt"][1024:1050], b["prompt"][1024:1050])
        self.assertNotEqual(a["prompt"][:512], a["prompt"][512:1024])
        cut = self.plan("replay", path, "--max-input", 600, "--max-output", 2, "--limit", 2, "--seed", 1)
        self.assertEqual(
            [(r["input_tokens"], r["output_tokens"], r["prompt"]) for r in cut],
            [(600, 2, a["prompt"][:600]), (600, 2, a["prompt"][:600])],
        )

    def test_bad_flags_are_refused_before_anything_is_sent(self):
        for words in (
            ["--goodput", "ttft"],
            ["--goodput", "ttfb:3"],
            ["--fail-if", "goodput"],
            ["--request-rate", "0"],
            ["--prefix-share", "2"],
            ["--burstiness", "0"],
            ["--percentile-metrics", "p"],
            ["--port", "0"],
            ["--metric-percentiles", "101"],
            ["--vocab", "16"],
            ["--endpoint", "/v1/chat/completions"],
            ["--header", "x"],
            ["--num-prompts", "0"],
        ):
            self.assertIn("MC1002", bench("serve", "--dry-run", *words, expect=2)[1], words)
        err = bench("serve", "--port", "1", expect=3)[1]
        self.assertIn("MC2101", err)
        self.assertIn("where: http://127.0.0.1:1\n  next:  start mc-conductor, or name the server with --base-url", err)
        for path in ("/chatty/v1/completions", "/v1/completions?user=chat"):  # these are no paths of chats
            bench("serve", "--dry-run", "--endpoint", path)


class Models(Scratch):
    def test_all_architectures_load_and_answer(self):
        for words in (
            ["llama"],
            ["qwen2"],
            ["qwen3", "--tied", "--dtype", "f32", "--head-dim", 48],
            ["qwen2_moe", "--experts", 3, "--intermediate", 24],
            ["qwen3_moe", "--experts", 4, "--experts-per-token", 4, "--intermediate", 24],
            ["llama", "--vocab", 300, "--kv-heads", 4, "--dtype", "f16", "--shard-size", "100KiB"],
        ):
            path = os.path.join(self.dir, f"m{len(os.listdir(self.dir))}")
            made = result("mkmodel", "--arch", *words, "-o", path)
            code, out, err = cluster.run(
                "mc-prefill",
                "once",
                "-m",
                path,
                "-p",
                "Hello, wörld",
                "-n",
                4,
                "--ignore-eos",
                "--temperature",
                0,
                "--json",
            )
            self.assertEqual(code, 0, err)
            self.assertEqual(len(json.loads(out.splitlines()[-1])["output_ids"]), 4)
            self.assertEqual(made["weight_files"], len([f for f in os.listdir(path) if f.endswith(".safetensors")]))
            self.assertEqual(made["weight_files"] > 1, "--shard-size" in words)
            self.assertEqual(made["tokenizer"], "bytes" if made["vocab"] < 2048 else "mc-tiny")

    def test_a_model_is_not_overwritten(self):
        path = os.path.join(self.dir, "model")
        bench("mkmodel", "--hidden", 32, "-o", path)
        self.assertIn("holds a model already", bench("mkmodel", "--hidden", 64, "-o", path, expect=1)[1])
        with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["hidden_size"], 32)

    def test_a_seed_gives_the_same_files(self):
        def contents(name, seed):
            path = os.path.join(self.dir, name)
            bench("mkmodel", "--seed", seed, "--hidden", 32, "-o", path)
            found = {}
            for file in sorted(os.listdir(path)):
                with open(os.path.join(path, file), "rb") as opened:
                    found[file] = opened.read()
            return found

        self.assertEqual(contents("a", 1), contents("b", 1))
        self.assertNotEqual(contents("c", 2)["model.safetensors"], contents("d", 1)["model.safetensors"])

    def test_impossible_shapes_are_refused(self):
        for words in (["--heads", 3, "--kv-heads", 2], ["--vocab", 10], ["--head-dim", 7], ["--layers", 0],
                      ["--arch", "qwen3_moe", "--experts", 2, "--experts-per-token", 3]):
            self.assertIn("MC1002", bench("mkmodel", *words, "-o", self.dir + "/x", expect=2)[1])
            self.assertFalse(os.path.exists(self.dir + "/x"))
        self.assertIn("MC1001", bench("mkmodel", expect=2)[1])

    def test_inspect_names_its_file_and_the_next_step_of_each_fault(self):
        for wanted, step in (("some/model", "huggingface-cli download some/model"), (self.dir, "give a directory in")):
            err = bench("model", "inspect", wanted, expect=1)[1]
            self.assertIn("MC3001", err)
            self.assertIn("where: FILE", err)
            self.assertIn(step, err)
            self.assertNotRegex(err.split("; details: ")[0], r"(^|\s)-m(\s|$)")  # a folder may be called mct-bench-m0

    def test_speed_is_told_with_its_share_and_the_cost_reads_back(self):
        self.one_thread()
        cost = os.path.join(self.dir, "cost.toml")
        s = result("model", "-p", "64,128", "-n", 4, "-d", "0,128", "-r", 2, "--save-cost", cost)
        self.assertEqual(
            [(p["phase"], p["tokens"], p["depth"]) for p in s["points"] if p["batch"] == 1],
            [
                ("prefill", 64, 0),
                ("prefill", 128, 0),
                ("decode", 4, 0),
                ("prefill", 64, 128),
                ("prefill", 128, 128),
                ("decode", 4, 128),
            ],
        )
        for p in s["points"]:
            self.assertGreater(p["tokens_per_s"], 0)
            self.assertGreater(p["peak_share"], 0)
        self.assertEqual(cluster.run("mc-prefill", "--cost", cost, "--check")[0], 0)
        self.assertIn("MC4005", bench("model", "-d", "8192", expect=1)[1])

    def test_attention_is_measured_by_turns_beside_full_attention(self):
        self.one_thread()
        plans = ["--attention", "full,moba:block=64,top_k=2,window:tokens=100"]
        s = result("attn", "-n", "64,512", *plans, "--heads", "4/2", "--head-dim", 64, "--dtype", "f32,bf16", "-r", 2)
        self.assertEqual(len(s["points"]), 2 * 2 * 2 * 3)
        self.assertGreater(s["peak_read_bytes_per_s"], 0)
        for p in s["points"]:
            self.assertGreater(p["flop_per_s"], 0)
            self.assertEqual("speedup" in p, p["attention"] != "full")
            self.assertEqual("bytes" in p, p["phase"] == "decode")
        at = {(p["phase"], p["tokens"], p["attention"], p["dtype"]): p for p in s["points"]}
        row = 2 * 2 * 64 * 4  # K and V of two heads in f32
        self.assertEqual(at["decode", 512, "full", "f32"]["bytes"], 512 * row)
        self.assertEqual(at["decode", 512, "window:tokens=100", "f32"]["bytes"], 100 * row)
        # The own block, one or two more of each KV head (two query heads choose), and seven centroids in bf16.
        moba = at["decode", 512, "moba:block=64,top_k=2", "f32"]["bytes"] - 2 * 7 * 64 * 2
        self.assertTrue(2 * 64 * row <= moba <= 3 * 64 * row, moba)
        self.assertEqual(at["prefill", 64, "full", "bf16"]["flop"], 4 * 64 * 4 * 64 * 65 / 2)

    def test_attention_refuses_what_it_cannot_measure(self):
        self.one_thread()
        for words in (["--heads", "3/2"], ["--phase", "both"], ["--dtype", "f16"], ["--attention", "moba:block=65"]):
            self.assertRegex(bench("attn", "-n", 64, *words, expect=2 if "65" not in words[1] else 1)[1], "MC[13]00")
        error = bench("attn", "-n", "16M", "--phase", "decode", "--heads", "1024/1024", expect=1)[1]
        self.assertIn("MC5003", error)
        self.assertRegex(error, "ask for [0-9]+ tokens")

    def test_operators_are_checked_and_measured_by_turns_in_every_variant_of_this_cpu(self):
        self.one_thread()
        s = result("ops", "--size", "512x160,130x70", "--rows", "1,5,128", "-r", 1)
        self.assertGreater(s["peak_read_bytes_per_s"], 0)
        self.assertEqual(s["wrong"], 0)
        refused = bench("ops", "--kernels", "none", expect=2)[1]
        known = re.search(r"is not one of all\|auto\|(\S+)", refused).group(1).split("|")
        with open("/proc/cpuinfo") as file:
            cpu = set(re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(), re.MULTILINE).group(1).split())
        needs = {"ref": set(), "avx2": {"avx2", "fma"}, "avx512": {"avx512f"}, "avx512bf16": {"avx512_bf16"}}
        self.assertEqual(set(known), set(needs))
        variants = [k for k in known if needs[k] <= cpu]
        for missing in set(known) - set(variants):
            refused = bench("ops", "--kernels", missing, expect=2)[1]
            self.assertIn(f"'{missing}' is not known here; there is all, {', '.join(variants)}", refused)
        dtypes = ["bf16", "f32", "int8", "int4", "fp8_e4m3"]
        want = {("prefill", t, 128, k) for t in dtypes for k in variants}
        want |= {("decode", t, n, k) for t in dtypes for n in (1, 5) for k in variants}
        want |= {(o, "f32", n, k) for o in ("rms_norm", "rope", "silu_mul") for n in (1, 5, 128) for k in variants}
        for outputs in (160, 70):
            found = [p for p in s["points"] if p["outputs"] in (outputs, {160: 512, 70: 130}[outputs])]
            self.assertEqual({(p["op"], p["dtype"], p["rows"], p["kernels"]) for p in found}, want)
            self.assertEqual(len(found), len(want))
        for p in s["points"]:
            self.assertGreater(p["median_s"], 0)
            self.assertLessEqual(p["error"], p["error_max"])
            self.assertLess(p["error_max"], 1e-4 if p["dtype"] in ("bf16", "f32") else 1e-2)
            self.assertEqual("flop_per_s" in p, p["op"] in ("prefill", "decode"))
            self.assertEqual("bytes_per_s" in p, p["op"] != "prefill")
            self.assertEqual(p["speedup"] == 1, p["kernels"] == "ref", p)
        at = {(p["op"], p["dtype"], p["rows"], p["outputs"]): p for p in s["points"]}
        self.assertEqual(at["decode", "f32", 5, 160]["bytes"], 3 * 64 * 512 * 4)  # whole panels of 64 outputs
        self.assertEqual(at["decode", "int8", 5, 160]["bytes"], 3 * 64 * (512 + 512 // 32 * 4))
        self.assertEqual(at["prefill", "bf16", 128, 70]["flop"], 2 * 128 * 130 * 70)
        self.assertEqual(at["silu_mul", "f32", 5, 160]["bytes"], 5 * 3 * 160 * 4)

    def test_operators_that_do_not_exist_are_refused(self):
        for words, told in (
            (["--op", "conv"], "prefill, decode, rms_norm"),
            (["--dtype", "f16"], "fp8_e4m3"),
            (["--rows", "65"], "multiple of 64"),
            (["--op", "prefill", "--rows", "63"], "multiples of it"),
            (["--size", "512"], "2048x2048"),
            (["--size", "1x512"], "inputs x outputs"),
        ):
            error = bench("ops", *words, expect=2)[1]
            self.assertIn("MC1002", error)
            self.assertIn(told, error)
        self.assertIn("MC5003", bench("ops", "--size", "1000000x1000000", expect=1)[1])


class Forms(Scratch):
    """A result is written for people, for Markdown, for a spreadsheet or as JSON."""

    def table(self, form):
        """That of a verb that measures neither the peak of the processor nor that of its memory."""
        return bench("recall", "-p", "128,192", "-r", 1, "--format", form)[0].splitlines()

    def test_the_table_of_sim_fits_a_terminal_and_all_columns_are_there_for_the_asking(self):
        path = self.trace(*[trace_line(40 * i, 1000, [i, i + 1], 20) for i in range(20)])
        words = ["sim", path, "--cluster", "2p2d", "--policy", "load,cache-aware,kv-centric"]
        narrow, wide = bench(*words)[0], bench(*words, "--wide")[0]
        self.assertLessEqual(max(map(len, narrow.splitlines())), 80, narrow)
        self.assertIn("TTFT s p50", narrow)
        self.assertIn("wasted GPU s", wide)

    def test_a_table_of_markdown_has_a_rule_under_its_header(self):
        lines = [line for line in self.table("md") if line.startswith("|")]
        self.assertEqual(len(lines), 6)
        self.assertEqual(lines[0].split(" | ")[:2], ["| task", "tokens"])
        self.assertRegex(lines[1], r"^\| --- \|( ---: \|)+$")
        self.assertEqual({line.count("|") for line in lines}, {lines[0].count("|")})

    def test_a_form_in_the_place_of_a_file_is_refused_before_anything_is_measured(self):
        for verb in ("attn", "grammar", "model", "ops", "recall", "route", "tok"):
            for form in ("md", "csv"):
                error = bench(verb, "-o", form, expect=2)[1]
                self.assertIn("MC1002", error, verb)
                self.assertIn(f"--format {form} gives the table that form", error, verb)

    def test_csv_is_rows_of_equal_length_alone(self):
        rows = list(csv.reader(self.table("csv")))
        self.assertEqual([row[0] for row in rows], ["task", *["passkey"] * 2, *["key-value"] * 2])
        self.assertEqual({len(row) for row in rows}, {5})
        self.assertEqual(rows[1][1], "128")


    def test_the_summary_lists_the_points_as_their_lines(self):
        path = self.trace(*[trace_line(40 * i, 1000, [i, i + 1], 20) for i in range(40)])
        simulate = ["sim", path, "--cluster", "2p2d"]
        for words in (
            [*simulate, "--policy", "random,kv-centric"],
            [*simulate, "--policy", "random,kv-centric", "--find-max-rate"],
            [*simulate, "--rules", "paper", "--policy", "random,cache-aware"],
            ["trace", "cache", path, "--policy", "lru,fifo", "--blocks", "10"],
            ["route", "--nodes", "2,4", "--blocks", "1000", "--time", "100ms"],
        ):
            *lines, last = [json.loads(line) for line in bench(*words, "--json")[0].splitlines()]
            self.assertEqual(len(lines), 2, words)
            self.assertEqual([line["type"] for line in lines], ["point", "point"], words)
            self.assertEqual(last["points"], lines, words)


class Interrupts(Scratch):
    """Results that were measured before a signal are printed."""

    def setUp(self):
        super().setUp()
        self.one_thread()

    def interrupted(self, *words, lines):
        """Signals after `lines` lines of output; (lines, stderr)."""
        process = subprocess.Popen(
            [cluster.program("mc-bench"), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # select() below does not see what a buffer holds
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        try:
            out = []
            while len(out) < lines:
                self.assertTrue(select.select([process.stdout], [], [], 60)[0], out)
                out.append(process.stdout.readline())
                self.assertTrue(out[-1], out)
            process.send_signal(signal.SIGINT)
            rest, err = process.communicate(timeout=60)
        finally:
            process.kill()
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"error MC8003 interrupted", err)
        return [line.decode() for line in out] + rest.decode().splitlines(keepends=True)

    def test_rows_come_one_by_one(self):
        words = ["attn", "--phase", "decode", "-n", "64-16384+16", "-r", 1, "--attention", "full"]
        out = self.interrupted(*words, lines=3)
        self.assertIn("GB/s read", out[0])
        self.assertRegex(out[1], r"^point +attention +kernels ")
        self.assertRegex(out[2], r"^decode 64 +full ")
        self.assertEqual(len({len(line) for line in out[1:3]}), 1)

    def test_the_summary_has_the_points_until_then(self):
        path = self.trace(*[trace_line(40 * i, 1000, [i, i + 1], 20) for i in range(4000)])
        policies = ",".join(["random", "load", "kv-centric"] * 300)
        attention = []
        if cluster.FULL:  # test_rows_come_one_by_one interrupts it with every run
            attention = [["attn", "--phase", "decode", "-n", "64-16384+16", "-r", 1, "--attention", "full"]]
        for words in (
            ["ops", "--op", "decode", "--dtype", "bf16", "--rows", "1-63+1", "--size", "2048x2048"],
            ["xfer", "--transport", "shm", "--size", "4KiB-1MiB+4096", "-t", "300ms"],
            ["sim", path, "--cluster", "2p2d", "--policy", policies],
            ["model", "-p", "8-500+1", "-n", 0, "-r", 1],
            ["recall", "-p", "128-1900+1", "-r", 1],
            *attention,
        ):
            out = [json.loads(line) for line in self.interrupted(*words, "--json", lines=1)]
            self.assertEqual(out[-1]["type"], "result", words)
            self.assertTrue(out[-1]["interrupted"], words)
            points = out[-1].get("points", out[-1:])
            self.assertGreaterEqual(len(points), 1, words)
            if "points" in out[-1]:
                self.assertEqual(out[:-1], points, words)

    def test_an_interrupt_removes_the_folder_of_disk(self):
        words = ["disk", self.dir, "--bs", "4KiB-1MiB+4096", "-t", "50ms", "--size", "64MiB"]
        out = self.interrupted(*words, lines=2)
        self.assertRegex(out[1], r"^write ")
        self.assertEqual(os.listdir(self.dir), [])

    def test_an_interrupt_leaves_the_file_that_was_asked_for(self):
        path = os.path.join(self.dir, "rows.jsonl")
        words = ["xfer", "--transport", "shm", "--size", "4KiB-1MiB*2", "-t", "3s", "--json", "-o", path]
        process = subprocess.Popen([cluster.program("mc-bench"), *words], stderr=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        cluster.until(lambda: takes(process.pid, signal.SIGTERM), 60, "the program takes signals")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 130)
        with open(path, encoding="utf-8") as file:
            self.assertTrue(json.loads(file.readlines()[-1])["interrupted"])


class Streams(Scratch):
    def setUp(self):
        super().setUp()
        # The 64 MiB of the default cost 0.3 s of page faults a run. The largest request of the default is 16 MiB.
        self.set_flag(MCT_MEMORY="16MiB")

    def test_equal_and_unequal_streams(self):
        for name, prompt in (("a", "5,17,9"), ("b", "5,17,9"), ("c", "5,17,10")):
            code, out, err = cluster.run(
                "mc-prefill", "once", "--prompt-ids", prompt, "--kv-out", f"{self.dir}/{name}"
            )
            self.assertEqual(code, 0, err)
        bench("diff-kv", f"{self.dir}/a", f"{self.dir}/b")
        bench("diff-kv", f"{self.dir}/a", f"{self.dir}/c", expect=1)
        err = bench("diff-kv", f"{self.dir}/a", "/dev/null", expect=1)[1]
        self.assertIn("MC6001", err)
        self.assertIn("/dev/null: byte 0: ", err)
        err = bench("diff-kv", __file__, f"{self.dir}/a", expect=1)[1]
        self.assertIn(f'{__file__}: byte 0: mckv: does not start with "MCKV"', err)

    def test_sound_streams_of_different_types_are_not_called_damaged(self):
        for dtype in ("bf16", "f32"):
            words = ["--prompt-ids", "20,21,22", "--dtype", dtype, "--kv-out", f"{self.dir}/{dtype}"]
            self.assertEqual(cluster.run("mc-prefill", "once", *words)[0], 0)
        # Codes under two scales are compared as the values that they stand for.
        for name, prompt in (("one", "20,21,22"), ("same", "20,21,22"), ("other", "20,21,23")):
            words = ["--prompt-ids", prompt, "--kv-dtype", "fp8_e4m3", "--kv-out", f"{self.dir}/{name}"]
            self.assertEqual(cluster.run("mc-prefill", "once", *words)[0], 0)
        bench("diff-kv", f"{self.dir}/one", f"{self.dir}/same")
        bench("diff-kv", f"{self.dir}/one", f"{self.dir}/other", expect=1)
        err = bench("diff-kv", f"{self.dir}/bf16", f"{self.dir}/f32", expect=1)[1]
        self.assertIn("error MC6003 kv-file-foreign: diff-kv: kv_dtype is bf16 in ", err)
        self.assertIn(f"{self.dir}/bf16 and f32 in {self.dir}/f32: nothing to compare", err)

    def test_two_processes_move_verified_bytes(self):
        words = [cluster.program("mc-bench"), "xfer", "--server", "--port", "0"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            uris = json.loads(server.stdout.readline())["uris"]
            for uri in uris:
                s = result("xfer", uri, "--transport", uri.split(":")[0], "--size", "64KiB", "-t", "100ms")
                self.assertEqual((s["failed"], len(s["points"])), (0, 1))
                point = s["points"][0]
                self.assertTrue(point["verified"] and point["bytes"] > 0 and point["yardstick_share"] > 0)
            self.assertEqual({u.split(":")[0] for u in uris}, {"shm", "tcp"})
            port = next(u for u in uris if u.startswith("tcp")).rsplit(":", 1)[1]
            self.assertIn("MC5001", bench("xfer", "--server", "--port", port, expect=1)[1])
        finally:
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(60), 0)
            server.stdout.close()

    def test_loopback_and_a_peer_that_is_not_there(self):
        s = result("xfer", "--size", "16KiB,64KiB", "--streams", "1,2", "-t", "50ms")
        self.assertEqual(
            [(p["transport"], p["streams"]) for p in s["points"]],
            [("shm", 1)] * 2 + [("tcp", 1)] * 2 + [("tcp", 2)] * 2,
        )
        s = result("xfer", "--op", "read,write", "--size", "64KiB", "--batch", "1,3", "--depth", "1,2", "-t", "20ms")
        self.assertEqual(
            [(p["transport"], p["op"], p["batch"], p["depth"], p["verified"], p["failed"]) for p in s["points"]],
            [
                (t, op, b, d, op == "read" or t == "tcp", 0)
                for t in ("shm", "tcp")
                for op in ("read", "write")
                for b in (1, 3)
                for d in (1, 2)
            ],
        )
        for p in s["points"]:
            self.assertEqual(p["bytes"], p["transfers"] * p["batch"] * 65536)
            self.assertLessEqual(p["latency_us_p50"], p["latency_us_p99"])
            self.assertLessEqual(p["latency_us_p99"], p["latency_us_p999"])
        for words, told in (
            (["--server", "--bind", "0.0.0.0"], "the data door would listen on tcp://0.0.0.0:7790, beyond loopback"),
            (["192.0.2.2"], "the data connection to tcp://192.0.2.2:7790 would leave this host without keys"),
        ):
            out, err = bench("xfer", *words, expect=2)
            self.assertIn("MC1005", err)
            self.assertIn(told, err)
            self.assertIn("add --auth FILE", err)
            self.assertIn("or --insecure data on a network you trust", err)
            self.assertEqual(out, "")
        out, err = bench("xfer", "tcp://127.0.0.1:1", "--transport", "tcp", expect=3)
        self.assertIn("MC2101", err)
        self.assertEqual(out, "")  # no head of a table

    def test_a_bad_number_is_refused_with_the_name_of_its_flag(self):
        bad = (
            ("--pairs", "0"),
            ("--pairs", "1001"),
            ("-t", "0s"),
            ("-t", "999us"),
            ("--port", "65535"),
            ("--transfer-spin", "5h"),
            ("--rdma-cooldown", "2h"),
            ("--rdma-cooldown", "100us"),
            ("--transport", "foo"),
            ("--transport", "tcp,auto"),
        )
        for verb, flag, value in (
            ("attn", "--threads", "10000"),
            ("attn", "--threads", "0"),
            ("attn", "--repeats", "0"),
            ("model", "--repeats", "0"),
            ("model", "--chunk-tokens", "10"),
            ("tok", "--repeats", "0"),
            ("route", "--time", "0"),
        ):
            err = bench(verb, flag, value, expect=2)[1]
            self.assertIn("MC1002", err)
            self.assertIn(flag, err)
        for flag, value in bad:
            err = bench("xfer", "--size", "64KiB", flag, value, expect=2)[1]
            self.assertIn("MC1002", err)
            self.assertIn({"-t": "--time"}.get(flag, flag), err)
        err = bench("xfer", "--transport", "foo", expect=2)[1]
        self.assertRegex(err, r"[^|]shm\|rdma\|tcp")
        # bare numbers are seconds; one value is the first and the last
        out = bench("xfer", "--rdma-cooldown", "5", "--print-config")[0]
        self.assertRegex(out, 'rdma-cooldown = "5"')

    def test_what_would_be_passed_over_is_refused(self):
        for words, told in (
            (["--server", "10.0.0.1"], "listens at --bind"),
            (["--op", "register", "10.0.0.1"], "this host alone"),
            (["--against-client", "-x 1"], "--against-client means nothing without --against"),
            (["--pairs", "3"], "--pairs means nothing without --against"),
            (["--op", "register", "--against", "memcpy"], "moves nothing"),
            (["--port", "7000"], "--port means nothing without a PEER"),
            (["--port", "7000", "localhost:7001"], "which has a port"),
            (["--port", "7000", "tcp://[::1]:7001"], "which has a port"),
            (["--transport", "shm", "--streams", "2"], "without tcp"),
            (["--server", "--size", "64KiB"], "for a --server"),
            (["--op", "register", "--depth", "2"], "with --op register"),
            (["--rdma-devices", "mlx5_0"], "without rdma"),
            (["--transport", "tcp", "--rdma-cooldown", "5"], "without rdma"),
        ):
            err = bench("xfer", *words, expect=2)[1]
            self.assertIn("MC1001", err)
            self.assertIn(told, err)
        env = dict(os.environ, MCT_STREAMS="2", MCT_RDMA_COOLDOWN="5")  # the environment is for every run
        bench("xfer", "--transport", "shm", "--size", "64KiB", "-t", "20ms", env=env)
        # what is measured before a failure is not lost, and addresses are looked at before anything is measured
        out, err = bench("xfer", "192.0.2.2", "--transport", "tcp,shm", "--json", expect=3)
        self.assertIn("shm reaches this host only", err)
        for words in (["--memory", "100TiB"], ["--op", "register", "--memory", "100TiB"]):
            self.assertIn("at most --memory", bench("xfer", *words, expect=1)[1])

    def test_a_server_with_other_keys_or_a_taken_port_is_told_by_its_own_error(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(keys, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                subprocess.run([cluster.program("mc-conductor"), "keygen"], stdout=file, check=True)
            for served, asked in (([], ["--auth", keys]), (["--auth", keys], [])):
                words = [
                    cluster.program("mc-bench"),
                    "xfer",
                    "--server",
                    "--port",
                    "0",
                    "--transport",
                    "tcp",
                    *served,
                ]
                with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
                    uri = json.loads(server.stdout.readline())["uri"]
                    err = bench("xfer", uri, *asked, "--size", "64KiB", "-t", "20ms", expect=3)[1]
                    self.assertIn("MC2103", err)
                    self.assertIn("--auth", err)
                    port = uri.rsplit(":", 1)[1]
                    err = bench("xfer", "--server", "--transport", "tcp", "--port", port, expect=1)[1]
                    self.assertIn("MC5001", err)
                    self.assertIn("--port", err)
                    server.terminate()

    def test_an_output_that_cannot_be_written_is_told_before_the_run(self):
        for words, flag in (
            (["model", "-r", "10000", "--save-cost", "no/where"], "--save-cost"),
            (["attn", "-r", "10000", "-n", "16k", "-o", "no/where"], "--output"),
            (["ops", "-r", "10000", "-o", "no/where"], "--output"),
            (["sim", "nofile", "--save-requests", "no/where/x"], "--save-requests"),
            (["plot", "nofile", "--x", "a", "--y", "b", "--svg", "/"], "--svg"),
        ):
            err = bench(*words, expect=1)[1]
            self.assertIn("MC5005", err)
            self.assertIn(flag, err)

    def test_requests_fit_the_memory_that_was_asked_for(self):
        err = bench("xfer", "--size", "1GiB", "--memory", "64MiB", expect=2)[1]
        self.assertIn("MC1002", err)
        self.assertRegex(err, "64.0 MiB cannot hold the largest request, 1.00 GiB")
        self.assertIn(
            "MC1002", bench("xfer", "--size", "64KiB", "--beside", "128MiB", "--memory", "64MiB", expect=2)[1]
        )
        del os.environ["MCT_MEMORY"]  # without it: as needed
        (p,) = result("xfer", "--transport", "shm", "--size", "80MiB", "-t", "20ms")["points"]
        self.assertEqual(p["failed"], 0)

    def test_a_server_that_dies_is_a_lost_peer_not_wrong_bytes(self):
        words = [cluster.program("mc-bench"), "xfer", "--server", "--port", "0", "--transport", "tcp"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            uri = json.loads(server.stdout.readline())["uri"]
            words = ["--op", "read,write", "--size", "64KiB,128KiB,256KiB", "-t", "1s", "--json"]
            client = subprocess.Popen(
                [cluster.program("mc-bench"), "xfer", uri, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            first = json.loads(client.stdout.readline())
            server.kill()
            out, err = client.communicate(timeout=60)
            self.assertIn(client.returncode, (1, 3))
            self.assertRegex(err.decode(), "MC2105|MC2101")  # during a later point, or before it began
            last = json.loads(out.splitlines()[-1])
            self.assertEqual(last["points"][:1], [first])
            self.assertLess(len(last["points"]), 6)  # a busy machine may measure more than one before the kill
            self.assertTrue(last["error"])
        finally:
            server.kill()
            server.wait(60)
            server.stdout.close()

    def test_the_peer_may_be_a_host_with_a_port_and_a_uri_names_its_transport(self):
        words = [cluster.program("mc-bench"), "xfer", "--server", "--port", "0", "--transport", "tcp"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            uri = json.loads(server.stdout.readline())["uri"]
            place = uri.split("://")[1]
            for peer in ([uri], [place, "--transport", "tcp"]):
                s = result("xfer", *peer, "--size", "64KiB", "--op", "read,write_imm", "-t", "50ms")
                self.assertEqual(
                    [(p["transport"], p["verified"], p["failed"]) for p in s["points"]], [("tcp", True, 0)] * 2
                )
            err = bench("xfer", uri, "--transport", "shm", "--size", "64KiB", expect=2)[1]
            self.assertIn("leave --transport out", err)
        finally:
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(60), 0)
            server.stdout.close()
        err = bench("xfer", "192.0.2.1", "--transport", "shm", "--size", "64KiB", expect=3)[1]
        self.assertIn("--transport tcp or rdma", err)
        self.assertIn("MC1002", bench("xfer", "localhost:99999", expect=2)[1])
        self.assertIn("MC1002", bench("xfer", "foo://127.0.0.1:1", expect=2)[1])

    def test_what_only_an_rdma_device_could_do_says_that_there_is_none(self):
        if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
            self.skipTest("this machine has an RDMA device")
        for words in (["--server"], ["--size", "64KiB"], ["--op", "register"]):
            err = bench("xfer", "--transport", "rdma", *words, expect=3)[1]
            self.assertIn("MC2110", err)
            self.assertIn("mc-bench doctor", err)
            self.assertNotIn("port above", err)
        path = os.path.join(self.dir, "ib_read_bw")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho run >> \"$0.runs\"\necho 'Did not detect devices'\nexit 7\n")
        os.chmod(path, 0o755)
        env = dict(os.environ, PATH=self.dir + ":" + os.environ["PATH"])
        words = ["xfer", "--transport", "tcp", "--size", "64KiB", "-t", "20ms", "--pairs", "1", "--against"]
        code, _, err = cluster.run("mc-bench", *words, "ib_read_bw", env=env)
        self.assertEqual(code, 1)
        with open(path + ".runs", encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 2)  # a server and a client, once
        self.assertIn("MC8008", err)
        self.assertIn("needs an RDMA device", err)
        self.assertNotIn("install it", err)

    def test_a_block_is_leased_and_mapped_without_a_copy(self):
        (p,) = result("xfer", "--op", "map", "--size", "64KiB", "-t", "50ms")["points"]
        self.assertEqual((p["op"], p["failed"], p["bytes"]), ("map", 0, 0))
        self.assertGreater(p["transfers"], 0)
        self.assertIn("MC1002", bench("xfer", "--transport", "tcp", "--op", "map", expect=2)[1])

    def test_routing_takes_a_trace_whose_first_prompt_is_empty(self):
        lines = [trace_line(0, 0, [])] + [trace_line(i, 1100, [7, 2 * i, 2 * i + 1]) for i in range(1, 40)]
        trace = self.file("trace.jsonl", "\n".join(lines) + "\n")
        record = result("route", "--trace", trace, "--nodes", "8", "--blocks", "1000", "--time", "100ms")
        self.assertGreater(record["decisions"], 0)
        self.assertGreater(record["local_blocks_mean"], 0)

    def test_memory_is_touched_and_registered(self):
        (p,) = result("xfer", "--transport", "tcp", "--op", "register", "--memory", "8MiB")["points"]
        self.assertEqual((p["op"], p["size_bytes"], p["failed"]), ("register", 8 << 20, 0))
        for key in ("prefault_serial_s", "prefault_parallel_s", "prefault_huge_serial_s", "prefault_huge_parallel_s"):
            self.assertGreater(p[key], 0)
        self.assertIn("MC1002", bench("xfer", "--op", "read,register", expect=2)[1])

    def test_pairs_with_a_reference(self):
        for transport, reference in (("shm", "memcpy"), ("tcp", "raw")):
            words = ["--size", "64KiB", "-t", "20ms", "--against", reference, "--pairs", "3"]
            (p,) = result("xfer", "--transport", transport, *words)["points"]
            self.assertEqual((p["against"], p["pairs"], p["failed"]), (reference, 3, 0))
            self.assertTrue(0 < p["ratio_p25"] <= p["ratio"] <= p["ratio_p75"])
            self.assertTrue(p["ours_bytes_per_s"] > 0 and p["against_bytes_per_s"] > 0)
        words = ["xfer", "--transport", "tcp", "--size", "64KiB", "-t", "20ms", "--pairs", "2", "--against"]
        if shutil.which("iperf3"):
            self.assertGreater(result(*words, "iperf3")["points"][0]["against_bytes_per_s"], 0)
        env = dict(os.environ, PATH=self.dir)
        code, _, err = cluster.run("mc-bench", *words, "iperf3", env=env)
        self.assertEqual(code, 1)
        self.assertIn("MC8005", err)
        self.assertIn("iperf3: No such file or directory", err)

    def test_what_perftest_prints_is_read(self):
        head = "#bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
        line = " 65536      2000           0.70               0.36                 0.000686"
        late = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
        time = " 64      1000          30.10          250.33       33.80              35.01          4.11"
        for name, words in (("ib_write_bw", (head, line)), ("ib_read_lat", (late, time))):
            path = os.path.join(self.dir, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho ' RDMA Test'\n" + "".join(f"echo '{w}'\n" for w in words))
            os.chmod(path, 0o755)
        env = dict(os.environ, PATH=self.dir + ":" + os.environ["PATH"])
        words = ["xfer", "--transport", "tcp", "--size", "64KiB", "-t", "20ms", "--pairs", "2", "--json", "--against"]
        code, out, err = cluster.run("mc-bench", *words, "ib_write_bw", env=env)
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out.splitlines()[-1])["points"][0]["against_bytes_per_s"], 0.36e9 / 8)
        code, out, err = cluster.run("mc-bench", *words, "ib_read_lat", env=env)
        self.assertEqual(code, 0, err)
        self.assertAlmostEqual(json.loads(out.splitlines()[-1])["points"][0]["against_s"], 33.8e-6)

    def test_what_a_reference_prints_that_is_no_result_is_an_error_with_advice(self):
        head = "#bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
        rate = '{"end": {"sum_received": {"bits_per_second": 0}}}'
        for name, line in (
            ("iperf3", "iperf 3.99"),
            ("iperf3", '{"end": {"sum_received": {"bits_per_second": }}}'),
            ("iperf3", rate),
            ("ib_write_bw", "none"),
            ("ib_write_bw", head),
            ("ib_read_lat", head),
        ):
            with self.subTest(name=name, line=line):
                path = os.path.join(self.dir, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f"#!/bin/sh\necho '{line}'\n")
                os.chmod(path, 0o755)
                env = dict(os.environ, PATH=self.dir + ":" + os.environ["PATH"])
                words = ["xfer", "--transport", "tcp", "--size", "64KiB", "-t", "20ms", "--pairs", "2", "--against"]
                code, _, err = cluster.run("mc-bench", *words, name, env=env)
                self.assertEqual(code, 1, err)
                self.assertIn("MC8008", err)
                self.assertIn(line.split()[0], err)
                self.assertIn("--against memcpy", err)
                os.remove(path)

    def test_keys_off_loopback(self):
        key = os.path.join(self.dir, "cluster.key")
        code, out, _ = cluster.run("mc-conductor", "keygen")
        self.assertEqual(code, 0)
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(out)
        words = ["--transport", "tcp", "--auth", key]
        server = subprocess.Popen(
            [cluster.program("mc-bench"), "xfer", "--server", "--port", "0", *words], stdout=subprocess.PIPE
        )
        try:
            uri = json.loads(server.stdout.readline())["uri"]
            s = result("xfer", uri, "--size", "64KiB", "-t", "20ms", *words)
            self.assertEqual((s["failed"], s["points"][0]["verified"]), (0, True))
            self.assertIn("MC2103", bench("xfer", uri, "--transport", "tcp", "-t", "20ms", expect=3)[1])
            other = os.path.join(self.dir, "other.key")
            with open(os.open(other, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                file.write(cluster.run("mc-conductor", "keygen")[1])
            err = bench("xfer", uri, "--transport", "tcp", "--auth", other, "-t", "20ms", expect=3)[1]
            self.assertIn("MC2103", err)
        finally:
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(60), 0)
            server.stdout.close()


class Tokenizers(Scratch):
    GOLDEN = os.path.join(ROOT, "tests", "golden", "text")

    def test_golden_ids_are_counted_and_a_wrong_one_is_exit_4(self):
        for name in ("gpt2", "llama2"):
            folder = os.path.join(self.GOLDEN, name)
            made = result("tok", "-m", folder, "--golden", folder + "/cases.jsonl", "-r", 1)
            self.assertEqual(made["mismatches"], 0)
            self.assertGreater(made["compared"], 100)
            for key in ("encode_mb_per_s", "encode_tokens_per_s", "decode_mb_per_s", "decode_tokens_per_s"):
                self.assertGreater(made[key], 0)
        wrong = self.file("wrong.jsonl", json.dumps({"text": "Hello", "plain": [1, 2, 3]}) + "\n")
        made = result("tok", "-m", folder, "--golden", wrong, "-r", 1, expect=4)
        self.assertEqual((made["compared"], made["mismatches"]), (1, 1))
        self.assertIn("text 0, token 0", made["first_mismatch"])

    def test_a_corpus_is_text_and_there_must_be_some(self):
        text = self.file("corpus.txt", "One line.\n" * 20000)
        made = result("tok", text, "-r", 1)
        self.assertEqual((made["bytes"], made["texts"], made["compared"]), (200000, 4, 0))
        self.assertIn("MC1002", bench("tok", expect=2)[1])
        self.assertIn("MC1002", bench("tok", "--golden", self.file("x", '{"text": 1}\n'), expect=2)[1])
        with open(os.path.join(self.dir, "bad"), "wb") as file:
            file.write(b"ab\xff")
        self.assertIn("not UTF-8 at byte 2", bench("tok", self.dir + "/bad", expect=2)[1])


class Recall(Scratch):
    def test_every_task_length_and_mode_is_counted(self):
        made = result("recall", "-p", "128,256", "-r", 2)
        rows = [(p["task"], p["tokens"], p["mode"]) for p in made["points"]]
        modes = ("full", "moba", "hybrid")
        self.assertEqual(rows, [(t, n, m) for t in ("passkey", "key-value") for n in (128, 256) for m in modes])
        for point in made["points"]:
            self.assertEqual(point["share"], point["correct"] / point["prompts"])
        self.assertEqual(made["points"][0]["correct"], 2)
        self.assertIn("MC1002", bench("recall", "-p", "9000", expect=2)[1])
        self.assertIn("MC3009", bench("recall", "-p", "256", "--moba-block", "7", expect=1)[1])


if __name__ == "__main__":
    unittest.main()

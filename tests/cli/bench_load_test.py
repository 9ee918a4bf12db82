"""mc-bench serve and replay against a real cluster, and against a server that misbehaves on purpose."""

import fcntl
import http.server
import json
import math
import os
import pty
import select
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time
import unittest

import cluster
from man_test import output_words

# The machine that runs the tests may be busy; lateness has tests of its own.
CALM = ["--late-max", "60s"]
VLLM_KEYS = """duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput
    output_throughput total_token_throughput input_lens output_lens ttfts itls errors start_times
    max_concurrent_requests request_rate burstiness max_concurrency num_prompts""".split()
METRICS = ("ttft", "tpot", "itl", "e2el")
VLLM_KEYS += [f"{stat}_{metric}_ms" for stat in ("mean", "median", "std", "p99") for metric in METRICS]
OUR_KEYS = """schema host git_commit seed argv model cluster cached_tokens hit_rate client_late_ms_p99 rejected
    rejected_by_reason stages""".split()


def bench(*words, expect=0, timeout=100, env=None):
    code, out, err = cluster.run("mc-bench", *words, timeout=timeout, env=env)
    assert code == expect, f"{words}: exit {code}: {err}"
    return out.decode(), err


def result(*words, **kwargs):
    return json.loads(bench(*words, "--json", **kwargs)[0].splitlines()[-1])


def quantile(values, q):
    """The ceil(qN)-th smallest."""
    return sorted(values)[max(1, math.ceil(q * len(values))) - 1]


class OnACluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cluster.Cluster("1p1d1c")
        cls.url = f"http://127.0.0.1:{cls.cluster.url_port}"

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="mct-bench-")
        self.addCleanup(directory.cleanup)
        self.dir = directory.name

    def serve(self, *words, **kwargs):
        return result("serve", "--base-url", self.url, *CALM, *words, env=self.cluster.env, **kwargs)

    def test_a_result_has_every_key_and_its_numbers_agree(self):
        s = self.serve(
            "--num-prompts",
            12,
            "--request-rate",
            40,
            "--input-len",
            130,
            "--output-len",
            6,
            "--ignore-eos",
            "--prefix-share",
            0.5,
            "--goodput",
            "ttft:60000",
            "tpot:60000",
            "--metric-percentiles",
            "50,90,99",
            "--metadata",
            "note=here",
            "--seed",
            5,
        )
        self.assertLessEqual(set(VLLM_KEYS + OUR_KEYS), set(s))
        self.assertEqual((s["completed"], s["failed"], s["rejected"], s["unfinished"]), (12, 0, 0, 0))
        self.assertEqual((s["seed"], s["cluster"], s["model"], s["note"]), (5, "1p1d1c", "mc-tiny", "here"))
        self.assertEqual((s["total_input_tokens"], s["total_output_tokens"]), (12 * 130, 12 * 6))
        self.assertEqual((s["input_lens"], s["output_lens"], s["errors"]), ([130] * 12, [6] * 12, [""] * 12))
        self.assertAlmostEqual(s["request_throughput"] * s["duration"], 12)
        self.assertEqual(s["request_goodput"], s["request_throughput"])
        for p in (50, 90, 99):
            self.assertAlmostEqual(s[f"p{p}_ttft_ms"], 1000 * quantile(s["ttfts"], p / 100))
            self.assertAlmostEqual(s[f"p{p}_itl_ms"], 1000 * quantile(sum(s["itls"], []), p / 100))
        self.assertEqual(s["median_ttft_ms"], s["p50_ttft_ms"])
        self.assertAlmostEqual(s["mean_ttft_ms"], 1000 * sum(s["ttfts"]) / 12)
        self.assertEqual(s["start_times"], sorted(s["start_times"]))
        self.assertEqual(s["hit_rate"], s["cached_tokens"] / s["total_input_tokens"])
        self.assertAlmostEqual(s["ideal_token_hit"], 11 / 24)
        self.assertFalse(s["warm_cache"])
        self.assertGreater(s["cached_tokens"], 0)
        self.assertEqual(sum(s["cached_from"].values()), s["cached_tokens"])
        self.assertGreater(s["stages"]["prefill_ms"], 0)
        self.manual_has(s)

    def manual_has(self, s):
        known = output_words("mc-bench") | output_words("mc-bench-serve")
        known |= {f"p{p}_{m}_ms" for p in (50, 90) for m in METRICS + ("ttft_from_send",)} | {"note"}
        self.assertLessEqual(set(s), known)
        self.assertLessEqual(set(s["stages"]), known)

    def test_people_get_a_table(self):
        out, err = bench(
            "serve",
            "--base-url",
            self.url,
            *CALM,
            *("--num-prompts", 3, "--input-len", 40, "--output-len", 3),
            env=self.cluster.env,
        )
        self.assertRegex(out, r"^Serving result: mc-tiny @ http://127.0.0.1:\d+ \(1p1d1c, new prompts\)\n")
        self.assertLessEqual(max(map(len, out.splitlines())), 80)
        for row in (
            "\n3 requests at once, 40 tokens in, 3 out, any number in flight\n",
            "ok / failed / rejected  3 / 0 / 0",
            "TTFT  ",
            "TBT (ITL)",
            "E2E",
            "client lateness p99",
            "  from sending",
            "TTFT = client",
        ):
            self.assertIn(row, out)
        self.assertIn("warm-up request(s) answered", err)
        self.assertNotIn("\r", err)
        self.assertEqual(bench("serve", "--base-url", self.url, *CALM, "--num-prompts", 1, "-q")[1], "")

    def test_a_trace_of_one_moment_is_replayed_at_once(self):
        path = os.path.join(self.dir, "moment.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for i in range(3):
                line = {"timestamp": 7, "input_length": 20, "output_length": 2, "hash_ids": [i]}
                file.write(json.dumps(line) + "\n")
        out, _ = bench("replay", path, "--base-url", self.url, *CALM, env=self.cluster.env)
        self.assertIn("\n3 requests at once, 20 tokens in, 2 out (mean), any number in flight\n", out)

    def test_a_trace_is_replayed_with_its_prefixes(self):
        path = os.path.join(self.dir, "t.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for i in range(20):
                session = i % 4  # four sessions of five turns, each turn one block longer
                ids = [0] + [100 * (session + 1) + j for j in range(1 + i // 4)]
                line = {
                    "timestamp": 150 * i,
                    "input_length": 512 * len(ids) - 100,
                    "output_length": 3 + i % 3,
                    "hash_ids": ids,
                }
                file.write(json.dumps(line) + "\n")
        s = result(
            "replay",
            path,
            "--base-url",
            self.url,
            *CALM,
            "--speedup",
            2,
            "--max-input",
            2000,
            "--save-detailed",
            "--result-dir",
            self.dir,
            "--result-filename",
            "r.json",
        )
        self.assertEqual((s["completed"], s["trace_requests"], s["inputs_cut"]), (20, 20, 8))
        self.assertEqual(s["output_lens"], [3 + i % 3 for i in range(20)])
        self.assertEqual(s["input_lens"], [min(2000, 512 * (2 + i // 4) - 100) for i in range(20)])
        self.assertAlmostEqual(s["start_times"][-1], 150 * 19 / 2 / 1000)
        # KV blocks are finer than the trace's, so a cluster with room hits at least what the trace has to share.
        self.assertGreater(s["hit_rate"], 0.9 * s["ideal_token_hit"])
        self.assertGreater(s["ideal_token_hit"], 0.4)
        self.manual_has(s)
        with open(os.path.join(self.dir, "r.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file), s)
        with open(os.path.join(self.dir, "r.json.requests.jsonl"), encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        self.assertEqual([r["outcome"] for r in records], ["completed"] * 20)
        for record, ttft_s in zip(records, s["ttfts"]):
            self.assertAlmostEqual(record["ttft_ms"], 1000 * ttft_s)

    def test_conditions_and_lateness_decide_the_exit_code(self):
        words = ["serve", "--base-url", self.url, "--num-prompts", 2, "--input-len", 20, "--output-len", 2, "-q"]
        bench(*words, *CALM, "--fail-if", "failed>0,ttft_p99>60s,request_throughput<0.001/s")
        for condition in ("completed<=2", "ttft_p99>=0ms", "hit_rate<1.5"):
            out, err = bench(*words, *CALM, "--fail-if", condition, expect=4)
            self.assertIn("error MC8001 goal-missed: " + condition, err)
            self.assertRegex(err, r"holds: \w+ is \d+(\.\d{1,3})?\n")
            self.assertIn("Serving result", out)
        self.assertIn("no number nonsense", bench(*words, *CALM, "--fail-if", "nonsense>1", expect=2)[1])
        self.assertIn("needs --goodput", bench(*words, *CALM, "--fail-if", "goodput<1", expect=2)[1])
        out, err = bench(*words, "--late-max", "0s", expect=1)
        self.assertRegex(err, "error MC8002 client-late: 99 % of the requests were sent within .* ms of their planned")
        self.assertRegex(err, r"next: +nothing is broken; .* --late-max \d+ms;")
        self.assertIn("Serving result", out)

    def test_max_concurrency_queues_in_the_client(self):
        s = self.serve(
            "--num-prompts", 6, "--input-len", 30, "--output-len", 20, "--ignore-eos", "--max-concurrency", 1
        )
        self.assertEqual((s["max_concurrent_requests"], s["max_concurrency"], s["completed"]), (1, 1, 6))
        self.assertGreater(s["client_queue_ms_p99"], 0)
        # All were planned for the start, so each counts the ones before it.
        self.assertEqual(s["ttfts"], sorted(s["ttfts"]))
        self.assertAlmostEqual(s["mean_ttft_ms"], s["mean_ttft_from_send_ms"] + s["stages"]["client_ms"])
        # Each was sent after the first token of the one before it.
        self.assertGreaterEqual(s["stages"]["client_ms"], 1000 * sum(s["ttfts"][:-1]) / 6)

    def test_a_sweep_gives_one_result_each(self):
        out, _ = bench(
            "serve",
            "--base-url",
            self.url,
            *CALM,
            "--json",
            "--num-prompts",
            2,
            "--input-len",
            20,
            "--output-len",
            2,
            "--request-rate",
            "20-40*2",
        )
        self.assertEqual([json.loads(line)["request_rate"] for line in out.splitlines()], [20, 40])

    def test_without_a_target_it_is_the_conductor_of_the_run_directory(self):
        found = result("serve", *CALM, "--num-prompts", 1, "--input-len", 8, env=self.cluster.env)
        self.assertEqual(found["base_url"], self.url)

    def test_a_named_run_directory_without_a_conductor_lets_no_other_server_be_loaded(self):
        empty = os.path.join(self.dir, "empty")
        _, err = bench("serve", env=dict(os.environ, MCT_RUN_DIR=empty), expect=3)
        self.assertIn("error MC2101 peer-unreachable: no conductor answers: ", err)
        self.assertIn(f"where: unix:{empty}/conductor.http\n", err)
        os.mkdir(os.path.join(self.dir, "xdg"), 0o700)
        env = dict(os.environ, XDG_RUNTIME_DIR=os.path.join(self.dir, "xdg"))
        env.pop("MCT_RUN_DIR", None)
        err = bench("serve", "--header", "this is none, so nothing is sent", env=env, expect=2)[1]
        self.assertIn("no conductor answers in the default run directory; the server is http://127.0.0.1:8000\n", err)

    def test_the_ideal_of_a_trace_has_no_last_token(self):
        path = os.path.join(self.dir, "twice.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for i in range(2):
                line = {"timestamp": 3000 * i, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
                file.write(json.dumps(line) + "\n")
        s = result("replay", path, "--base-url", self.url, *CALM, "--seed", 4242)
        # The second prompt is known to its end; nine KV blocks of 64 tokens end before its last token.
        self.assertEqual(s["ideal_token_hit"], 576 / 1200)
        self.assertEqual(s["hit_rate"], s["ideal_token_hit"])

    def test_texts_of_a_file_are_sent_to_either_endpoint(self):
        path = os.path.join(self.dir, "texts.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"prompt":"Once upon"}\n\n{"conversations":[{"from":"human","value":"Hello there"}]}\n')
        words = ["--dataset", path, "--num-prompts", 3, "--output-len", 4, "--ignore-eos"]
        for endpoint in ("/v1/completions", "/v1/chat/completions"):
            s = self.serve(*words, "--endpoint", endpoint)
            self.assertEqual((s["completed"], s["total_output_tokens"], s["dataset_prompts"]), (3, 12, 2), endpoint)
            self.assertGreater(s["total_input_tokens"], 3)
            self.assertIsNone(s["warm_cache"])
        self.assertIn("--dataset", bench("serve", "--endpoint", "/v1/chat/completions", expect=2)[1])
        self.assertIn("--input-len", bench("serve", *words, "--input-len", 5, expect=2)[1])
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"question":"?"}\n')
        self.assertIn("entry 3 has no prompt", bench("serve", *words, expect=2)[1])

    def test_no_point_and_no_run_meets_the_cache_of_another(self):
        words = ["serve", "--base-url", self.url, *CALM, "--num-prompts", 4, "--input-len", 200, "--output-len", 2]
        for _ in range(2):
            out, err = bench(*words, "--request-rate", "40,80,160", "--json")
            self.assertEqual([json.loads(line)["hit_rate"] for line in out.splitlines()], [0, 0, 0])
            self.assertNotIn("WARM", err)

    def test_a_run_on_prompts_that_were_sent_before_says_so(self):
        words = ["serve", "--base-url", self.url, *CALM, "--num-prompts", 4, "--input-len", 200, "--seed", 77]
        self.assertFalse(result(*words)["warm_cache"])
        out, err = bench(*words)
        self.assertIn("% of tokens (ideal of these prompts 0.0 %) WARM CACHE\ncached tokens from ", out)
        self.assertIn("warning: WARM CACHE: ", err)
        self.assertTrue(result(*words)["warm_cache"])

    def test_an_interrupt_writes_what_there_is(self):
        path = os.path.join(self.dir, "partial.json")
        words = [
            "serve",
            "--base-url",
            self.url,
            "--num-prompts",
            1000,
            "--request-rate",
            2,
            "--input-len",
            20,
            "--json",
            "-o",
            path,
        ]
        process = subprocess.Popen([cluster.program("mc-bench"), *map(str, words)], stderr=subprocess.PIPE)
        try:
            self.assertTrue(select.select([process.stderr], [], [], 60)[0])
            self.assertIn(b"not counted", process.stderr.readline())
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"MC8003 interrupted", err)
        with open(path, encoding="utf-8") as file:
            s = json.loads(file.read())
        self.assertTrue(s["interrupted"])
        self.assertEqual(s["completed"] + s["unfinished"], 1000)


class Mischief(http.server.BaseHTTPRequestHandler):
    """Answers the n-th completion by the n-th way; knows no /cluster and returns no token ids."""

    protocol_version = "HTTP/1.1"
    ways = []
    key = ""

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if Mischief.key and self.headers["Authorization"] != "Bearer " + Mischief.key:
            self.reply(401, {"error": {"message": "unknown API key", "code": "invalid_api_key"}})
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": "m", "root": "m", "object": "model"}]})
        else:
            self.reply(404, {"error": {"message": "no", "code": "not_found"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append((body, dict(self.headers)))
            way = Mischief.ways[(len(self.server.seen) - 1) % len(Mischief.ways)]
        if isinstance(way, tuple):
            status, code = way
            self.reply(status, {"error": {"message": "refused", "type": "x", "param": None, "code": code}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for event in way:
            self.wfile.write(b": ping\n\n")
            if event == "pause":
                self.server.pause.wait(0.2)  # an event that nobody sets: the clock is what passes
            else:
                self.wfile.write(
                    b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n\n"
                )
            self.wfile.flush()


def text(t, finish=None):
    return {"choices": [{"index": 0, "text": t, "finish_reason": finish}]}


class OnABadServer(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mischief)
        self.server.seen, self.server.lock, self.server.pause = [], threading.Lock(), threading.Event()
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(lambda: (self.server.shutdown(), thread.join(), self.server.server_close()))

    def serve(self, ways, *words, **kwargs):
        Mischief.ways = ways
        return result(
            "serve",
            "--port",
            self.server.server_address[1],
            *CALM,
            "--num-warmups",
            0,
            "--max-concurrency",
            1,
            "--input-len",
            9,
            "--num-prompts",
            len(ways),
            *words,
            **kwargs,
        )

    def test_each_way_to_fail_is_counted_as_what_it_is(self):
        usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}
        good = [text("a"), text("b"), text("c", "length"), usage, "[DONE]"]
        s = self.serve(
            [
                good,
                [text("a")],
                [text("a"), {"error": {"message": "lost", "code": "node_failed"}}],
                ["[DONE]"],
                ["{"],
                (429, "queue_full"),
                (429, "queue_full"),
                (503, "no_decode"),
                (503, "node_failed"),
                (500, "internal"),
                (400, "context_length_exceeded"),
                good,
            ]
        )
        self.assertEqual((s["completed"], s["failed"], s["rejected"]), (2, 7, 3))
        self.assertEqual(s["rejected_by_reason"], {"no_decode": 1, "queue_full": 2})
        self.assertEqual((s["total_input_tokens"], s["total_output_tokens"]), (18, 6))
        self.assertIn("without [DONE]", s["errors"][1])
        self.assertEqual(s["errors"][2], "lost")
        self.assertIn("no tokens", s["errors"][3])
        self.assertIn("not JSON", s["errors"][4])
        self.assertEqual(s["errors"][9], "HTTP 500: refused")
        self.assertEqual((s["cluster"], s["stages"]), (None, None))
        self.assertEqual([len(gaps) for gaps in (s["itls"][0], s["itls"][11])], [2, 2])

    def test_a_run_without_answers_fails_by_the_first_reason(self):
        for way, number in (((429, "queue_full"), "MC4011"), ((500, "no such code"), "MC2105")):
            Mischief.ways = [way]
            err = bench("serve", "--port", self.server.server_address[1], *CALM, "--num-prompts", 2, expect=1)[1]
            self.assertIn(f"error {number} ", err)

    def test_a_missing_key_is_told_as_the_server_tells_it(self):
        Mischief.key = "s3cret"
        self.addCleanup(setattr, Mischief, "key", "")
        err = bench("serve", "--port", self.server.server_address[1], expect=1)[1]
        self.assertIn("error MC4009 unauthorized: HTTP 401: unknown API key", err)
        self.assertIn("--api-key-file", err)

    def test_a_table_of_nothing_has_no_figures(self):
        Mischief.ways = [(500, "internal")]
        out = bench("serve", "--port", self.server.server_address[1], *CALM, "--num-prompts", 2, expect=1)[0]
        self.assertRegex(out, r"\nTTFT( +-){5}\n")
        self.assertRegex(out, r"\nE2E( +-){5}\n")
        self.assertIn("prefix hit  - of tokens", out)

    def test_the_progress_line_fits_the_terminal(self):
        # The first request outlasts the first line of progress on a crowded machine too.
        brief = ["pause", text("a", "stop"), "[DONE]"]
        Mischief.ways = [["pause"] * 20 + brief, brief, brief]
        for columns in (80, 40):
            master, slave = pty.openpty()
            self.addCleanup(os.close, master)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            words = ["serve", "--port", self.server.server_address[1], *CALM]
            words += ["--num-prompts", 3, "--max-concurrency", 1]
            process = subprocess.Popen(
                [cluster.program("mc-bench"), *map(str, words)], stderr=slave, stdout=subprocess.DEVNULL
            )
            os.close(slave)
            said = b""
            try:
                while process.poll() is None or select.select([master], [], [], 0)[0]:
                    if select.select([master], [], [], 0.1)[0]:
                        said += os.read(master, 65536)
            except OSError:
                pass  # a pty whose other side closed
            self.assertEqual(process.wait(60), 0)
            lines = [line.split(b"\r\n")[0] for line in said.split(b"\r\x1b[K") if b"ttft" in line]
            self.assertGreater(len(lines), 1)
            self.assertTrue(all(len(line) < columns for line in lines), lines)
            self.assertIn(b"0/3 -/s ttft p50 - p99 -", lines[0])
            self.assertIn(b"3 requests at once, 512 tokens in, 64 out, at most 1 in flight", said)

    def test_first_token_time_ends_at_the_first_chunk_with_text(self):
        s = self.serve([[text(""), "pause", text("a"), text("b", "stop"), "[DONE]"]])
        self.assertGreaterEqual(s["ttfts"][0], 0.2)
        self.assertEqual((s["completed"], s["output_lens"]), (1, [2]))

    def test_the_request_carries_what_was_asked(self):
        good = [text("a", "stop"), "[DONE]"]
        self.serve(
            [good],
            "--output-len",
            7,
            "--ignore-eos",
            "--temperature",
            "0.5",
            "--header",
            "x-a=b",
            "--header",
            "x-c=d",
        )
        body, headers = self.server.seen[0]
        self.assertEqual(
            (body["model"], body["max_tokens"], body["temperature"], body["ignore_eos"], body["stream"]),
            ("m", 7, 0.5, True, True),
        )
        self.assertEqual(len(body["prompt"]), 9)
        self.assertEqual((headers["x-a"], headers["x-c"]), ("b", "d"))

    def test_a_request_without_end_is_given_up_in_time(self):
        began = time.monotonic()
        s = self.serve([[text("a")] + ["pause"] * 300 + ["[DONE]"]], "--timeout", "300ms", expect=1)
        self.assertEqual((s["completed"], s["failed"]), (0, 1))
        self.assertLess(time.monotonic() - began, 40)


if __name__ == "__main__":
    unittest.main()

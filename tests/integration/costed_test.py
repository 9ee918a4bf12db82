#!/usr/bin/env python3
"""Workers that sleep modelled times over stand-in KV: answers, reuse, timing, footprint, refusals."""

import concurrent.futures
import http.client
import json
import os
import tempfile
import time
import unittest

import cluster
from cluster import Cluster, Random, cached, quick_profile, run, token_ids, until

VOCAB = 2048  # of mc-tiny, whose config the costed workers bear
MASK = 2**64 - 1


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def standin_answer(ids, count):
    """The answer that costed/standin.h promises: it follows from the prompt alone."""
    tag, out = 0x6D6F6F6E63616B65, []
    for token in ids:
        tag = mix(tag ^ ((token + 0x9E3779B97F4A7C15) & MASK))
    while len(out) < count:
        out.append(VOCAB // 4 + mix(tag) % (VOCAB // 4))
        tag = mix(tag ^ ((out[-1] + 0x9E3779B97F4A7C15) & MASK))
    return out


class Costed(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.profile = os.path.join(self.folder.name, "quick.toml")
        with open(self.profile, "w") as file:
            file.write(quick_profile(prefill_s=100e-6, step_s=5e-3, row_s=0.5e-3))

    def test_answers_follow_from_the_prompt_whoever_computed_fetched_or_received_its_blocks(self):
        # Whether a fetch pays follows from what was measured, and on a busy machine anything may come out.
        fetch = ["--fetch-rule", "threshold"]
        with Cluster("2p2d", conductor=["--runner", f"costed:{self.profile}", *fetch]) as c:
            random = Random(7)
            shared = random.ids(640)
            prompts = [shared + random.ids(1 + random.below(700)) for _ in range(12)]
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(lambda ids: c.complete(ids=ids, max_tokens=40), prompts))
            for ids, answer in zip(prompts, answers):
                self.assertEqual(token_ids(answer), standin_answer(ids, 40))
            status, _, refused = c.post("/v1/completions", {"prompt": [5, 6, 7], "prompt_logprobs": 0})
            self.assertEqual(status, 400)
            self.assertIn("computes no logits", refused["error"]["message"])
            # Its blocks and those of its answer are on some node; the other one fetches them.
            longer = prompts[0] + token_ids(answers[0]) + random.ids(10)
            for node in ("p0", "p1"):
                answer = c.complete(ids=longer, max_tokens=5, mc={"pin": {"prefill": node}})
                self.assertEqual(token_ids(answer), standin_answer(longer, 5))
                self.assertGreaterEqual(cached(answer), len(prompts[0]) // 64 * 64)
            c.wait_quiet()
            for name in ("p0", "p1", "d0", "d1"):
                self.assertEqual(c.metric(name, "mc_checksum_failures_total"), 0)

    def test_a_costed_node_with_a_device_loads_what_left_it_and_explain_counts_the_copies(self):
        with open(self.profile, "a") as file:
            file.write("[paths.load]\nbytes_per_s = 1e7\n")
        block_ms = 64 * 4096 / 1e7 * 1e3
        with Cluster(roles=["conductor"]) as c:
            c.start("p0", "--runner", f"costed:{self.profile}", "--device-mem", "2MiB")  # of eight blocks
            c.start("d0", "--runner", f"costed:{self.profile}")
            c.wait_nodes()
            random = Random(11)
            prompts = [random.ids(256) for _ in range(2)]
            for number in (0, 1, 0):
                ids = prompts[number] + random.ids(40)
                self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=5)), standin_answer(ids, 5))
            node = until(lambda: c.node("p0") if c.node("p0")["device_loaded_blocks"] > 0 else None, 60, "a load")
            self.assertEqual(node["device_pages"], 8)
            self.assertAlmostEqual(node["device_block_ms"], block_ms, delta=0.1)
            until(lambda: c.metric("p0", "mc_device_loaded_blocks_total") > 0, 60, "the load in the metrics")
            ids = prompts[1] + random.ids(40)
            body = json.dumps({"prompt": ids, "max_tokens": 5}).encode()

            def candidate():
                code, out, err = c.verb("explain", "-f", "-", "--json", stdin=body)
                self.assertEqual(code, 0, err)
                (row,) = json.loads(out)["candidates"]
                return row if row["to_device_ms"] > 0 else None

            row = until(candidate, 60, "the cost of copies")
            self.assertEqual(row["match_blocks"], 4)
            self.assertLess(row["device_blocks"], 4)
            self.assertAlmostEqual(row["to_device_ms"], (4 - row["device_blocks"]) * block_ms, delta=0.5)
            self.assertGreaterEqual(row["ttft_ms"], row["to_device_ms"])
            self.assertIn("TO GPU ms", c.verb("explain", "-f", "-", stdin=body)[1].decode())
            self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=5)), standin_answer(ids, 5))
            self.assertIn("TO GPU ms", c.verb("why", "--last")[1].decode())
            c.wait_quiet()
            code, _, err = run("mc-prefill", "--runner", f"costed:{self.profile}", "--device-mem", "300KiB", "--check",
                               "--http", "127.0.0.1:0")
            self.assertEqual(code, 1, err)
            self.assertRegex(err, r"error MC7005 .*--device-mem holds 1 blocks of .*; a node needs 4")

    def start_pipeline(self, c, leader, stages, only=None):
        for number in range(stages) if only is None else [only]:
            words = ["mc-prefill", "--name", leader, "--pipeline", f"{number}/{stages}", "--http", "127.0.0.1:0"]
            name = f"{leader}.{number}" if number else leader
            c.processes[name] = c.spawn([*words, "--json", "--runner", f"costed:{self.profile}"])

    def test_blocks_go_between_costed_pipelines_and_whole_nodes_layer_by_layer(self):
        with Cluster(roles=["conductor"], conductor=["--fetch-rule", "threshold"]) as c:
            self.start_pipeline(c, "p0", 2)
            self.start_pipeline(c, "p1", 3)
            for name in ("p2", "d0"):
                c.start(name, "--runner", f"costed:{self.profile}")
            c.wait_nodes()
            until(lambda: c.node("p0")["state"] == c.node("p1")["state"] == "ready", 60, "the pipelines are whole")

            def ask(ids, node, holder=None):
                answer = c.complete(ids=ids, max_tokens=5, mc={"pin": {"prefill": node}})
                self.assertEqual(token_ids(answer), standin_answer(ids, 5), (node, holder))
                if holder:
                    self.assertEqual(answer["mc"]["cached_from"], {holder: len(ids) // 64 * 64}, answer["mc"])
                c.wait_quiet()
                code, _, err = run("mc-cache", "evict", "d0", "--all", env=c.env)  # or the next node reads from there
                self.assertEqual(code, 0, err)
                until(lambda: c.node("d0")["blocks_indexed"] == 0, 60, "the conductor knows that d0 has no block")

            for number, (holder, reader) in enumerate((("p0", "p2"), ("p2", "p0"), ("p0", "p1"), ("p1", "p0"))):
                ids = Random(40 + number).ids(1500)
                ask(ids, holder)
                ask(ids, reader, holder)
            # The member that comes back reads its layers of p0's blocks from the pipeline that has them all.
            c.processes["p0.1"].kill()
            c.processes["p0.1"].stop()
            until(lambda: c.node("p0")["state"] == "partial", 60, "the loss is noticed")
            self.start_pipeline(c, "p0", 2, only=1)
            c.wait_nodes()
            until(lambda: c.node("p0")["state"] == "ready", 60, "the pipeline is whole")
            ask(ids, "p0", "p1")
            for name in ("p0", "p0.1", "p1", "p1.2", "p2"):
                self.assertEqual(c.metric(name, "mc_checksum_failures_total"), 0, name)

    def test_the_first_token_of_a_costed_pipeline_comes_when_the_simulator_says_so(self):
        with open(self.profile, "w") as file:
            text = quick_profile(prefill_s=100e-6, step_s=5e-3, row_s=0.5e-3)
            file.write(text.replace("[paths.net]", "activation_bytes_per_token = 400000\n[paths.net]"))
        trace, requests = os.path.join(self.folder.name, "trace"), os.path.join(self.folder.name, "requests")
        with open(trace, "w") as file:
            json.dump({"timestamp": 0, "input_length": 2048, "output_length": 2, "hash_ids": [0, 1, 2, 3]}, file)
        words = ["--cluster", "2p1d", "--pipeline", "2", "--profile", self.profile, "--save-requests", requests]
        code, _, err = run("mc-bench", "sim", trace, *words, "--json")
        self.assertEqual(code, 0, err)
        with open(requests) as file:
            simulated = [r["ttft_s"] for r in map(json.loads, file) if r["type"] == "request"][0]
        # Four chunks go through two stages. Carrying the activations of one takes 0.2 s, computing all 0.2 s.
        self.assertAlmostEqual(simulated, 0.028 + 4 * 0.2048 + 0.026, places=2)
        with Cluster(roles=["conductor"]) as c:
            self.start_pipeline(c, "p0", 2)
            c.start("d0", "--runner", f"costed:{self.profile}")
            c.wait_nodes()
            until(lambda: c.node("p0")["state"] == "ready", 60, "the pipeline is whole")
            began = time.monotonic()
            body = {"prompt": Random(8).ids(2048), "max_tokens": 2, "ignore_eos": True}
            live = [time.monotonic() - began for _ in c.stream("/v1/completions", body)][0]
            self.assertGreaterEqual(live, 0.98 * simulated)
            self.assertLess(live, simulated + 60)  # a loaded machine adds seconds
            c.wait_quiet()

    def test_computing_begins_while_the_prefix_arrives_over_a_slow_link_and_the_answer_is_that_of_the_prompt(self):
        def runner(name, prefill_s):
            path = os.path.join(self.folder.name, name)
            with open(path, "w") as file:
                text = quick_profile(prefill_s, step_s=5e-3, row_s=0.5e-3)
                file.write(text.replace("bytes_per_s = 1e9", "bytes_per_s = 1e7"))  # 80 Mbit/s
            return ["--runner", f"costed:{path}"]

        prompt, slow = Random(9).ids(4096), runner("slow.toml", 4e-3)
        with Cluster(roles=["conductor"], conductor=["--fetch-rule", "threshold"]) as c:
            c.start("p0", *runner("fast.toml", 100e-6))  # only makes the prefix that the others read
            c.start("p1", *slow, "--load-by-layer", "off")
            c.start("p2", *slow, "--load-by-layer", "1MiB")
            c.start("d0", *slow)
            c.wait_nodes()

            def ask(node, own):
                ids = prompt + own
                answer = c.complete(ids=ids, max_tokens=4, mc={"pin": {"prefill": node}})
                self.assertEqual(token_ids(answer), standin_answer(ids, 4))
                mc = answer["mc"]
                self.assertEqual(mc["cached_remote_tokens"], 0 if node == "p0" else 4096, mc)
                return mc

            ask("p0", [])
            # 2.05 s to compute, and 1.68 s to bring the prefix.
            whole = ask("p1", Random(10).ids(512))
            self.assertEqual(whole["fetch_hidden_ms"], 0)
            for turn in range(5):  # on a busy machine the prefix may be there before the node computes
                early = ask("p2", Random(11 + turn).ids(512))
                if early["fetch_hidden_ms"] > 0:
                    break
                c.wait_quiet()
                code, _, err = run("mc-cache", "evict", "p2", "--all", env=c.env)
                self.assertEqual(code, 0, err)
                until(lambda: c.node("p2")["blocks_indexed"] == 0, 60, "the conductor knows that p2 has no block")
            self.assertGreater(early["fetch_hidden_ms"], 0)
            self.assertGreater(early["fetch_ms"] + early["fetch_hidden_ms"], 1600)
            times = [f"{mc['fetch_ms'] + mc['prefill_ms']:.0f} ms" for mc in (whole, early)]
            print(f"fetch and prefill of 4608 tokens: whole {times[0]}, by layers {times[1]}")
            c.wait_quiet()
            for name in ("p0", "p1", "p2", "d0"):
                self.assertEqual(c.metric(name, "mc_checksum_failures_total"), 0)

    def test_a_costed_pipeline_of_more_stages_than_stand_in_layers_is_refused(self):
        words = ["--name", "p0", "--pipeline", "0/5", "--runner", f"costed:{self.profile}"]
        code, _, err = run("mc-prefill", *words)
        self.assertEqual(code, 2)
        self.assertIn("a pipeline of 5 stages; the stand-in KV of profile quick has 4 layers to divide", err)
        self.assertIn("--pipeline", err)

    def test_a_stream_that_waits_for_its_first_token_is_pinged(self):
        with open(self.profile, "w") as file:
            file.write(quick_profile(prefill_s=0.18, step_s=5e-3, row_s=0.5e-3))  # 18 s: a ping comes after 15 s
        with Cluster("1p1d", conductor=["--runner", f"costed:{self.profile}"]) as c:
            link = http.client.HTTPConnection("127.0.0.1", c.url_port, timeout=60)
            self.addCleanup(link.close)
            body = {"prompt": Random(3).ids(100), "max_tokens": 2, "stream": True}
            link.request("POST", "/v1/completions", json.dumps(body))
            lines = [line for line in link.getresponse() if line.strip()]
            self.assertEqual(lines[0], b": ping\n")
            self.assertEqual(lines[-1], b"data: [DONE]\n")

    def test_why_tells_where_a_request_went_what_was_weighed_and_what_is_not_known(self):
        with Cluster("2p1d", conductor=["--runner", f"costed:{self.profile}"]) as c:
            for turn in range(5):  # a busy machine may send the second request to the other prefill node
                record = self.why_second(c, Random(5 + turn).ids(700))
                if record["cached_local_tokens"] == 640:
                    break
            self.assertTrue(c.verb("ps")[1].startswith(b"costed:quick at http://"))
            self.assertIn(" costed:quick ", c.verb("ps", "--wide")[1].decode())
            self.assertEqual(
                (record["outcome"], record["prompt_tokens"], record["output_tokens"]), ("finished", 700, 3)
            )
            self.assertEqual(record["cached_local_tokens"], 640)
            self.assertEqual({row["node"] for row in record["considered"]}, {"p0", "p1"})
            self.assertEqual(record["considered"][0]["node"], record["prefill_node"])
            self.assertGreater(record["predicted_ttft_ms"], 0)
            self.assertGreaterEqual(record["ttft_ms"], 5)  # the profile's; a loaded machine adds what it likes
            self.assertIn("prefill", c.verb("why", "mine")[1].decode())
            code, _, err = c.verb("why", "nobody")
            self.assertNotEqual(code, 0)
            self.assertIn("no record of request nobody", err)
            self.assertIn("next:  mc-conductor why lists the requests", err)

    def why_second(self, c, ids):
        """The record of the second one of two requests with one prompt and one id."""
        for _ in range(2):
            body = {"prompt": ids, "max_tokens": 3, "ignore_eos": True}
            status, _, _ = c.request("POST", "/v1/completions", body, {"x-request-id": "mine"})
            self.assertEqual(status, 200)
        code, out, err = c.verb("why", "mine", "--json")
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_what_needs_a_model_is_refused_with_the_reason_and_no_node_is_blamed(self):
        with Cluster("1p1d", conductor=["--runner", f"costed:{self.profile}"]) as c:
            for _ in range(6):  # more than a breaker stands
                status, _, answer = c.post("/v1/embeddings", {"input": "Once"})
                self.assertEqual(status, 400, answer)
                error = answer["error"]
                self.assertEqual((error["type"], error["code"]), ("invalid_request_error", "unsupported_parameter"))
                self.assertIn("models times and has no model, so it computes no embedding", error["message"])
            self.assertEqual(c.cluster()["breakers"], [])
            c.complete(ids=[5, 6, 7], max_tokens=2)

    def test_times_are_the_profiles_and_processes_stay_small(self):
        with Cluster("1p1d", conductor=["--runner", f"costed:{self.profile}"]) as c:
            ids = Random(8).ids(10000)  # longer than mc-tiny's own context
            began = time.monotonic()
            stamps = []
            body = {"prompt": ids, "max_tokens": 21, "ignore_eos": True}
            for event in c.stream("/v1/completions", body):
                stamps.append(time.monotonic() - began)
            modelled = 5e-3 + 10000 * 100e-6
            self.assertGreaterEqual(stamps[0], modelled)
            self.assertLess(stamps[0], modelled + 60)  # a loaded machine adds seconds
            self.assertGreaterEqual(stamps[-1], modelled + 20 * 5.5e-3 - 5e-3)
            for name in os.listdir("/proc"):
                if not name.isdigit():
                    continue
                try:
                    with open(f"/proc/{name}/cmdline") as file:
                        words = file.read().split("\0")
                    with open(f"/proc/{name}/status") as file:
                        status = file.read()
                except OSError:
                    continue
                if f"costed:{self.profile}" in words and "--name" in words:
                    resident = int(status.split("VmRSS:")[1].split()[0])
                    if not cluster.is_sanitized():
                        self.assertLess(resident, 48 * 1024, words)

    def test_a_real_worker_is_refused_beside_costed_ones_and_a_bad_profile_is_named(self):
        with Cluster("1p1d", conductor=["--runner", f"costed:{self.profile}"]) as c:
            stranger = c.start("p9")
            self.assertNotEqual(stranger.popen.wait(60), 0)
            self.assertIn("MC2104", stranger.tail())
            del c.processes["p9"]
        with open(self.profile, "a") as file:
            file.write("s_per_rwo = 1\n")
        code, _, err = run("mc-prefill", "--runner", f"costed:{self.profile}")
        self.assertEqual(code, 2)
        self.assertIn("'decode.s_per_rwo' is not a key of a profile", err)
        self.assertIn("quick.toml:18", err)
        code, _, err = run("mc-decode", "--runner", "costed:a800-llama3-70b", "--batch-max", "0")
        self.assertEqual(code, 2)
        self.assertIn("'0' is not from 1 to 65536", err)
        code, _, err = run("mc-decode", "--runner", "costed:h900")
        self.assertEqual(code, 2)
        self.assertIn("a800-llama3-70b", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)

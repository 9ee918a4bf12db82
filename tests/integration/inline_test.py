#!/usr/bin/env python3
"""Decode nodes that compute short prompts themselves: tokens, where requests go, what is shown, losses."""

import concurrent.futures
import json
import os
import re
import tempfile
import unittest

import cluster
from cluster import Cluster, Random, cached, oracle, quick_profile, token_ids, until
from costed_test import standin_answer

LIMIT = 96
# On a busy machine anything may be measured. Over a network that is slow by its profile, a decode node that computes
# the prompt itself is the sooner one. What was measured raises the profile's rate by at most 1024 times.
SLOW_NETWORK = quick_profile(1e-4, 4e-4, 1e-4).replace("bytes_per_s = 1e9", "bytes_per_s = 1e3")


class Inline(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cost = os.path.join(self.folder.name, "slow.toml")
        with open(self.cost, "w", encoding="utf-8") as file:
            file.write(SLOW_NETWORK)

    def start(self, c, *names, flags=("--dtype", "f32"), limit=LIMIT):
        for name in names:
            inline = ["--inline-tokens", str(limit)] if name[0] == "d" else []
            c.start(name, "--cost", self.cost, *inline, *flags)
        c.wait_nodes()

    def check(self, c, ids, count, inlined, **fields):
        """The answer is the oracle's, and the nodes are as wanted; returns the answer."""
        answer = c.complete(ids=ids, max_tokens=count, **fields)
        self.assertEqual(token_ids(answer), oracle(ids, count), answer["mc"])
        nodes = answer["mc"]["prefill_node"], answer["mc"]["decode_node"]
        self.assertEqual(nodes[0] == nodes[1], inlined, answer["mc"])
        return answer

    def test_a_short_prompt_stays_on_the_decode_node_and_a_long_one_comes_from_the_prefill_node(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport), Cluster(roles=["conductor"]) as c:
                self.start(c, "p0", "d0", flags=["--dtype", "f32", "--transport", transport])
                short, long = Random(1).ids(LIMIT), Random(2).ids(LIMIT + 1)
                self.check(c, short, 40, True)
                self.check(c, long, 20, False)
                self.check(c, Random(3).ids(1), 2, True)
                self.check(c, Random(4).ids(64), 8, True)  # a whole block
                self.check(c, Random(5).ids(70), 8, False, mc={"pin": {"prefill": "p0"}})
                # The next turn of the conversation: the decode node has the blocks of prompt and answer.
                talk = short + oracle(short, 40) + Random(6).ids(30)
                turn = self.check(c, talk + oracle(talk, 1), 5, True)
                self.assertEqual(cached(turn), 128, turn)
                self.check_what_is_shown(c)
                c.wait_quiet()
                for name in ("p0", "d0"):
                    self.assertEqual(c.metric(name, "mc_checksum_failures_total"), 0, name)

    def check_what_is_shown(self, c):
        until(lambda: c.metric("d0", "vllm:prefix_cache_hits_total") == 128, 60, "hits of d0")
        self.assertEqual(c.metric("d0", "mc_inlined_total"), 4)
        prompts = LIMIT + 1 + 64 + LIMIT + 40 + 30 + 1
        self.assertEqual(c.metric("d0", "vllm:prompt_tokens_total"), prompts)

        def counted():
            text = c.request("GET", "/metrics")[2].decode()
            return re.findall(r"^mc_inlined_total{.*} (\d+)$", text, re.MULTILINE)

        until(lambda: counted() == ["4"], 60, counted)
        ids = Random(7).ids(40)
        code, out, err = c.verb("explain", "-f", "-", stdin=json.dumps({"prompt": ids, "max_tokens": 3}).encode())
        self.assertEqual(code, 0, err)
        self.assertRegex(out.decode(), r"d0 inlined .*winner")
        self.assertRegex(out.decode(), r"p0 .*slower")
        self.assertRegex(out.decode(), r"decode d0: .*computes the prompt itself")
        self.check(c, ids, 3, True)
        code, out, err = c.verb("why", "--last")
        self.assertEqual(code, 0, err)
        self.assertIn("d0 -> d0", out.decode())
        self.assertRegex(out.decode(), r"d0 inlined ")

    def stream(self, c, ids, count, on_token=lambda tokens: None):
        tokens = []
        body = {"prompt": ids, "max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        for event in c.stream("/v1/completions", body):
            for choice in json.loads(event)["choices"] if event != "[DONE]" else []:
                tokens += choice.get("token_ids") or []
            on_token(tokens)
        return tokens

    def test_prompts_beside_running_answers_change_none_of_them(self):
        with Cluster(roles=["conductor"]) as c:
            self.start(c, "p0", "d0")
            lengths = [5, 200, 64, LIMIT, 31, 130, 90, 2]
            prompts = [Random(20 + i).ids(length) for i, length in enumerate(lengths)]
            with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
                answers = list(pool.map(lambda ids: self.stream(c, ids, 40), prompts))
            for ids, tokens in zip(prompts, answers):
                self.assertEqual(tokens, oracle(ids, 40))
            until(lambda: c.metric("d0", "mc_inlined_total") >= 1, 60, "an inlined prompt")
            c.wait_quiet()

    def test_a_killed_decode_node_costs_an_inlined_request_nothing_but_time(self):
        with Cluster(roles=["conductor"]) as c:
            self.start(c, "p0", "d0", "d1")
            killed = []

            def kill(tokens):
                if len(tokens) < 3 or killed:
                    return
                busy = [n["id"] for n in c.cluster()["nodes"] if n["requests"] > 0]
                if not busy:  # the answer is complete: this client read it late
                    return
                self.assertEqual(len(busy), 1, busy)  # no prefill node has a part in it
                killed.append(busy[0])
                c.processes[busy[0]].kill()

            for seed in range(30, 50):
                ids = Random(seed).ids(50)
                self.assertEqual(self.stream(c, ids, 300, kill), oracle(ids, 300))
                if killed:
                    break
            self.assertTrue(killed, "each of 20 answers was complete before its node was killed")
            self.assertIn(killed[0], ("d0", "d1"))
            left = "d1" if killed[0] == "d0" else "d0"
            answer = self.check(c, Random(50).ids(20), 5, True)
            self.assertEqual(answer["mc"]["decode_node"], left)

    def test_a_lost_prefill_node_takes_no_inlined_answer_with_it(self):
        with Cluster(roles=["conductor"]) as c:
            self.start(c, "p0", "d0")
            ids = Random(40).ids(50)
            killed = []

            def kill(tokens):
                if len(tokens) >= 3 and not killed:
                    killed.append("p0")
                    c.processes["p0"].kill()

            self.assertEqual(self.stream(c, ids, 200, kill), oracle(ids, 200))
            self.assertEqual(killed, ["p0"])
            until(lambda: c.metric("d0", "mc_inlined_total") == 1, 60, "the inlined prompt")

    def test_workers_with_modelled_times_compute_short_prompts_too(self):
        with Cluster(roles=["conductor"]) as c:
            for name in ("p0", "d0"):
                inline = ["--inline-tokens", str(LIMIT)] if name == "d0" else []
                c.start(name, "--runner", f"costed:{self.cost}", *inline)
            c.wait_nodes()
            ids = Random(50).ids(80)
            answer = c.complete(ids=ids, max_tokens=30)
            self.assertEqual(token_ids(answer), standin_answer(ids, 30))
            self.assertEqual(answer["mc"]["prefill_node"], "d0", answer["mc"])
            talk = ids + token_ids(answer)
            turn = c.complete(ids=talk, max_tokens=5)
            self.assertEqual(token_ids(turn), standin_answer(talk, 5))
            self.assertEqual((turn["mc"]["prefill_node"], cached(turn)), ("d0", 64), turn["mc"])
            c.wait_quiet()

    @unittest.skipIf(cluster.is_sanitized(), "the emulator takes minutes with a sanitizer")
    def test_prompts_share_passes_with_decode_rows_on_a_device(self):
        flags = ["--model", cluster.shallow_model(), "--dtype", "bf16", "--threads", "1"]
        emu = [*flags, "--device", "emu"]
        with Cluster(roles=["conductor"], conductor=flags[:2]) as c:
            c.start("p0", *flags, "--cost", self.cost)
            self.start(c, "d0", flags=emu)
            prompts = [Random(60 + i).ids(length, vocab=1000) for i, length in enumerate((70, 9, 33))]
            with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
                answers = list(pool.map(lambda ids: c.complete(ids=ids, max_tokens=4), prompts))
            for ids, answer in zip(prompts, answers):
                self.assertEqual(token_ids(answer), oracle(ids, 4, *flags[:2], "--threads", "1", dtype="bf16"))
            until(lambda: c.metric("d0", "mc_inlined_total") >= 1, 60, "an inlined prompt")
            c.wait_quiet()


if __name__ == "__main__":
    unittest.main(verbosity=2)

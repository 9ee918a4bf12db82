#!/usr/bin/env python3
"""A pair of nodes whose transfers all fail, between real processes: its requests are answered by other pairs, a few
of them after a retry; it is set aside, said so everywhere, and probed by one request at a time."""

import concurrent.futures
import json
import os
import tempfile
import unittest

import cluster
from attack import count
from cluster import Cluster, Random, oracle, quick_profile, token_ids, until

WORKER = ["--dtype", "f32", "--transport", "tcp"]
WAVES, WAVE = count(12, 120), 6
# Three failures in a row open the breaker; requests that were under way fail with them, and each probe that fails opens
# it again after a longer back-off: no more than ten fit the hours that a test may take. A node that the host kept
# silent for 3 s registers again, with a clean record: once is allowed.
FAILURES_MAX = 2 * (3 + WAVE) + 10


class Pairs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def cost(self, name, step_s):
        """Costs that a decode node announces in place of those it measures: placement prefers no node by chance."""
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as file:
            file.write(quick_profile(prefill_s=1e-4, step_s=step_s, row_s=step_s / 10))
        return ["--cost", path]

    def start(self, *more):
        """d0, whose every read fails, is the node that placement prefers."""
        c = Cluster(roles=["conductor"])
        self.addCleanup(c.close)
        c.start("p0", *WORKER)
        c.start("d0", *WORKER, "--transfer-faults", "fail=1", *self.cost("d0", 1e-5))
        for name in more:
            c.start(name, *WORKER, *self.cost(name, 1e-2))
        c.wait_nodes()
        return c

    def test_a_pair_that_fails_is_set_aside_and_costs_few_requests_a_retry(self):
        c = self.start("d1")
        prompts = [Random(n).ids(100) for n in range(4)]
        expected = [oracle(ids, 3) for ids in prompts]
        attempts, retried = [], None

        def ask(n):
            answer = c.complete(ids=prompts[n % 4], max_tokens=3, mc={"no_cache": True})
            self.assertEqual(token_ids(answer), expected[n % 4])
            return answer

        with concurrent.futures.ThreadPoolExecutor(WAVE) as pool:
            for _ in range(WAVES):
                for answer in pool.map(ask, range(WAVE)):
                    attempts.append(answer["mc"]["attempts"])
                    retried = answer["id"] if answer["mc"]["attempts"] > 1 else retried
        self.assertLessEqual(max(attempts), 2, attempts)
        self.assertLessEqual(sum(n - 1 for n in attempts), FAILURES_MAX, attempts)
        self.assertGreaterEqual(sum(n - 1 for n in attempts), 3, attempts)
        (breaker,) = c.cluster()["breakers"]
        self.assertEqual((breaker["prefill"], breaker["decode"]), ("p0", "d0"))
        self.assertIn(breaker["state"], ("open", "half_open"))
        self.assertIn(b"pair p0 -> d0 is set aside", c.verb("ps")[1])
        log = c.processes["conductor"].text()
        self.assertIn("pair of nodes set aside nodes=p0,d0 failures=3", log)

        def counted():  # the page is written a few times a second, the log at once
            page = c.socket_request("GET", "/metrics")[1].decode()
            opened = next(line for line in page.splitlines() if line.startswith("mc_breakers_opened_total"))
            return float(opened.rsplit(" ", 1)[1]) == c.processes["conductor"].text().count("pair of nodes set aside")

        until(counted, 60, "as many openings counted as logged")
        why = c.verb("why", retried)[1].decode()
        self.assertIn("failed on p0 -> d0 in transfer: kv_transfer", why)
        c.wait_quiet()

    @unittest.skipIf(cluster.is_sanitized(), "the emulator takes minutes with a sanitizer")
    def test_a_plan_that_a_device_node_cannot_compute_is_the_clients_400(self):
        model = ["--model", cluster.shallow_model()]
        worker = [*model, "--dtype", "bf16", "--threads", "1", "--cost", "a800-llama3-70b"]
        ids = [5 + i * 7 % 900 for i in range(70)]
        expected = oracle(ids, 8, *model, "--threads", "1", dtype="bf16")
        # A prefill node on the CPU computes every plan: the decode node is the first that cannot.
        for prefill in ("cpu", "emu"):
            with self.subTest(prefill=prefill), Cluster(conductor=model, roles=["conductor"]) as c:
                c.start("p0", *worker, "--device", prefill)
                c.start("d0", *worker, "--device", "emu")
                c.wait_nodes()
                body = {"prompt": ids, "max_tokens": len(expected), "temperature": 0, "ignore_eos": True,
                        "return_token_ids": True}
                stream = c.stream("/v1/completions", body)
                events = [json.loads(next(stream))]  # it is decoded from here on
                for n in range(5):
                    answer = c.complete(ids=[9 + n, *ids[:20]], max_tokens=3, expect=400,
                                        mc={"attention": f"moba:block=64,top_k={(18, 1024)[n % 2]}"})
                    self.assertEqual(answer["error"]["code"], "invalid_value", answer)
                    self.assertRegex(answer["error"]["message"], "top_k is .*, at most 17")
                    self.assertEqual(c.cluster()["breakers"], [])
                events += [json.loads(data) for data in stream if data != "[DONE]"]
                self.assertEqual([e for e in events if "error" in e], [])
                got = [i for e in events for choice in e["choices"] for i in choice.get("token_ids") or []]
                self.assertEqual(got, expected)
                self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=2)), expected[:2])
                c.wait_quiet()

    def test_where_there_is_no_other_pair_the_client_is_told_of_the_transfer_and_never_blamed(self):
        c = self.start()
        for _ in range(5):
            # Each attempt's prefill makes one token, so the answer must be longer than the attempts are many.
            body = {"prompt": Random(4).ids(90), "max_tokens": 30, "ignore_eos": True}
            status, _, answer = c.post("/v1/completions", body)
            self.assertEqual((status, answer["error"]["code"]), (503, "node_failed"), answer)
        self.assertIn(c.cluster()["breakers"][0]["state"], ("open", "half_open"))
        # It works again: the next request finds out, whatever is left of the back-off.
        c.processes["d0"].kill()
        c.processes["d0"].stop()
        c.start("d0", *WORKER)
        until(lambda: c.cluster()["breakers"] == [], 60, "a new process has a clean record")
        c.wait_nodes()
        ids = Random(5).ids(90)
        self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=3)), oracle(ids, 3))


if __name__ == "__main__":
    unittest.main(verbosity=2)

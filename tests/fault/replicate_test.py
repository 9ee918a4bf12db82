#!/usr/bin/env python3
"""Copies of hot prefixes ahead of demand, between real processes with modelled times: one arrives within its budget and
is used; kill -9 of its target or its source in the middle of it loses no request, gives the budget back, leaves no page
or lease behind, and the next copy comes about."""

import concurrent.futures
import http.client
import json
import os
import tempfile
import unittest

from cluster import Cluster, Random, token_ids, until
from costed_test import standin_answer

# A prompt takes a second whatever its length, and the KV of a token two and a half milliseconds on the network. A node
# with the stalled profile takes minutes for a copy, which therefore fails by its own time limit (10 s) and is ordered
# again: whenever a test looks, a copy to that node is under way or the next one can be had by asking.
PROFILE = """
name = "slow-net"
[node]
layers = 8
kv_bytes_per_token = 1000000
kv_capacity_tokens = 65536
dram_bytes = 65536000000
context_tokens = 20000
chunk_tokens = 512
[paths.net]
bytes_per_s = {bytes_per_s}
[prefill]
fixed_s = 1
s_per_token = 1e-4
[decode]
fixed_s = 5e-3
s_per_row = 1e-4
"""
PREFIX = 1280  # of which 16 blocks are copied: popularity looks at 12, 16, 24, ... blocks
COPIED = 16
# A second of work each: 22 of them make a prefix hot, by what they will take.
SUFFIX, HOT = 20, 24
TIMEOUT_S = 30


class Replicate(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.runner = self.costed("slow", "4e8")
        self.stalled = self.costed("stalled", "4e6")
        # affinity never fetches: only a copy brings the prefix to another node.
        self.conductor = ["--policy", "affinity", "--replicate", "3"]
        self.random = Random(21)
        self.prefix = self.random.ids(PREFIX)
        self.clients = []
        self.addCleanup(self.hang_up)

    def costed(self, name, bytes_per_s):
        profile = os.path.join(self.folder.name, f"{name}.toml")
        with open(profile, "w") as file:
            file.write(PROFILE.format(bytes_per_s=bytes_per_s))
        return ["--runner", f"costed:{profile}"]

    def hang_up(self):
        while self.clients:
            self.clients.pop().close()

    def warm(self, c):
        """The prefix is on p0, and on the decode node, so that requests send it little."""
        c.complete(ids=self.prefix + [5], max_tokens=4, mc={"pin": {"prefill": "p0"}})

    def ask(self, c, count):
        """Requests of the prefix that nobody waits for: their connections stay open until hang_up()."""
        before = c.cluster()["totals"]["submitted"]
        for _ in range(count):
            client = http.client.HTTPConnection("127.0.0.1", c.url_port, timeout=TIMEOUT_S)
            body = {"prompt": self.prefix + self.random.ids(SUFFIX), "max_tokens": 1, "ignore_eos": True}
            client.request("POST", "/v1/completions", json.dumps(body).encode())
            self.clients.append(client)
        until(lambda: c.cluster()["totals"]["submitted"] >= before + count, TIMEOUT_S, "they are placed")

    def ask_unless_copying(self, c):
        if c.cluster()["copying"] == 0:
            self.ask(c, 1)

    def catch_copy(self, c, target):
        """A copy to the node, which has the stalled profile, is under way; nothing ends it soon but what we do."""

        def caught():
            self.ask_unless_copying(c)
            return c.cluster()["copying"] and c.node(target)["pages_private"] >= COPIED

        until(caught, TIMEOUT_S, "a copy under way")

    def totals(self, c):
        return {k: v for k, v in c.cluster()["totals"].items() if k.startswith("cop")}

    def ended(self, c, copies, failed):
        """So many copies have arrived, and at least so many have failed."""
        until(
            lambda: self.totals(c)["copies"] == copies and self.totals(c)["copies_failed"] >= failed,
            TIMEOUT_S,
            f"{copies} copies and {failed} failed",
        )

    def start(self, prefill, *conductor, stalled=()):
        c = Cluster(roles=["conductor"], conductor=[*self.conductor, *self.runner, *conductor])
        self.addCleanup(c.close)
        self.addCleanup(self.hang_up)
        for name in [f"p{i}" for i in range(prefill)] + ["d0"]:
            self.start_node(c, name, self.stalled if name in stalled else self.runner)
        c.wait_nodes()
        return c

    def start_node(self, c, name, runner):
        c.start(name, *runner, "--drain-timeout", "1s")

    def test_a_hot_prefix_is_copied_once_within_a_small_budget_and_used_there(self):
        c = self.start(3, "--replicate-rate", "16")
        self.warm(c)
        self.ask(c, HOT)
        self.ended(c, 1, 0)

        def holder():
            nodes = [n["id"] for n in c.cluster()["nodes"] if n["blocks_indexed"] >= COPIED]
            return next((n for n in nodes if n not in ("p0", "d0")), None)

        target = until(holder, TIMEOUT_S, "the copy is in the index")
        self.ask(c, 3)  # a third node would be worth it, but for the budget's debt of many minutes
        self.assertEqual(c.cluster()["copying"], 0)
        self.hang_up()
        ids = self.prefix + self.random.ids(40)
        answer = c.complete(ids=ids, max_tokens=6, mc={"pin": {"prefill": target}})
        self.assertEqual(token_ids(answer), standin_answer(ids, 6))
        self.assertEqual(answer["mc"]["cached_local_tokens"], COPIED * 64)
        self.assertEqual(self.totals(c), {"copies": 1, "copied_blocks": COPIED, "copies_failed": 0})
        self.assertIn(b'"copies":1', c.verb("ps", "--json")[1])
        c.wait_quiet()

    def test_kill_9_of_the_target_gives_the_budget_back_and_the_next_copy_is_made(self):
        c = self.start(2, "--replicate-rate", "16", stalled=["p1"])
        self.warm(c)
        self.ask(c, HOT)
        self.catch_copy(c, "p1")
        c.processes["p1"].kill()
        self.ended(c, 0, 1)
        c.processes["p1"].stop()
        self.start_node(c, "p1", self.runner)
        c.wait_nodes()
        # After a failure none is made for a second; then each request looks again.
        until(lambda: self.totals(c)["copies"] or self.ask_unless_copying(c), 2 * TIMEOUT_S, "another copy")
        self.assertGreaterEqual(self.totals(c)["copies_failed"], 1)
        self.hang_up()
        c.wait_quiet()

    def test_kill_9_of_the_source_loses_no_request_and_leaves_no_page_behind(self):
        c = self.start(2, stalled=["p1"])
        self.warm(c)
        self.ask(c, HOT)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            prompts = [self.prefix + self.random.ids(50) for _ in range(2)]
            pin = {"pin": {"prefill": "p0"}}
            before = c.cluster()["totals"]["submitted"]
            answers = [pool.submit(c.complete, ids=ids, max_tokens=5, mc=pin) for ids in prompts]
            until(lambda: c.cluster()["totals"]["submitted"] >= before + 2, TIMEOUT_S, "all are placed")
            self.catch_copy(c, "p1")
            # With nothing leaving two holders, the first one by name is read; every request needs it as well.
            # The copy may have ended since, at its own time limit.
            until(lambda: c.node("d0")["leases"] or self.ask_unless_copying(c), TIMEOUT_S, "d0 has leased the blocks")
            c.processes["d0"].kill()
            c.processes["d0"].stop()
            self.start_node(c, "d0", self.runner)  # at once, as requests wait 10 s for a decode node
            self.hang_up()
            self.ended(c, 0, 1)
            for ids, answer in zip(prompts, answers):
                self.assertEqual(token_ids(answer.result(TIMEOUT_S)), standin_answer(ids, 5))
        c.wait_nodes()
        c.wait_quiet()  # the target's pages were given back too
        self.assertEqual(c.metric("p1", "mc_checksum_failures_total"), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

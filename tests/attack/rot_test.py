#!/usr/bin/env python3
"""Cached KV that changes in the memory of a live node: the answer is right, and the block is counted, dropped and made
again.

The test changes the pool of a live process through /proc/PID/mem, as bad memory would: the shared memory itself is
sealed against writers other than its owner. Where that file may not be opened, the test skips with its reason.
"""

import os
import unittest

from cluster import Cluster, Random, cached, oracle, token_ids, until

WORKER = ["--dtype", "f32", "--kv-mem", "64MiB"]
PAGE = 4096
FETCH = ["--fetch-rule", "threshold"]


def rot(pid):
    """Turns the signs of 16 numbers in each 4 KiB of the pool that holds anything; returns how many."""
    flipped = 0
    with open(f"/proc/{pid}/maps") as maps:
        areas = [line.split()[0] for line in maps if "mct-kv" in line and line.split()[1].startswith("rw")]
    assert areas, f"process {pid} has no KV arena"
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    except PermissionError as error:
        raise unittest.SkipTest(f"the memory of another process may not be changed here: {error}") from None
    try:
        for area in areas:
            begin, end = (int(part, 16) for part in area.split("-"))
            for at in range(begin, end, PAGE):
                first = os.pread(memory, 64, at)
                if first.count(0) == 64:
                    continue
                # The last byte of a little-endian f32 has its sign.
                os.pwrite(memory, bytes(b ^ (0x80 if i % 4 == 3 else 0) for i, b in enumerate(first)), at)
                flipped += 1
    finally:
        os.close(memory)
    return flipped


class Rot(unittest.TestCase):
    def setUp(self):
        self.c = Cluster(roles=["conductor"], conductor=FETCH)
        self.addCleanup(self.c.close)
        for name in ("p0", "d0"):
            self.c.start(name, *WORKER)
        self.c.wait_nodes()
        self.ids = Random(31).ids(400)
        self.expected = oracle(self.ids, 12)
        self.c.complete(ids=self.ids, max_tokens=2)
        self.c.wait_quiet()

    def ask(self, **fields):
        answer = self.c.complete(ids=self.ids, max_tokens=12, **fields)
        self.assertEqual(token_ids(answer), self.expected, answer["mc"])
        return answer

    def test_the_prefill_nodes_cache_is_checked_each_time_it_is_used(self):
        c, p0 = self.c, self.c.processes["p0"].popen.pid
        self.assertEqual(cached(self.ask()), 384)
        before = c.metric("p0", "mc_checksum_failures_total")
        for turn in range(2):  # used before, and checked then: a later change is found as well
            c.wait_quiet()
            self.assertGreater(rot(p0), 6)
            answer = self.ask()
            self.assertGreaterEqual(answer["mc"]["attempts"], 2, answer["mc"])
            self.assertEqual(answer["mc"]["miss_reason"], "checksum", answer["mc"])
            self.assertEqual(cached(answer), 0)
            c.wait_quiet()
            self.assertEqual(c.metric("p0", "mc_checksum_failures_total"), before + 6 * (turn + 1))
            self.assertEqual(cached(self.ask()), 384)  # it was made again

    def test_the_decode_nodes_cache_is_checked_when_a_request_joins(self):
        c, d0 = self.c, self.c.processes["d0"].popen.pid
        self.ask()
        c.wait_quiet()
        before = c.metric("d0", "mc_checksum_failures_total")
        self.assertGreater(rot(d0), 6)
        answer = self.ask()
        self.assertEqual(cached(answer), 384)  # on the prefill node, where nothing changed
        c.wait_quiet()
        self.assertGreaterEqual(c.metric("d0", "mc_checksum_failures_total"), before + 6)
        record = c.operate("GET", "/requests/" + answer["id"])
        self.assertEqual([f["reason"] for f in record["failed_attempts"]], ["corrupt"])

    def test_a_reader_of_another_nodes_cache_computes_instead(self):
        c = self.c
        c.start("p1", *WORKER)
        c.wait_nodes()
        rot(c.processes["p0"].popen.pid)
        rot(c.processes["d0"].popen.pid)
        # p1 has nothing and fetches from p0 or d0; what arrives is checked before it is used. Then d0 finds its own.
        answer = self.ask(mc={"pin": {"prefill": "p1"}})
        self.assertEqual(answer["mc"]["cached_remote_tokens"], 0)
        c.wait_quiet()
        self.assertGreaterEqual(c.metric("p1", "mc_checksum_failures_total"), 1)
        self.assertGreaterEqual(c.metric("p1", "mc_fallback_total"), 1)


class RotInPipelines(unittest.TestCase):
    STAGES = 3

    def replace_decode(self, c):
        former = c.node("d0")["instance"]
        c.processes["d0"].kill()
        c.processes["d0"].close()
        c.start("d0", *WORKER)

        def is_there():
            nodes = [n for n in c.cluster()["nodes"] if n["id"] == "d0" and n["state"] == "ready"]
            return any(n["instance"] != former for n in nodes)

        until(is_there, 60, "the new d0")

    def test_every_stages_cached_layers_are_checked_each_time_they_are_used(self):
        c = Cluster(roles=["conductor"], conductor=FETCH)
        self.addCleanup(c.close)
        for number in range(self.STAGES):
            name = f"p0.{number}" if number else "p0"
            words = ["mc-prefill", "--name", "p0", "--pipeline", f"{number}/{self.STAGES}", "--threads", "1"]
            c.processes[name] = c.spawn([*words, "--http", "127.0.0.1:0", "--json", *WORKER])
        c.start("d0", *WORKER)
        c.wait_nodes()
        ids = Random(32).ids(400)
        expected = oracle(ids, 12)
        c.complete(ids=ids, max_tokens=2)
        for name, decode_forgets in [("p0.1", True), ("p0.2", True), ("p0.1", False), ("p0", False), ("p0.2", False)]:
            with self.subTest(stage=name, decode_forgets=decode_forgets):
                c.wait_quiet()
                if decode_forgets:  # then the decode node reads the bad blocks too, and may find them first
                    self.replace_decode(c)
                before = c.metric("p0", "mc_checksum_failures_total")
                self.assertGreater(rot(c.processes[name].popen.pid), 6)
                answer = c.complete(ids=ids, max_tokens=12)
                self.assertEqual(token_ids(answer), expected, answer["mc"])
                self.assertEqual(cached(answer), 0)
                self.assertEqual(answer["mc"]["miss_reason"], "checksum", answer["mc"])
                c.wait_quiet()
                # On a busy host the decode node may read the bad blocks in every attempt before the stage has checked
                # its own. The last attempt reuses none then, and they leave the cache after the answer.
                until(lambda: c.metric("p0", "mc_checksum_failures_total") == before + 6, 60, "six failed checksums")
                until(lambda: cached(c.complete(ids=ids, max_tokens=2)) == 384, 60, "the blocks were made again")


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""The time of day jumps by an hour, forwards and back, under running programs: no deadline, lease, heartbeat or ticket
comes early or late. Timestamps of logs and the field `created` follow the time of day.

The programs run with a shim that moves their CLOCK_REALTIME; the test itself does not.
"""

import concurrent.futures
import json
import os
import struct
import sys
import time
import unittest

import attack
from cluster import Cluster, Random, cached, oracle, run, token_ids, until

HOUR_S = 3600
STEPS_S = [HOUR_S, 0, -HOUR_S, 0]
SOME_STEPS_S = attack.count(STEPS_S[2:], STEPS_S)
GRACE_S = 15  # beyond a deadline, on a machine that is crowded
WORKER = ["--dtype", "f32", "--kv-mem", "64MiB", "--threads", "1", "--fetch-timeout", "60s"]
DEADLINE_S = 600  # of what ends by itself much earlier


def move_clock(path, seconds):
    """Sets by how much the programs' time of day differs from this one."""
    with open(path, "r+b" if os.path.exists(path) else "w+b") as file:
        file.write(struct.pack("=q", seconds))


class Clock(unittest.TestCase):
    def setUp(self):
        self.c = c = Cluster()
        self.addCleanup(c.close)
        attack.preload(self, c, "clock_shim.c")
        self.offset = os.path.join(c.dir, "offset")
        self.move(0)
        c.env.update(MC_CLOCK_OFFSET=self.offset)
        c.start("conductor", "--fetch-rule", "threshold")
        for name in ("p0", "p1", "d0"):
            c.start(name, *WORKER)
        c.start("c0", "--dram", "32MiB")
        c.wait_nodes()
        random = Random(7)
        self.prompts = [random.ids(200) for _ in range(4)]
        self.expected = [oracle(ids, 200) for ids in self.prompts]

    def move(self, seconds):
        move_clock(self.offset, seconds)

    def instances(self):
        return {n["id"]: n["instance"] for n in self.c.cluster()["nodes"] if n["state"] == "ready"}

    def stream(self, ids):
        """Token ids of one streamed answer, by its own deadline."""
        body = {"prompt": ids, "max_tokens": 200, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
                "mc": {"deadline_ms": DEADLINE_S * 1000}}
        got = []
        for data in self.c.stream("/v1/completions", body, timeout=DEADLINE_S + 60):
            if data == "[DONE]":
                return got
            event = json.loads(data)
            self.assertNotIn("error", event)
            got += event["choices"][0].get("token_ids") or []
        self.fail("the stream ended without its end")

    def losses(self):
        """How often nodes have left the cluster or have registered a second time, by the logs of both sides."""
        workers = [process for name, process in self.c.processes.items() if name != "conductor"]
        again = sum(process.text().count("registered again") for process in workers)
        return again + self.c.processes["conductor"].text().count("node left")

    def check_step(self, pool, step):
        """Streams across a step, a request after it and some heartbeats."""
        c = self.c
        streams = [pool.submit(self.stream, ids) for ids in self.prompts]
        until(lambda: c.cluster()["requests_unfinished"] or all(s.done() for s in streams), 60, "streams run")
        self.move(step)
        for stream, expected in zip(streams, self.expected):
            self.assertEqual(stream.result(timeout=DEADLINE_S + 60), expected)
        answer = c.complete(ids=self.prompts[0], max_tokens=4)
        self.assertAlmostEqual(answer["created"], time.time() + step, delta=HOUR_S / 2)
        beats = {n["id"]: n["heartbeats"] for n in c.cluster()["nodes"]}
        until(lambda: all(n["heartbeats"] > beats.get(n["id"], 0) + 2 for n in c.cluster()["nodes"]), 60, "heartbeats")

    def loses_nobody(self, pool, former, step, members):
        """One try of a step. False when a node left, as one does that this host kept silent for 3 s."""
        self.move(former)
        until(lambda: self.instances() == members, 60, "all nodes are members")
        losses = self.losses()
        try:
            self.check_step(pool, step)
            self.assertEqual(self.instances(), members)
        except AssertionError:
            if self.losses() == losses:
                raise
        return self.losses() == losses

    def test_requests_under_way_neither_end_early_nor_late(self):
        c, former = self.c, 0
        members = self.instances()
        self.assertEqual(set(members), {"p0", "p1", "d0", "c0"})
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for step in STEPS_S * attack.count(1, 10):
                if not any(self.loses_nobody(pool, former, step, members) for _ in range(5)):
                    self.fail(f"at each of five steps to {step:+} s a node left\n{c.processes['conductor'].tail()}")
                former = step
        self.assertEqual(c.leftovers() and c.wait_quiet() and c.leftovers(), [])

    def test_a_deadline_is_kept_across_a_step(self):
        for step in SOME_STEPS_S:
            began = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                body = {"prompt": self.prompts[0], "max_tokens": 7900, "temperature": 0, "ignore_eos": True,
                        "mc": {"deadline_ms": 500}}
                asked = pool.submit(self.c.request, "POST", "/v1/completions", body)
                until(lambda: self.c.cluster()["requests_unfinished"] or asked.done(), 60, "the request is there")
                self.move(step)
                status, _, data = asked.result(timeout=120)
            took = time.monotonic() - began
            print(f"step to {step:+} s: {status} after {took * 1e3:.0f} ms", file=sys.stderr)
            self.assertEqual(status, 504, data[:300])
            self.assertGreaterEqual(took, 0.5)
            self.assertLess(took, 0.5 + GRACE_S)

    def test_blocks_are_leased_from_another_node_after_a_step(self):
        c, random = self.c, Random(8)
        for step in SOME_STEPS_S:
            ids = random.ids(600)
            first = c.complete(ids=ids, max_tokens=4, mc={"pin": {"prefill": "p0"}})
            c.wait_quiet()
            self.move(step)
            again = c.complete(ids=ids, max_tokens=4, mc={"pin": {"prefill": "p1"}})
            self.assertEqual(token_ids(again), token_ids(first))
            self.assertEqual(cached(again), 576)
            c.wait_quiet()

    def test_programs_that_start_after_a_step_join_as_before(self):
        c = self.c
        for step in SOME_STEPS_S:
            self.move(step)
            for name in ("d0", "conductor"):
                former = self.instances().get(name)
                c.processes[name].kill()
                c.processes[name].close()
                c.start(name, *(WORKER if name == "d0" else ["--fetch-rule", "threshold"]))
                until(lambda: self.is_whole(name, former), 60, f"all nodes, after {name} came back")
                tokens = attack.count(50, 200)
                answer = c.complete(ids=self.prompts[0], max_tokens=tokens)
                self.assertEqual(token_ids(answer), self.expected[0][:tokens])

    def is_whole(self, name, former):
        try:
            ready = self.instances()
        except OSError:
            return False
        return set(ready) == {"p0", "p1", "d0", "c0"} and (former is None or ready[name] != former)


class DurableValues(unittest.TestCase):
    """Times to live of values on disk. Disks keep them as times of day, and a process that runs does not look there."""

    def setUp(self):
        self.c = c = Cluster()
        self.addCleanup(c.close)
        attack.preload(self, c, "clock_shim.c")
        self.offset = os.path.join(c.dir, "offset")
        move_clock(self.offset, 0)
        c.env.update(MC_CLOCK_OFFSET=self.offset)
        c.start("conductor")
        self.start()

    def start(self, killed=None):
        disk = ("--ssd", os.path.join(self.c.dir, "ssd") + ":64MiB", "--values-disk", "16MiB")
        self.c.start("c0", "--dram", "16MiB", "--values", "4MiB", *disk).wait_ready()
        here = lambda: any(n["id"] == "c0" and n["instance"] != killed for n in self.c.cluster()["nodes"])
        until(here, 60, "c0 is a member")

    def restart(self, offset):
        """Kills c0, and starts it where the time of day differs by `offset` from this one."""
        killed = self.c.node("c0")["instance"]
        self.c.processes["c0"].kill()
        self.c.processes["c0"].close()
        move_clock(self.offset, offset)
        self.start(killed)

    def put(self, key, ttl):
        code, _, err = run("mc-cache", "put", "c0", key, "-", "--durability", "d2", "--ttl", ttl, stdin=key.encode(),
                           env=self.c.env)
        self.assertEqual(code, 0, err)

    def get(self, key):
        """The value, or None."""
        code, out, err = run("mc-cache", "get", "c0", key, env=self.c.env)
        if code == 0:
            return out.decode()
        self.assertIn("MC4007", err)
        return None

    def left(self, key):
        """Seconds that the value has to live."""
        code, out, err = run("mc-cache", "ls", "c0", "--keys", "--json", env=self.c.env)
        self.assertEqual(code, 0, err)
        rows = [json.loads(line) for line in out.splitlines()[:-1]]
        return next(row["ttl_ms"] for row in rows if row["key"] == key) / 1000

    def assert_left(self, key, seconds):
        left = self.left(key)
        self.assertLessEqual(left, seconds + 1)
        self.assertGreater(left, seconds - 600)  # this test takes less, on a machine that is crowded

    def test_a_step_under_a_running_node_ends_no_durable_value_early_or_late(self):
        self.put("half", "30m")
        self.put("two", "2h")
        for step in STEPS_S:
            move_clock(self.offset, step)
            self.put(f"brief{step}", "1s")
            began = time.monotonic()
            until(lambda key=f"brief{step}": self.get(key) is None, 60, "a time to live of 1 s is over")
            self.assertLess(time.monotonic() - began, 1 + GRACE_S)
            self.assertEqual((self.get("half"), self.get("two")), ("half", "two"))
            self.assert_left("half", HOUR_S / 2)
            self.assert_left("two", 2 * HOUR_S)

    def test_a_node_that_starts_after_a_step_ends_durable_values_by_the_time_of_day(self):
        self.put("half", "30m")
        self.put("two", "2h")
        self.restart(HOUR_S)  # forwards: an hour of each time to live is over
        self.assertIsNone(self.get("half"))
        self.assertEqual(self.get("two"), "two")
        self.assert_left("two", HOUR_S)
        self.restart(0)  # and back: an hour is won, and a value that has ended does not come back
        self.assertIsNone(self.get("half"))
        self.assertEqual(self.get("two"), "two")
        self.assert_left("two", 2 * HOUR_S)
        self.put("half", "30m")
        self.restart(-HOUR_S)
        self.assert_left("half", 1.5 * HOUR_S)
        self.assert_left("two", 3 * HOUR_S)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Leases between real nodes by channel and by control: who carries them, equal tokens, losses, and bad neighbours."""

import concurrent.futures
import signal
import threading
import unittest

from cluster import Cluster, Random, count, oracle, run, token_ids, until

FETCH = ["--fetch-rule", "threshold"]
P0 = {"pin": {"prefill": "p0", "decode": "d0"}}
P1 = {"pin": {"prefill": "p1", "decode": "d0"}}
CARRIERS = ("channel", "control")


def asked(c, node):
    """Lease requests of a node by carrier."""
    return {carrier: c.metric(node, "mc_lease_requests_total", f'carrier="{carrier}"') for carrier in CARRIERS}


def evict(c, node):
    code, _, err = run("mc-cache", "evict", node, "--all", env=c.env)
    assert code == 0, err
    until(lambda: c.node(node)["blocks_indexed"] == 0, 60, "the index hears of it")


class Leases(unittest.TestCase):
    def fetch(self, c, seed, turns):
        """p1 reads prefixes that p0 or d0 has, one after the other."""
        ids = Random(seed).ids(400)
        c.complete(ids=ids + [11], max_tokens=2, mc=P0)
        for turn in range(turns):
            c.wait_quiet()
            answer = c.complete(ids=ids + [12 + turn, 13], max_tokens=8, mc=P1)
            self.assertEqual(token_ids(answer), oracle(ids + [12 + turn, 13], 8), answer["mc"])
            self.assertFalse(answer["mc"]["fallback"], answer["mc"])
            self.assertEqual(answer["mc"]["cached_remote_tokens"], 384, answer["mc"])
            evict(c, "p1")
        c.wait_quiet()  # no page, pin or lease is left

    def serve(self, transport, lease_by, tries=1):
        """The requests of four fetches by carrier, and all calls and all requests over a channel. More tries, until a
        request goes over a channel: on a busy machine a channel may open after the last fetch."""
        worker = ["--dtype", "f32", "--transport", transport] + (["--lease-by", lease_by] if lease_by else [])
        with Cluster("2p1d", conductor=FETCH, worker=worker) as c:
            for turn in range(tries):
                before = asked(c, "p1")
                self.fetch(c, 31 + turn, turns=4)
                until(lambda: sum(asked(c, "p1").values()) >= sum(before.values()) + 4, 60, "the metrics say so")
                requests = {carrier: now - before[carrier] for carrier, now in asked(c, "p1").items()}
                if requests["channel"]:
                    break
            served = sum(c.metric(n, "mc_lease_calls_total", 'event="served"') for n in ("p0", "d0"))
            for node in ("p0", "p1", "d0"):
                self.assertEqual(c.metric(node, "mc_lease_calls_total", 'event="refused"'), 0)
                self.assertEqual(c.metric(node, "mc_checksum_failures_total"), 0)
            return requests, served, asked(c, "p1")["channel"]

    def test_requests_after_the_first_go_over_the_channel_where_there_is_one(self):
        for transport, lease_by in (("shm", "auto"), ("shm", "channel"), ("tcp", "channel")):
            with self.subTest(transport=transport, lease_by=lease_by):
                requests, served, sent = self.serve(transport, lease_by, tries=5)
                # The holder may be p0 or d0, and the first request to each of them opens the channel.
                self.assertGreaterEqual(requests["channel"], 1, requests)
                self.assertLessEqual(requests["control"], 3, requests)
                self.assertEqual(served, sent)

    def test_requests_go_by_control_over_tcp_and_where_the_user_says_so(self):
        for transport, lease_by in (("tcp", "auto"), ("shm", "control"), ("shm", None)):
            with self.subTest(transport=transport, lease_by=lease_by):
                requests, served, _ = self.serve(transport, lease_by)
                self.assertEqual(requests["channel"], 0)
                self.assertEqual(served, 0)

    def test_a_node_that_refuses_channels_serves_readers_that_want_them(self):
        flags = ["--dtype", "f32", "--transport", "shm"]
        with Cluster(roles=["conductor"], conductor=FETCH) as c:
            for name in ("p0", "d0"):
                c.start(name, *flags, "--lease-by", "control")
            c.start("p1", *flags, "--lease-by", "channel")
            c.wait_nodes()
            self.fetch(c, 32, turns=2)
            until(lambda: asked(c, "p1")["control"] >= 2, 60, "the metrics have the requests")
            self.assertEqual(asked(c, "p1")["channel"], 0)

    def test_the_parent_of_a_local_cluster_passes_the_flag_on(self):
        code, out, err = run("mc-conductor", "--local", "1p1d1c", "--lease-by", "control", "--print-commands")
        self.assertEqual(code, 0, err)
        self.assertEqual(out.count(b"--lease-by control"), 3, out)
        code, _, err = run("mc-conductor", "--local", "1p1d", "--lease-by", "pigeon", "--print-commands")
        self.assertEqual(code, 2)
        self.assertIn("pigeon", err)

    def test_a_holder_killed_in_the_middle_of_leases_costs_no_token_and_leaves_nothing(self):
        # Reads take a while, so that leases stand when the holder dies.
        for transport, lease_by in (("shm", "auto"), ("tcp", "channel")):
            flags = ["--dtype", "f32", "--transport", transport, "--lease-by", lease_by]
            with self.subTest(transport=transport), Cluster(roles=["conductor"], conductor=FETCH) as c:
                for name in ("p0", "d0"):
                    c.start(name, *flags)
                c.start("p1", *flags, "--transfer-faults", "delay=0.5:20ms")
                c.wait_nodes()
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    for turn, victim in enumerate(("p0", "d0", "p0")[: count(2, 3)]):
                        self.kill_in_mid_lease(c, pool, Random(40 + turn), victim, flags)
                until(lambda: c.metric("p1", "mc_xfer_quarantined_bytes") == 0, 60, "quarantine")

    def kill_in_mid_lease(self, c, pool, random, victim, flags):
        prefixes = [random.ids(400) for _ in range(4)]
        for ids in prefixes:
            c.complete(ids=ids + [11], max_tokens=2, mc=P0)
        c.wait_quiet()
        before = sum(asked(c, "p1").values())
        pin = P1 if victim == "p0" else {"pin": {"prefill": "p1"}}
        ask = [pool.submit(c.complete, ids=ids + [12, 13], max_tokens=8, mc=pin) for ids in prefixes]
        until(lambda: all(a.done() for a in ask) or sum(asked(c, "p1").values()) > before, 60, "p1 leases")
        killed = c.node(victim)["instance"]
        c.processes[victim].kill()
        c.processes[victim].stop()
        c.start(victim, *flags)
        for ids, future in zip(prefixes, ask):
            answer = future.result(120)
            self.assertEqual(token_ids(answer), oracle(ids + [12, 13], 8), answer["mc"])

        def members():
            return {node["id"] for node in c.cluster()["nodes"] if node["instance"] != killed}

        until(lambda: members() == {"p0", "p1", "d0"}, 60, f"the new {victim} is a member")
        c.wait_quiet()
        evict(c, "p1")

    def test_a_holder_that_stands_still_costs_a_reader_time_alone(self):
        flags = ["--dtype", "f32", "--transport", "shm", "--lease-by", "channel"]
        with Cluster(roles=["conductor"], conductor=FETCH) as c:
            for name in ("p0", "d0", "p1"):
                c.start(name, *flags)
            c.wait_nodes()
            self.fetch(c, 51, turns=3)
            until(lambda: asked(c, "p1")["channel"] > 0, 60, "the channel is in use")
            ids = Random(51).ids(400)
            stopped = c.processes["p0"].popen
            stopped.send_signal(signal.SIGSTOP)
            timer = threading.Timer(1, stopped.send_signal, [signal.SIGCONT])
            timer.start()
            try:
                answer = c.complete(ids=ids + [77, 78], max_tokens=8, mc=P1)
            finally:
                timer.join()
            self.assertEqual(token_ids(answer), oracle(ids + [77, 78], 8), answer["mc"])
            c.wait_quiet()


if __name__ == "__main__":
    unittest.main(verbosity=2)

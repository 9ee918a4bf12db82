#!/usr/bin/env python3
"""Lookups of blocks: by the verb and by HTTP on any node, and over channels by nodes that fill up."""

import json
import os
import tempfile
import unittest

from cluster import Cluster, Random, oracle, run, token_ids, until

BLOCK = 64
FETCH = ["--fetch-rule", "threshold"]
TEXT = " ".join(f"Rule {n}: answer in few words." for n in range(60))


def lookups(c, node, event):
    return c.metric(node, "mc_block_lookups_total", f'event="{event}"')


class Lookups(unittest.TestCase):
    def test_the_verb_says_which_blocks_a_node_has_and_in_which_tier(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(roles=["conductor", "c0"]) as c:
            path = os.path.join(folder, "rules.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(TEXT)
            for verb in ("lookup", "warm"):  # a cache node does not know the model
                code, _, err = run("mc-cache", verb, "c0", "-f", path, env=c.env)
                self.assertEqual(code, 1, err)
                self.assertIn("MC4013", err)
                self.assertIn("no prefill or decode node has joined", err)
            disk = ["--ssd", f"{folder}/kv:1GiB"]
            for name, more in (("p0", disk), ("d0", [])):
                c.start(name, "--dtype", "f32", "--kv-mem", "16MiB", *more)
            c.wait_nodes()

            def look(node, *words):
                code, out, err = run("mc-cache", "lookup", node, *words, "--json", env=c.env)
                self.assertIn(code, (0, 1), err)
                row = json.loads(out)
                self.assertEqual(code, 0 if row["held"] == row["blocks"] else 1)
                return row

            row = look("p0", "-f", path)
            self.assertGreater(row["blocks"], 5)
            self.assertEqual((row["held"], row["leading"]), (0, 0))
            code, _, err = run("mc-cache", "warm", "p0", "-f", path, env=c.env)
            self.assertEqual(code, 0, err)
            row = look("p0", "-f", path)
            self.assertEqual(row["leading"], row["blocks"])
            self.assertTrue(all(tier.startswith("memory") for tier in row["tiers"]), row)
            hashes = row["hashes"]
            self.assertEqual(look("c0", *hashes)["held"], 0)
            row = look("p0", hashes[0], "12" * 16, hashes[1])
            self.assertEqual((row["held"], row["leading"], row["tiers"][1]), (2, 1, "none"))
            code, out, err = run("mc-cache", "lookup", "p0", "-f", path, env=c.env)
            self.assertEqual(code, 0, err)
            self.assertIn(f"{len(hashes)} of {len(hashes)} blocks", out.decode())

            # Other prompts push the blocks out of memory; their copies on disk stay. A block that leaves memory before
            # a slow disk has taken it is lost, and warmed again.
            prompts = [Random(60 + i).ids(12 * BLOCK) for i in range(4)]
            tiers = []

            def all_on_disk():
                if "none" in tiers:
                    run("mc-cache", "warm", "p0", "-f", path, env=c.env)
                for ids in prompts:
                    c.complete(ids=ids, max_tokens=1)
                tiers[:] = look("p0", *hashes)["tiers"]
                return set(tiers) == {"disk"}

            until(all_on_disk, 120, lambda: f"the blocks are on disk alone; they are {tiers}")
            c.wait_quiet()

    def test_wrong_lookups_are_refused(self):
        with Cluster("1p1d") as c:
            for words, text in (
                ((), "no block and no prompt"),
                (("12" * 16, "-f", "-"), "both blocks and a prompt"),
                (("xyz",), "not the id of a block"),
            ):
                code, _, err = run("mc-cache", "lookup", "p0", *words, env=c.env, stdin=b"")
                self.assertEqual(code, 2, err)
                self.assertIn(text, err)

            def post(body):
                return c.socket_request("POST", "/blocks/lookup", body, node=c.node("p0"))[0]

            some = "12" * 16
            self.assertEqual(post({"hashes": [some] * 1000}), 200)
            for body in (
                {},
                {"hashes": []},
                {"hashes": [some] * 1001},
                {"hashes": ["0" * 32]},
                {"hashes": [5]},
                {"hashes": [some], "more": 1},
                [some],
            ):
                self.assertEqual(post(body), 400, body)

    def start(self, lease_by, transport="shm"):
        c = Cluster(roles=["conductor"], conductor=FETCH)
        self.addCleanup(c.close)
        c.start("c0", "--dram", "64MiB", "--transport", transport, "--lease-by", lease_by)
        for name in ("p0", "d0", "p1"):
            c.start(name, "--dtype", "f32", "--kv-mem", "16MiB", "--transport", transport, "--lease-by", lease_by)
        c.wait_nodes()
        return c

    def fill(self, c, prefill):
        """More prompts than a node has pages for."""
        mc = {"pin": {"prefill": prefill, "decode": "d0"}}
        prompts = [Random(70 + i).ids(12 * BLOCK + 5) for i in range(4)]
        for ids in prompts + prompts:
            answer = c.complete(ids=ids, max_tokens=6, mc=mc)
        self.assertEqual(token_ids(answer), oracle(prompts[-1], 6), answer["mc"])
        c.wait_quiet()

    def test_a_node_that_fills_up_asks_the_cache_node_first_and_offers_again_what_it_lost(self):
        c = self.start("channel", "tcp")
        self.fill(c, "p0")
        until(lambda: c.node("c0")["blocks_indexed"] > 0, 60, "c0 holds blocks")
        self.fill(c, "p1")
        nodes = ("p0", "d0", "p1")

        def answered():
            return sum(lookups(c, n, "asked") - lookups(c, n, "failed") for n in nodes)

        until(lambda: lookups(c, "p1", "asked") > lookups(c, "p1", "failed"), 60, "p1 has an answer")
        # A busy machine may give up a lookup whose answer is on its way.
        asked = lambda: sum(lookups(c, n, "asked") for n in nodes)
        until(lambda: answered() <= lookups(c, "c0", "served") <= asked(), 60, "c0 counts the answers")
        for node in (*nodes, "c0"):
            self.assertEqual(c.metric(node, "mc_lease_calls_total", 'event="refused"'), 0)
        code, _, err = run("mc-cache", "evict", "c0", "--all", env=c.env)
        self.assertEqual(code, 0, err)
        # The nodes ask again within 10 s.
        until(lambda: c.node("c0")["blocks_indexed"] > 0, 60, "c0 got blocks again")
        c.wait_quiet()

    def test_nodes_of_one_host_read_the_table_of_the_cache_node_in_place(self):
        c = self.start("auto")
        self.fill(c, "p0")
        until(lambda: c.node("c0")["blocks_indexed"] > 0, 60, "c0 holds blocks")
        self.fill(c, "p1")
        until(lambda: lookups(c, "p1", "read") > 0, 60, "p1 has read the table")
        for node in ("p0", "d0", "p1"):
            self.assertEqual(lookups(c, node, "asked"), 0)
        self.assertEqual(lookups(c, "c0", "served"), 0)

    def test_nobody_asks_where_leases_go_by_control(self):
        c = self.start("control")
        self.fill(c, "p0")
        until(lambda: c.node("c0")["blocks_indexed"] > 0, 60, "c0 holds blocks")
        for node in ("p0", "d0", "p1", "c0"):
            self.assertEqual(sum(lookups(c, node, event) for event in ("asked", "served", "read")), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

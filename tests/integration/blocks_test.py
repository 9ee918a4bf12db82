#!/usr/bin/env python3
"""Operators look after KV blocks: evict and pin free and keep them on nodes of every role, in memory and on disk."""

import http.client
import json
import os
import shutil
import tempfile
import unittest

import cluster
from cluster import Cluster, Random, cached, oracle, quick_profile, run, token_ids, until

BLOCK = 64
LENGTH = 384
COUNT = 8
MEMORY = "5600KiB"  # two prompts, in pages of 392 KiB
WORKER = ["--dtype", "f32", "--transport", "shm"]
# Whether a fetch pays is measured, and on a busy machine anything may come out.
FETCH = ["--fetch-rule", "threshold"]


class Blocks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mct-blocks-", dir=cluster.BUILD)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, *prefill, memory=MEMORY, conductor=()):
        c = Cluster()
        self.addCleanup(c.close)
        c.start("conductor", *conductor)
        c.start("p0", *WORKER, "--kv-mem", memory, *prefill)
        c.start("d0", *WORKER)
        c.wait_nodes()
        return c

    def verb(self, c, *words):
        """(exit code, the object or list of objects on stdout, stderr)"""
        code, out, err = run("mc-cache", *words, "--json", env=c.env)
        rows = [json.loads(line) for line in out.splitlines()]
        return code, rows[0] if len(rows) == 1 else rows, err

    def blocks(self, c, node):
        """The blocks of a node, and the line of totals."""
        code, rows, err = self.verb(c, "ls", node, "--limit", 1000, "--sort", "position")
        self.assertEqual(code, 0, err)
        rows = rows if isinstance(rows, list) else [rows]
        return rows[:-1], rows[-1]

    def last(self, c, node, length=LENGTH):
        """The id of the block that ends a prompt of this length, which is the only one of it on the node."""
        return next(b["id"] for b in self.blocks(c, node)[0] if b["first_position"] == length - BLOCK)

    def test_evicted_blocks_are_computed_again_and_the_miss_names_the_node_and_the_age(self):
        c = self.start()
        ids = Random(1).ids(LENGTH)
        c.complete(ids=ids, max_tokens=COUNT)
        warm = c.complete(ids=ids, max_tokens=COUNT)
        self.assertEqual(cached(warm), LENGTH - BLOCK)
        c.wait_quiet()
        for node in ("p0", "d0"):
            held = self.blocks(c, node)[1]["memory_blocks"]
            code, dry, err = self.verb(c, "evict", node, "--all", "--dry-run")
            self.assertEqual((code, dry["memory_blocks"]), (0, held), err)
            self.assertEqual(self.blocks(c, node)[1]["memory_blocks"], held)
            code, report, err = self.verb(c, "evict", node, "--all")
            self.assertEqual((code, report["memory_blocks"], report["stayed"]), (0, held, []), err)
            self.assertEqual(self.blocks(c, node)[1]["memory_blocks"], 0)
        evicted = lambda: c.metric("p0", "mc_kv_evictions_total", 'tier="host"')
        until(lambda: evicted() == LENGTH // BLOCK, 60, "evictions are counted")
        until(lambda: c.node("p0")["blocks_indexed"] == 0, 60, "the conductor's index hears of it")
        again = c.complete(ids=ids, max_tokens=COUNT)
        self.assertEqual(cached(again), 0)
        self.assertEqual(token_ids(again), oracle(ids, COUNT))
        miss = again["mc"]["misses"][0]
        self.assertEqual((miss["reason"], miss["node"], miss["first_block"]), ("evicted", "p0", 0))
        self.assertGreaterEqual(miss["age_ms"], 0)

    def test_a_prefix_selects_the_prompts_that_continue_it_and_words_say_what_was_freed(self):
        c = self.start(memory="32MiB")
        ids = Random(2).ids(LENGTH)
        fork = ids[: 4 * BLOCK] + Random(3).ids(LENGTH - 4 * BLOCK)
        other = Random(4).ids(LENGTH)
        for prompt in (ids, fork, other):
            c.complete(ids=prompt, max_tokens=1)
        c.wait_quiet()
        rows, _ = self.blocks(c, "p0")
        parents = [b["parent"] for b in rows]
        forked = next(b["id"] for b in rows if parents.count(b["id"]) == 2)  # where two prompts part
        code, out, err = run("mc-cache", "evict", "p0", "--prefix", forked, env=c.env)
        self.assertEqual(code, 0, err)
        self.assertRegex(out.decode(), r"p0: freed\n  memory +5 blocks")
        for prompt, tokens in ((ids, 3 * BLOCK), (other, LENGTH - BLOCK)):
            self.assertEqual(cached(c.complete(ids=prompt, max_tokens=1)), tokens)

    def test_conditions_are_needed_checked_and_refused_with_the_next_step(self):
        c = self.start()
        for words, text in (
            ((), "--all for all blocks"),
            (("--all", "--older", "1h"), "excludes"),
            (("--prefix", "7f3a"), "32 hex digits"),
            (("--older", "soon"), "older"),
        ):
            code, _, err = run("mc-cache", "evict", "p0", *words, env=c.env)
            self.assertEqual(code, 2, err)
            self.assertIn(text, err)
        for words in (("evict", "p0", "--older", "9000h"), ("pin", "p0", "--prefix", "1" * 32, "--for", "900h")):
            code, _, err = run("mc-cache", *words, env=c.env)
            self.assertEqual(code, 2, err)
            self.assertIn(words[-2], err)
            self.assertIn("is not from 1ms to ", err)
        code, out, err = run("mc-cache", "evict", "p0", "--tenant", "nobody", env=c.env)
        self.assertEqual(code, 0, err)
        self.assertIn(b"no block of the node meets the conditions\nthe node knows no such tenant", out)
        for words in (("pin", "p0"), ("pin", "p0", "key", "--prefix", "1" * 32), ("unpin", "p0")):
            code, _, err = run("mc-cache", *words, env=c.env)
            self.assertEqual(code, 2, err)
            self.assertIn("--prefix HASH", err)
        code, _, err = self.verb(c, "pin", "p0", "--prefix", "1" * 32)
        self.assertEqual(code, 1)
        self.assertIn("has no block " + "1" * 32, err)
        port = int(c.node("p0")["http"].rsplit(":", 1)[1])
        for path in ("/blocks/evict", "/blocks/pin", "/blocks/unpin"):
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                link.request("POST", path, b"{}", headers)
                answer = link.getresponse()
                self.assertEqual(answer.status, 403, path)
                self.assertIn(b"admin", answer.read())
                link.close()

    def test_a_pinned_prompt_outlives_pressure_until_it_is_unpinned(self):
        c = self.start()
        ids = Random(5).ids(LENGTH)
        c.complete(ids=ids, max_tokens=1)
        c.wait_quiet()
        last = self.last(c, "p0")
        code, report, err = self.verb(c, "pin", "p0", "--prefix", last, "--for", "1h")
        self.assertEqual((code, report["blocks"]), (0, LENGTH // BLOCK), err)
        rows, end = self.blocks(c, "p0")
        self.assertTrue(all(0 < b["pin_ms"] <= 3600e3 for b in rows), rows)
        self.assertEqual(end["pinned_bytes"], report["bytes"])
        listed = run("mc-cache", "ls", "p0", env=c.env)[1].decode()
        self.assertRegex(listed, r"59m\d\ds .*\n.*pinned: 2.30 MiB of at most 2.68 MiB")
        for n in range(10, 16):
            c.complete(ids=Random(n).ids(LENGTH), max_tokens=1)
        self.assertEqual(cached(c.complete(ids=ids, max_tokens=1)), LENGTH - BLOCK)
        c.complete(ids=Random(20).ids(LENGTH), max_tokens=1)
        ends = [b["id"] for b in self.blocks(c, "p0")[0] if b["first_position"] == LENGTH - BLOCK]
        more = next(end for end in ends if end != last)
        code, _, err = self.verb(c, "pin", "p0", "--prefix", more)
        self.assertEqual(code, 1)
        self.assertIn("MC5003", err)
        self.assertIn("unpin or evict blocks", err)
        code, report, err = self.verb(c, "evict", "p0", "--prefix", last)
        self.assertEqual([(s["reason"], s["blocks"]) for s in report["stayed"]], [("pinned", 1)])
        self.assertEqual(self.verb(c, "unpin", "p0", "--prefix", last)[1]["blocks"], LENGTH // BLOCK)
        self.assertEqual(self.verb(c, "unpin", "p0", "--prefix", last)[0], 1)
        self.assertEqual(self.verb(c, "evict", "p0", "--prefix", last)[1]["memory_blocks"], 1)

    def test_blocks_on_disk_are_evicted_and_come_back_to_memory_for_a_pin(self):
        c = self.start("--ssd", f"{self.folder}/kv:128MiB")
        prompts = [Random(n).ids(LENGTH) for n in range(30, 36)]
        c.write_to_disk("p0", prompts, 30)
        c.wait_quiet()
        rows, _ = self.blocks(c, "p0")
        on_disk = [b for b in rows if b["tier"] == "disk" and b["first_position"] == LENGTH - BLOCK]
        last = on_disk[0]["id"]
        code, report, err = self.verb(c, "pin", "p0", "--prefix", last)
        self.assertEqual(code, 0, err)
        self.assertGreater(report["loaded_blocks"], 0)
        held = {b["id"] for b in self.blocks(c, "p0")[0] if "pin_ms" in b}
        self.assertEqual(len(held), LENGTH // BLOCK)
        code, report, err = self.verb(c, "evict", "p0", "--all")
        self.assertEqual(code, 0, err)
        self.assertGreater(report["disk_blocks"], 20)
        rows, end = self.blocks(c, "p0")
        self.assertEqual({b["id"] for b in rows if b["tier"] == "host"}, held)
        self.verb(c, "unpin", "p0", "--prefix", last)
        self.verb(c, "evict", "p0", "--all")
        _, end = self.blocks(c, "p0")
        self.assertEqual((end["memory_blocks"], end["disk_blocks"]), (0, 0))
        for ids in prompts:
            answer = c.complete(ids=ids, max_tokens=COUNT)
            self.assertEqual(cached(answer), 0)
            self.assertEqual(token_ids(answer), oracle(ids, COUNT))

    def test_a_prompt_that_is_warmed_durably_survives_a_kill_and_one_that_is_pinned_alone_does_not(self):
        c = self.start(memory="32MiB", conductor=FETCH)
        flags = ("--dram", "32MiB", "--transport", "shm", "--ssd", f"{self.folder}/kv:128MiB")
        c.start("c0", *flags)
        c.wait_nodes()
        rows = []
        for n, words in enumerate(((), ("--durability", "d2"))):
            path = f"{self.folder}/{n}.txt"
            with open(path, "w", encoding="utf-8") as file:
                file.write(" ".join(f"Rule {n}.{i}: answer in few words." for i in range(40)))
            code, out, err = run("mc-cache", "warm", "c0", "-f", path, "--pin", "1h", "--json", *words, env=c.env)
            self.assertEqual(code, 0, err)
            rows.append(json.loads(out))
        self.assertEqual([row["durability"] for row in rows], ["d0", "d2"])
        killed = c.node("c0")["instance"]
        c.processes["c0"].kill()
        c.processes["c0"].close()
        c.start("c0", *flags)
        until(lambda: c.node("c0")["instance"] != killed, 30, "the restarted node is back")
        until(lambda: self.blocks(c, "c0")[1]["disk_blocks"] == rows[1]["blocks"], 30, "the durable blocks are found")
        self.assertIn(rows[1]["prefix"], {b["id"] for b in self.blocks(c, "c0")[0]})
        code, report, err = self.verb(c, "pin", "c0", "--prefix", rows[1]["prefix"], "--durability", "d2")
        self.assertEqual((code, report["loaded_blocks"], report["durability"]), (0, rows[1]["blocks"], "d2"), err)
        for words, text in (
            (("pin", "c0", "key", "--durability", "d2"), "--prefix"),
            (("warm", "c0", "-f", path, "--durability", "d2"), "--pin"),
            (("pin", "p0", "--prefix", "1" * 32, "--durability", "d2"), "MC4031"),
            (("warm", "p0", "-f", path, "--pin", "1h", "--durability", "d2"), "p0 has no disk"),
            (("exist", "p0", "key"), "p0 is a prefill node"),
            (("put", "c0", "key", path, "--replicas", "9"), "--replicas"),
            (("--ssd-min-uses", "2", "--check"), "--ssd-min-uses"),
        ):
            code, _, err = run("mc-cache", *words, env=c.env)
            self.assertNotEqual(code, 0)
            self.assertIn(text, err)

    def export(self, c, node, prefix):
        """The stream on stdout."""
        code, out, err = run("mc-cache", "export", node, "--prefix", prefix, env=c.env)
        self.assertEqual(code, 0, err)
        return out

    def give(self, c, node, stream):
        """(exit code, object on stdout, stderr) of an import"""
        code, out, err = run("mc-cache", "import", node, "--json", env=c.env, stdin=stream)
        return code, json.loads(out) if out else None, err

    def evict_all(self, c, *nodes):
        for node in nodes:
            self.verb(c, "evict", node, "--all")
            self.assertEqual(self.blocks(c, node)[1]["memory_blocks"], 0)
            until(lambda n=node: c.node(n)["blocks_indexed"] == 0, 60, "the conductor's index hears of it")

    def test_an_exported_prompt_is_imported_anywhere_and_gives_equal_text(self):
        c = self.start(memory="48MiB", conductor=FETCH)
        c.start("c0", "--dram", "32MiB", "--transport", "shm")
        c.wait_nodes()
        length = 2560  # 40 blocks: more than one part of a stream
        ids = Random(50).ids(length)
        expected = token_ids(c.complete(ids=ids, max_tokens=COUNT))
        self.assertEqual(expected, oracle(ids, COUNT))
        c.wait_quiet()
        last = self.last(c, "p0", length)
        stream = self.export(c, "p0", last)
        self.assertEqual(stream, self.export(c, "p0", last))
        with open(f"{self.folder}/p.mckv", "wb") as file:
            file.write(stream)
        code, found, err = self.inspect()
        self.assertEqual((code, found["sound"], found["prompt_tokens"]), (0, True, length), err)
        self.assertEqual(found["blocks"][-1]["id"], last)
        code, _, err = run("mc-decode", "once", "--kv-in", f"{self.folder}/p.mckv", "--dtype", "f32", env=c.env)
        self.assertIn("without a first token", err)
        c.wait_quiet()
        for node in ("p0", "c0"):
            self.evict_all(c, "p0", "d0", "c0")
            code, report, err = self.give(c, node, stream)
            self.assertEqual((code, report["stored"], report["prefix"]), (0, length // BLOCK, last), err)
            self.assertEqual(self.give(c, node, stream)[1]["known"], length // BLOCK)
            until(lambda n=node: c.node(n)["blocks_indexed"] == length // BLOCK, 60, "the index hears of the import")
            self.assertEqual(self.export(c, node, last), stream)
            answer = c.complete(ids=ids, max_tokens=COUNT)
            self.assertEqual(cached(answer), length - BLOCK, answer["mc"])
            self.assertEqual(answer["mc"]["cached_remote_tokens"], length - BLOCK if node == "c0" else 0)
            self.assertEqual(token_ids(answer), expected)
            c.wait_quiet()

    def inspect(self):
        code, out, err = run("mc-cache", "inspect", "--json", f"{self.folder}/p.mckv")
        return code, json.loads(out) if out else None, err

    def test_a_warmed_prompt_is_computed_once_moved_pinned_and_hit_by_its_continuations(self):
        c = self.start(memory="32MiB", conductor=FETCH)
        c.start("c0", "--dram", "32MiB", "--transport", "shm")
        c.wait_nodes()
        text = " ".join(f"Rule {n}: answer in few words." for n in range(60))
        path = f"{self.folder}/system.txt"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        code, out, err = run("mc-cache", "warm", "c0", "-f", path, "--pin", "1h", "--json", env=c.env)
        self.assertEqual(code, 0, err)
        row = json.loads(out)
        self.assertEqual((row["node"], row["omitted"], row["pinned"]), ("c0", 0, True))
        self.assertGreater(row["blocks"], 5)
        self.assertEqual(row["stored"], row["blocks"])
        pinned = {b["id"] for b in self.blocks(c, "c0")[0] if "pin_ms" in b}
        self.assertEqual(len(pinned), row["blocks"])
        self.assertIn(row["prefix"], pinned)
        until(lambda: not any(c.node(n)["running"] or c.node(n)["leases"] for n in ("p0", "d0")), 60, "quiet")
        self.evict_all(c, "p0", "d0")
        answer = c.complete(text + " Who are you?", max_tokens=COUNT)
        self.assertGreaterEqual(answer["mc"]["cached_remote_tokens"], (row["blocks"] - 1) * BLOCK)
        cold = c.complete(text + " Who are you?", max_tokens=COUNT, mc={"no_cache": True})
        self.assertEqual(token_ids(answer), token_ids(cold))
        code, out, err = run("mc-cache", "warm", "c0", "-f", path, "--copies", "3", env=c.env)
        self.assertEqual(code, 0, err)
        for node in ("c0", "p0", "d0"):
            self.assertIn(f"{node}: {row['blocks']} of {row['blocks']} blocks", out.decode())
            self.assertLessEqual(pinned, {b["id"] for b in self.blocks(c, node)[0]})
        for words, text in (
            (("-f", path, "--copies", "9"), "the cluster has 3"),
            ((), "-f FILE"),
            (("-f", path, "-m", "other"), "MC4006"),
            (("-f", "-"), "fills no block"),
        ):
            code, _, err = run("mc-cache", "warm", "c0", *words, env=c.env, stdin=b"Short.")
            self.assertNotEqual(code, 0)
            self.assertIn(text, err)

    def test_a_warmed_system_message_is_found_by_chats(self):
        c = self.start(memory="32MiB")
        text = " ".join(f"Rule {n}: answer in few words." for n in range(60))
        code, out, err = run(
            "mc-cache", "warm", "p0", "-f", "-", "--chat", "system", "--json", env=c.env, stdin=text.encode()
        )
        self.assertEqual(code, 0, err)
        row = json.loads(out)
        self.assertGreater(row["blocks"], 5)
        chat = [{"role": "system", "content": text}, {"role": "user", "content": "Who are you?"}]
        status, _, answer = c.post("/v1/chat/completions", {"messages": chat, "max_tokens": 1})
        self.assertEqual(status, 200, answer)
        self.assertEqual(cached(answer), row["blocks"] * BLOCK)

    def test_a_block_that_was_evicted_from_a_cache_node_is_no_cold_miss(self):
        c = self.start()
        c.start("c0", "--dram", "32MiB", "--transport", "shm")
        c.wait_nodes()
        ids = Random(53).ids(LENGTH)
        flags = ["--prompt-ids", ",".join(map(str, ids)), "--kv-out", "-", "--dtype", "f32"]
        code, stream, err = run("mc-prefill", "once", *flags)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.give(c, "c0", stream)[1]["stored"], LENGTH // BLOCK)
        until(lambda: c.node("c0")["blocks_indexed"] == LENGTH // BLOCK, 60, "the index hears of the import")
        self.evict_all(c, "c0")
        miss = c.complete(ids=ids, max_tokens=1)["mc"]["misses"][0]
        self.assertEqual((miss["reason"], miss["node"], miss["first_block"]), ("evicted", "c0", 0))

    def test_a_warmed_prompt_may_end_with_a_full_block(self):
        c = self.start(memory="32MiB")
        text = "Once upon a time"
        for n in range(400):
            text += f" {n % 10}"
            tokens = len(c.post("/tokenize", {"prompt": text})[2]["tokens"])
            if tokens >= 3 * BLOCK and tokens % BLOCK == 0:
                break
        self.assertEqual(tokens % BLOCK, 0)
        words = ("-f", "-", "--pin", "1h", "--timeout", "60s", "--json")
        code, out, err = run("mc-cache", "warm", "p0", *words, env=c.env, stdin=text.encode())
        self.assertEqual(code, 0, err)
        row = json.loads(out)
        self.assertEqual((row["blocks"], row["pinned"]), (tokens // BLOCK, True))
        self.assertIn(row["prefix"], {b["id"] for b in self.blocks(c, "p0")[0] if "pin_ms" in b})

    def test_a_damaged_half_or_foreign_stream_leaves_no_block_and_says_why(self):
        c = self.start()
        ids = Random(51).ids(LENGTH)
        c.complete(ids=ids, max_tokens=1)
        c.wait_quiet()
        stream = self.export(c, "p0", self.last(c, "p0"))
        self.evict_all(c, "p0")
        flipped = bytearray(stream)
        flipped[len(stream) * 3 // 4] ^= 4
        for damaged in (bytes(flipped), stream[: len(stream) // 2], stream[:-1], b"", b"not a stream at all"):
            code, _, err = self.give(c, "p0", damaged)
            self.assertEqual(code, 1, err)
            self.assertIn("MC6001", err)
        small = ["--prompt-ids", ",".join(map(str, ids[:200])), "--kv-out", "-"]
        for flags, field in (
            (["--dtype", "bf16"], "dtype"),
            (["--dtype", "f32", "--block-tokens", "32"], "block_tokens"),
            (["--dtype", "f32", "--kv-dtype", "fp8_e4m3"], "kv_dtype"),
        ):
            code, foreign, err = run("mc-prefill", "once", *small, *flags)
            self.assertEqual(code, 0, err)
            code, _, err = self.give(c, "p0", foreign)
            self.assertEqual(code, 1, err)
            self.assertIn("MC6003", err)
            self.assertIn(f"{field} of the stream is ", err)
        self.assertEqual(self.blocks(c, "p0")[1]["memory_blocks"], 0)
        code, own, err = run("mc-prefill", "once", *small, "--dtype", "f32")
        self.assertEqual(code, 0, err)
        code, report, err = self.give(c, "p0", own)
        self.assertEqual((code, report["stored"]), (0, 200 // BLOCK), err)
        self.assertEqual(cached(c.complete(ids=ids, max_tokens=1)), 200 // BLOCK * BLOCK)
        port = int(c.node("p0")["http"].rsplit(":", 1)[1])
        for method, path in (("GET", "/blocks/export?prefix=" + "1" * 32), ("POST", "/blocks/import")):
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            link.request(method, path, stream if method == "POST" else None)
            self.assertEqual(link.getresponse().status, 403, path)
            link.close()
        status, data = c.socket_request("POST", "/blocks/import", {"no": "stream"}, node=c.node("p0"))
        self.assertEqual(status, 400, data)

    def test_a_node_without_room_takes_the_front_of_the_chain_and_says_so(self):
        c = Cluster()
        self.addCleanup(c.close)
        c.start("conductor")
        c.start("p0", *WORKER, "--kv-mem", "48MiB")
        c.start("d0", *WORKER)
        c.start("c0", "--dram", "9MiB", "--transport", "shm")
        c.wait_nodes()
        length = 3840  # 60 blocks
        ids = Random(52).ids(length)
        c.complete(ids=ids, max_tokens=1)
        c.wait_quiet()
        stream = self.export(c, "p0", self.last(c, "p0", length))
        code, report, err = self.give(c, "c0", stream)
        self.assertEqual((code, report["blocks"]), (1, 60), err)
        self.assertEqual(report["stored"] + report["omitted"], 60)
        rows, end = self.blocks(c, "c0")
        self.assertEqual(end["memory_blocks"], report["stored"])
        self.assertEqual({b["first_position"] for b in rows}, {BLOCK * n for n in range(report["stored"])})
        code, out, _ = run("mc-cache", "import", "c0", env=c.env, stdin=stream)
        self.assertEqual(code, 1)
        self.assertIn(b"found no room", out)

    def test_the_blocks_of_one_tenant_are_evicted_alone_on_a_costed_node(self):
        files = {
            "keys.toml": '[tenant.alice]\nkeys = ["sk-alice-1"]\n[tenant.bob]\nkeys = ["sk-bob-12"]\n',
            "quick.toml": quick_profile(prefill_s=200e-6, step_s=2e-3, row_s=0.1e-3),
        }
        for name, text in files.items():
            with open(f"{self.folder}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(f"{self.folder}/{name}", 0o600)
        c = Cluster(
            "1p1d",
            conductor=["--runner", f"costed:{self.folder}/quick.toml", "--api-keys", f"{self.folder}/keys.toml"],
        )
        self.addCleanup(c.close)
        ids = Random(60).ids(LENGTH)

        def ask(key):
            headers = {"Authorization": f"Bearer {key}"}
            status, _, answer = c.post("/v1/completions", {"prompt": ids, "max_tokens": 1}, headers=headers)
            self.assertEqual(status, 200, answer)
            return cached(answer)

        for key in ("sk-alice-1", "sk-bob-12"):
            self.assertEqual(ask(key), 0)
        c.wait_quiet()
        code, report, err = self.verb(c, "evict", "p0", "--tenant", "alice")
        self.assertEqual((code, report["memory_blocks"], report["stayed"]), (0, LENGTH // BLOCK, []), err)
        self.verb(c, "evict", "d0", "--tenant", "alice")
        self.assertEqual(self.verb(c, "evict", "p0", "--tenant", "carol")[1]["memory_blocks"], 0)
        self.assertEqual(ask("sk-bob-12"), LENGTH - BLOCK)
        self.assertEqual(ask("sk-alice-1"), 0)
        c.wait_quiet()
        last = self.last_of_one(c, "p0")
        self.assertEqual(self.verb(c, "pin", "p0", "--prefix", last)[1]["blocks"], LENGTH // BLOCK)
        self.assertEqual(self.verb(c, "evict", "p0", "--all")[1]["memory_blocks"], LENGTH // BLOCK)

    def last_of_one(self, c, node):
        """The id of the last block of one of the prompts."""
        return max(self.blocks(c, node)[0], key=lambda b: b["first_position"])["id"]

    def test_a_cache_node_evicts_by_age_and_model(self):
        c = Cluster()
        self.addCleanup(c.close)
        c.start("conductor", "--fetch-rule", "threshold")
        c.start("p0", *WORKER, "--kv-mem", MEMORY)
        c.start("d0", *WORKER)
        c.start("c0", "--dram", "32MiB", "--transport", "shm")
        c.wait_nodes()
        for n in range(40, 48):
            c.complete(ids=Random(n).ids(LENGTH), max_tokens=1)
        until(lambda: c.node("c0")["blocks_indexed"] >= 10, 60, "blocks on the cache node")
        c.wait_quiet()
        held = self.blocks(c, "c0")[1]["memory_blocks"]
        self.assertEqual(self.verb(c, "evict", "c0", "--older", "1h")[1]["memory_blocks"], 0)
        self.assertEqual(self.verb(c, "evict", "c0", "--model", "other")[1]["memory_blocks"], 0)
        self.assertEqual(self.verb(c, "evict", "c0", "--tenant", "alice")[1]["memory_blocks"], 0)
        self.assertEqual(self.verb(c, "evict", "c0", "--model", "mc-tiny")[1]["memory_blocks"], held)
        until(lambda: c.node("c0")["blocks_indexed"] == 0, 60, "the conductor's index hears of it")


if __name__ == "__main__":
    unittest.main(verbosity=2)

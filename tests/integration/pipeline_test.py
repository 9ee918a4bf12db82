#!/usr/bin/env python3
"""Prefill pipelines of two and three processes: the text of one process, reuse, and the death of a member."""

import concurrent.futures
import json
import os
import tempfile
import threading
import unittest

from cluster import Cluster, Random, cached, oracle, run, token_ids, until

# Whether a fetch pays is measured at start, and on a busy machine anything may come out.
FETCH = ["--fetch-rule", "threshold"]
FLAGS = ["--dtype", "f32", "--threads", "1", "--chunk-tokens", "64"]


def stage(c, leader, number, of, *flags):
    """Starts one member; the leader bears the pipeline's name."""
    words = [
        "mc-prefill",
        "--name",
        leader,
        "--pipeline",
        f"{number}/{of}",
        "--http",
        "127.0.0.1:0",
        "--json",
        *FLAGS,
        *flags,
    ]
    name = leader if number == 0 else f"{leader}.{number}"
    c.processes[name] = c.spawn(words)


def serving(c, stages):
    c.start("conductor")
    for number in range(stages):
        stage(c, "p0", number, stages)
    c.start("d0", "--dtype", "f32", "--threads", "1")
    c.wait_nodes()


class Pipeline(unittest.TestCase):
    def test_text_is_that_of_one_process_for_all_lengths_and_with_reuse(self):
        for stages in (2, 3):
            with self.subTest(stages=stages), Cluster() as c:
                serving(c, stages)
                # mc-tiny's six layers are divided evenly: so are its pages.
                self.assertEqual(c.node("p0")["state"], "ready")
                self.assertAlmostEqual(
                    c.node("p0")["page_bytes"] * stages, c.node("d0")["page_bytes"], delta=4096 * stages
                )
                random = Random(stages)
                prompts = [random.ids(count) for count in (1, 63, 64, 65, 129, 700)]
                with concurrent.futures.ThreadPoolExecutor(6) as pool:
                    answers = list(pool.map(lambda ids: c.complete(ids=ids, max_tokens=6), prompts))
                for ids, answer in zip(prompts, answers):
                    self.assertEqual(token_ids(answer), oracle(ids, 6), len(ids))
                longer = prompts[-1] + random.ids(100)
                answer = c.complete(ids=longer, max_tokens=6)
                self.assertEqual(cached(answer), 640)
                self.assertEqual(token_ids(answer), oracle(longer, 6))
                # Log-probabilities of a prompt come from the last stage, chunk by chunk, those of its answer too.
                answer = c.complete(ids=longer, max_tokens=6, logprobs=0)
                body = {"prompt": longer + token_ids(answer), "max_tokens": 1, "prompt_logprobs": 0}
                told = c.post("/v1/completions", body)[2]["choices"][0]["prompt_logprobs"]
                self.assertEqual(len(told), len(longer) + 6)
                for row, token, logprob in zip(
                    told[len(longer) :], token_ids(answer), answer["choices"][0]["logprobs"]["token_logprobs"]
                ):
                    self.assertAlmostEqual(row[str(token)]["logprob"], logprob, places=3)
                c.wait_quiet()

    def test_a_members_death_costs_its_requests_a_retry_and_its_peers_nothing(self):
        with Cluster() as c:
            serving(c, 2)
            random = Random(9)
            # The member dies while a request is on its node; where that was over already, the next one is caught.
            for _ in range(5):
                ids = random.ids(4000)
                answers = []
                asking = threading.Thread(target=lambda: answers.append(c.complete(ids=ids, max_tokens=4)))
                asking.start()
                until(lambda: answers or c.node("p0")["requests"], 60, "request in the pipeline")
                c.processes["p0.1"].kill()
                c.processes["p0.1"].stop()
                # There is no other: the request waits for the member to come back.
                stage(c, "p0", 1, 2)
                asking.join(300)
                self.assertEqual(token_ids(answers[0]), oracle(ids, 4))
                c.wait_nodes()
                until(lambda: c.node("p0")["state"] == "ready", 60, "the pipeline is whole")
                if answers[0]["mc"]["attempts"] >= 2:
                    break
            self.assertGreaterEqual(answers[0]["mc"]["attempts"], 2)
            self.assertIsNone(c.processes["p0"].popen.poll())
            # Without the member the leader gets nothing, and others serve on.
            c.start("p1", *FLAGS)
            c.wait_nodes()
            c.processes["p0.1"].kill()
            c.processes["p0.1"].stop()
            until(lambda: all(n["id"] != "p0.1" for n in c.cluster()["nodes"]), 60, "loss noticed")
            self.assertEqual(c.node("p0")["state"], "partial")
            self.assertIn("p0.1", c.node("p0")["lacks"])
            short = random.ids(200)
            answer = c.complete(ids=short, max_tokens=4)
            self.assertEqual(token_ids(answer), oracle(short, 4))
            self.assertEqual(answer["mc"]["prefill_node"], "p1")
            del c.processes["p0.1"]
            c.wait_quiet()

    def test_a_prefix_goes_from_a_pipeline_to_others_and_back_and_gives_the_same_tokens(self):
        with Cluster(roles=["conductor"], conductor=FETCH) as c:
            for leader, stages in (("p0", 2), ("p1", 3)):
                for number in range(stages):
                    stage(c, leader, number, stages)
            c.start("p2", *FLAGS)
            c.start("d0", "--dtype", "f32", "--threads", "1")
            c.wait_nodes()
            for number, (holder, reader) in enumerate((("p0", "p2"), ("p2", "p0"), ("p0", "p1"), ("p1", "p0"))):
                ids = Random(40 + number).ids(709)
                for node in (holder, reader):
                    answer = c.complete(ids=ids, max_tokens=6, mc={"pin": {"prefill": node}})
                    self.assertEqual(token_ids(answer), oracle(ids, 6), (holder, reader))
                    self.assertEqual(answer["mc"]["prefill_node"], node)
                    c.wait_quiet()
                    code, _, err = run("mc-cache", "evict", "d0", "--all", env=c.env)  # or the reader reads from there
                    self.assertEqual(code, 0, err)
                    until(lambda: c.node("d0")["blocks_indexed"] == 0, 60, "the conductor knows that d0 has no block")
                self.assertEqual(answer["mc"]["cached_from"], {holder: 704}, answer["mc"])
            c.wait_quiet()

    def test_a_member_that_comes_back_reads_its_part_of_the_blocks_from_the_cache_node(self):
        with Cluster(roles=["conductor", "c0"], conductor=FETCH) as c:
            for number in range(2):
                stage(c, "p0", number, 2, "--kv-mem", "16MiB")
            c.start("d0", "--dtype", "f32", "--threads", "1")
            c.wait_nodes()
            prompts = [Random(60 + n).ids(16 * 64 + 5) for n in range(5)]
            for ids in prompts + prompts:
                c.complete(ids=ids, max_tokens=1)
            until(lambda: c.node("c0")["blocks_indexed"] >= 16, 60, "c0 holds blocks")
            c.wait_quiet()
            c.processes["p0.1"].kill()
            c.processes["p0.1"].stop()
            until(lambda: c.node("p0")["state"] == "partial", 60, "loss noticed")
            stage(c, "p0", 1, 2, "--kv-mem", "16MiB")
            c.wait_nodes()
            until(lambda: c.node("p0")["state"] == "ready", 60, "the pipeline is whole")
            read = 0
            for ids in prompts:
                answer = c.complete(ids=ids, max_tokens=6)
                self.assertEqual(token_ids(answer), oracle(ids, 6))
                read += answer["mc"]["cached_remote_tokens"]
            self.assertGreater(read, 0)
            c.wait_quiet()

    def test_a_pipeline_keeps_no_disk_and_neither_gives_nor_takes_streams_of_blocks(self):
        with tempfile.TemporaryDirectory() as folder:
            for number in range(2):
                flags = ["--pipeline", f"{number}/2", "--name", "p0", "--ssd", f"{folder}/kv:1GiB", *FLAGS]
                code, _, err = run("mc-prefill", *flags, env=dict(os.environ, MCT_RUN_DIR=folder))
                self.assertEqual(code, 2, err)
                self.assertIn("a member of a pipeline has some of their layers", err)
                self.assertIn("mc-cache --ssd", err)
                self.assertFalse(os.path.exists(f"{folder}/kv"))
        with Cluster() as c:
            serving(c, 2)
            ids = Random(11).ids(3 * 64 + 5)
            first = token_ids(c.complete(ids=ids, max_tokens=6))
            self.assertEqual(first, oracle(ids, 6))
            code, out, err = run("mc-cache", "ls", "d0", "--json", env=c.env)
            self.assertEqual(code, 0, err)
            rows = [json.loads(line) for line in out.splitlines()]
            last = next(row["id"] for row in rows if row.get("first_position") == 2 * 64)
            code, stream, err = run("mc-cache", "export", "d0", "--prefix", last, env=c.env)
            self.assertEqual(code, 0, err)
            code, out, err = run("mc-cache", "export", "p0", "--prefix", last, env=c.env)
            self.assertEqual((code, out), (1, b""), err)
            self.assertIn("leads a pipeline", err)
            self.assertIn("export from a node outside the pipeline", err)
            for node in ("p0", "p0.1"):
                code, _, err = run("mc-cache", "import", node, env=c.env, stdin=stream)
                self.assertEqual(code, 1, err)
                self.assertIn("holds its blocks in parts, as a member of a pipeline", err)
                self.assertIn("import into a node outside the pipeline", err)
            self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=6)), first)
            c.wait_quiet()


if __name__ == "__main__":
    unittest.main(verbosity=2)

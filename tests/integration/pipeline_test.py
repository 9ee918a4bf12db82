#!/usr/bin/env python3
"""Prefill pipelines of two and three processes: the text of one process, reuse, and the death of a member."""

import concurrent.futures
import threading
import unittest

from cluster import Cluster, Random, cached, oracle, token_ids, until

FLAGS = ["--dtype", "f32", "--threads", "1", "--chunk-tokens", "64"]


def stage(c, leader, number, of):
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
                asking.join(60)
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


if __name__ == "__main__":
    unittest.main(verbosity=2)

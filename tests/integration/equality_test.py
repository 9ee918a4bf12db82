#!/usr/bin/env python3
"""The cluster's greedy f32 tokens equal the single process's, wherever the KV came from."""

import concurrent.futures
import itertools
import signal
import unittest

import cluster
from cluster import Cluster, Random, cached, oracle, token_ids

BLOCK = 64
# Whether a fetch pays is measured at start, and on a busy machine anything may come out.
FETCH = ["--fetch-rule", "threshold"]


def reusable(ids):
    return (len(ids) - 1) // BLOCK * BLOCK


class Equality(unittest.TestCase):
    def check(self, c, ids, count, *flags, **fields):
        answer = c.complete(ids=ids, max_tokens=count, **fields)
        self.assertEqual(token_ids(answer), oracle(ids, count, *flags), answer["mc"])
        return answer

    def test_every_plan_transport_and_chunk_size_gives_the_oracles_tokens(self):
        cases = [
            ("full", "shm", 64),
            ("full", "tcp", 192),
            ("moba:block=64,top_k=3,full_last=1", "tcp", 4096),
            ("moba:block=128,top_k=2,full_last=0", "shm", 192),
        ]
        for attention, transport, chunk in cases:
            with self.subTest(attention=attention, transport=transport, chunk=chunk):
                flags = ["--attention", attention]
                with Cluster(
                    "1p1d", worker=["--dtype", "f32", "--transport", transport, "--chunk-tokens", str(chunk), *flags]
                ) as c:
                    for length in (1, 63, 64, 65, 700):
                        self.check(c, Random(length).ids(length), cluster.count(8, 24), *flags)
                    c.wait_quiet()

    def test_a_first_token_that_waits_for_the_second_changes_no_token_and_is_not_waited_for_alone(self):
        with Cluster("1p1d", conductor=["--first-token", "with-second"], worker=["--dtype", "f32"]) as c:
            for count in (1, 2, 17):
                self.check(c, Random(count).ids(200), count)
            c.wait_quiet()

    def test_a_prefix_gives_the_same_tokens_from_every_place_it_can_come_from(self):
        with Cluster("2p2d1c", conductor=FETCH, worker=["--dtype", "f32"]) as c:
            ids = Random(1).ids(1500)
            cold = self.check(c, ids + [11, 12], 20, mc={"pin": {"prefill": "p0", "decode": "d0"}})
            self.assertEqual(cached(cold), 0)
            local = self.check(c, ids + [13, 14], 20, mc={"pin": {"prefill": "p0", "decode": "d0"}})
            self.assertEqual(cached(local), reusable(ids))
            self.assertEqual(local["mc"]["cached_local_tokens"], reusable(ids))
            remote = self.check(c, ids + [15, 16], 20, mc={"pin": {"prefill": "p1", "decode": "d1"}})
            self.assertEqual(cached(remote), reusable(ids))
            self.assertEqual(remote["mc"]["cached_remote_tokens"], reusable(ids), remote["mc"])
            self.assertEqual(
                c.complete(ids=ids + [11, 12], max_tokens=20, mc={"no_cache": True})["usage"][
                    "prompt_tokens_details"
                ]["cached_tokens"],
                0,
            )
            c.wait_quiet()

    def test_fp8_pages_give_the_same_tokens_from_every_place_a_prefix_can_come_from(self):
        flags = ["--kv-dtype", "fp8_e4m3", "--attention", "moba:block=64,top_k=3,full_last=1"]
        with Cluster("2p2d1c", conductor=FETCH, worker=["--dtype", "f32", "--chunk-tokens", "512", *flags]) as c:
            ids = Random(1).ids(1500)
            cold = self.check(c, ids + [11, 12], 100, *flags, mc={"pin": {"prefill": "p0", "decode": "d0"}})
            self.assertEqual(cached(cold), 0)
            local = self.check(c, ids + [13, 14], 20, *flags, mc={"pin": {"prefill": "p0", "decode": "d0"}})
            self.assertEqual(local["mc"]["cached_local_tokens"], reusable(ids))
            remote = self.check(c, ids + [15, 16], 20, *flags, mc={"pin": {"prefill": "p1", "decode": "d1"}})
            self.assertEqual(remote["mc"]["cached_remote_tokens"], reusable(ids), remote["mc"])
            c.wait_quiet()

    def test_a_prefix_that_arrives_while_the_prompt_is_computed_gives_the_same_tokens(self):
        with Cluster(roles=["conductor"], conductor=FETCH) as c:
            c.start("p0", "--dtype", "f32")
            c.start("p1", "--dtype", "f32", "--load-by-layer", "1B", "--chunk-tokens", "1024")
            c.start("d0", "--dtype", "f32")
            c.wait_nodes()
            early, seeds = 0, cluster.count(2, 8)
            for seed in range(seeds):
                ids = Random(70 + seed).ids(1500)
                self.check(c, ids, 8, mc={"pin": {"prefill": "p0"}})
                remote = self.check(c, ids + Random(seed).ids(300), 20, mc={"pin": {"prefill": "p1"}})
                self.assertEqual(remote["mc"]["cached_remote_tokens"], reusable(ids), remote["mc"])
                early += remote["mc"]["fetch_hidden_ms"] > 0
            print(f"{early} of {seeds} prompts began before their prefix was there")
            c.wait_quiet()

    def test_a_seed_gives_one_text_on_every_node(self):
        with Cluster("2p2d", worker=["--dtype", "f32"]) as c:
            texts = set()
            for prefill in ("p0", "p1"):
                for decode in ("d0", "d1"):
                    body = {"prompt": "Tell me", "max_tokens": 20, "seed": 11, "temperature": 3.0, "n": 2}
                    pin = {"pin": {"prefill": prefill, "decode": decode}}
                    answer = c.post("/v1/completions", dict(body, ignore_eos=True, mc=pin))[2]
                    texts.add(tuple(choice["text"] for choice in answer["choices"]))
            self.assertEqual(len(texts), 1)
            self.assertEqual(len(set(texts.pop())), 2)

    def test_the_next_turn_reuses_the_blocks_of_the_answer(self):
        with Cluster("1p1d", conductor=FETCH, worker=["--dtype", "f32"]) as c:
            ids = Random(2).ids(100)
            first = self.check(c, ids, 120)
            turn = ids + token_ids(first) + Random(3).ids(10)
            second = self.check(c, turn, 30)
            # All tokens of the answer but the last have KV; whole blocks of it are found at the decode node.
            whole = (len(ids) + 119) // BLOCK * BLOCK
            self.assertEqual(cached(second), whole, second["mc"])
            c.wait_quiet()

    def test_blocks_demoted_to_the_cache_node_come_back_from_there(self):
        # A pool of 40 pages: three prompts of 12 blocks push each other out, to c0.
        with Cluster(roles=["conductor", "c0"], conductor=FETCH) as c:
            for name in ("p0", "d0"):
                c.start(name, "--dtype", "f32", "--kv-mem", "16MiB")
            c.wait_nodes()
            prompts = [Random(10 + i).ids(12 * BLOCK + 5) for i in range(4)]
            for ids in prompts:
                c.complete(ids=ids, max_tokens=4)
                c.wait_quiet()
            # A busy machine evicts a block before c0 has it, or gives the prompt's blocks from the decode node.
            for _ in range(10):
                for ids in prompts + prompts:
                    c.complete(ids=ids, max_tokens=4)
                sources = [self.check(c, ids, 6)["mc"]["cached_from"] for ids in prompts]
                if any("c0" in s for s in sources):
                    break
            self.assertTrue(any("c0" in s for s in sources), sources)
            c.wait_quiet()

    def test_a_prefix_read_from_two_nodes_at_once_gives_the_same_tokens_and_outlives_one_of_them(self):
        with Cluster(roles=["conductor"], conductor=FETCH) as c:
            for name in ("p0", "p1", "p2", "d0", "d1"):
                c.start(name, "--dtype", "f32")
            c.wait_nodes()
            ids = Random(30).ids(20 * BLOCK + 5)
            self.check(c, ids[: 10 * BLOCK + 5], 4, mc={"pin": {"prefill": "p0", "decode": "d0"}})
            self.check(c, ids, 4, mc={"pin": {"prefill": "p1", "decode": "d1"}})
            c.wait_quiet()
            answer = self.check(c, ids, 8, mc={"pin": {"prefill": "p2", "decode": "d1"}})
            self.assertEqual(answer["mc"]["cached_remote_tokens"], 20 * BLOCK, answer["mc"])
            sources = c.operate("GET", "/requests/" + answer["id"])["considered"][0]["sources"]
            self.assertEqual([(s["first_block"], s["blocks"]) for s in sources], [(0, 10), (10, 10)])
            self.assertEqual(answer["mc"]["cached_from"], {s["node"]: 10 * BLOCK for s in sources})
            c.wait_quiet()
            code, _, err = cluster.run("mc-cache", "evict", "p2", "--all", env=c.env)
            self.assertEqual(code, 0, err)
            cluster.until(lambda: c.node("p2")["blocks_indexed"] == 0, 60, "the index hears of the eviction")
            lost = c.processes[sources[0]["node"]].popen
            lost.send_signal(signal.SIGSTOP)  # the conductor has not noticed yet
            try:
                answer = self.check(c, ids, 8, mc={"pin": {"prefill": "p2", "decode": "d1"}})
            finally:
                lost.send_signal(signal.SIGCONT)
            self.assertEqual(answer["mc"]["cached_remote_tokens"], 20 * BLOCK, answer["mc"])
            self.assertNotIn(sources[0]["node"], answer["mc"]["cached_from"])

    def test_requests_that_push_each_other_out_of_a_small_pool_still_give_the_oracles_tokens(self):
        # 10 pages, and each of the three ends with 6; in full 13, and 10.
        memory, prompt, count = ("5MiB", 192, 400) if cluster.FULL else ("4MiB", 128, 250)
        with Cluster("1p1d", worker=["--dtype", "f32", "--kv-mem", memory]) as c:
            for turn in range(5):  # on a busy machine the three may run one after the other
                prompts = [Random(20 + 3 * turn + i).ids(prompt) for i in range(3)]
                with concurrent.futures.ThreadPoolExecutor(3) as pool:
                    answers = list(pool.map(lambda ids: c.complete(ids=ids, max_tokens=count), prompts))
                for ids, answer in zip(prompts, answers):
                    self.assertEqual(token_ids(answer), oracle(ids, count), answer["mc"])
                c.wait_quiet()  # the metrics of d0 lag
                if c.metric("d0", "vllm:num_preemptions_total") > 0:
                    break
            self.assertGreater(c.metric("d0", "vllm:num_preemptions_total"), 0)
            self.assertGreater(c.cluster()["totals"]["retried"], 0)

    def test_prefilled_kv_bytes_do_not_depend_on_the_chunk_size(self):
        plans, dtypes = ("full", "moba:block=64,top_k=3,full_last=1"), ("bf16", "f32")
        for attention, dtype in cluster.count(zip(plans, dtypes), itertools.product(plans, dtypes)):
            ids = ",".join(map(str, Random(4).ids(1000)))
            streams = []
            for chunk in (64, 192, 4096):
                code, out, err = cluster.run(
                    "mc-prefill",
                    "once",
                    "--prompt-ids",
                    ids,
                    "--kv-out",
                    "-",
                    "--temperature",
                    "0",
                    "--dtype",
                    dtype,
                    "--attention",
                    attention,
                    "--chunk-tokens",
                    chunk,
                )
                self.assertEqual(code, 0, err)
                streams.append(out)
            self.assertEqual(streams[0], streams[1])
            self.assertEqual(streams[0], streams[2])


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""Nodes on a device: a cluster whose nodes compute on the emulated GPU gives the tokens of the CPU, over every
way that KV takes, and a node whose GPU fails leaves with the reason. The prompts are short because the emulator runs
every instruction of every thread."""

import concurrent.futures
import re
import tempfile
import unittest

import cluster
import draws
from cluster import Cluster, cached, oracle, token_ids, until

BLOCK = 64
IDS = [5 + i * 7 % 900 for i in range(135)]  # two whole blocks and a tail
MOBA = "moba:block=64,top_k=2,full_last=1"
MODEL = ["--model", cluster.shallow_model()]
CPU = [*MODEL, "--dtype", "bf16", "--threads", "1"]
EMU = [*CPU, "--device", "emu"]
TWO = [*CPU, "--device", "emu,emu"]
CHUNKS = ["--chunk-tokens", "64"]
LAYERS = 3  # of the shallow model
FOUR_PAGES = ["--device-mem", "410KiB"]  # of the shallow model
# Nodes that start with a profile measure nothing. Where a node dies at a numbered operation, no other ones come before.
PROFILED = ["--cost", "a800-llama3-70b"]


def tokens_on_cpu(ids, count, attention):
    return oracle(ids, count, *MODEL, "--threads", "1", "--attention", attention, dtype="bf16")


@unittest.skipIf(cluster.is_sanitized(), "the emulator takes minutes with a sanitizer")
class OnDevice(unittest.TestCase):
    def check(self, c, ids, count, attention, **fields):
        answer = c.complete(ids=ids, max_tokens=count, **fields)
        self.assertEqual(token_ids(answer), tokens_on_cpu(ids, count, attention), answer["mc"])
        return answer

    def test_a_cluster_on_emu_gives_the_cpus_tokens_in_chunks_and_from_a_cached_prefix(self):
        cases = [("full", "shm", IDS[:70]), (MOBA, "tcp", IDS)]
        if cluster.FULL:
            cases += [("full", "tcp", IDS), (MOBA, "shm", IDS[:70])]
        for attention, transport, ids in cases:
            with self.subTest(attention=attention, transport=transport, tokens=len(ids)):
                flags = [*EMU, *CHUNKS, "--attention", attention, "--transport", transport]
                with Cluster("1p1d", worker=flags) as c:
                    cold = self.check(c, ids, 3 if transport == "shm" or cluster.FULL else 2, attention)
                    self.assertEqual(cached(cold), 0)
                    whole = len(ids) // BLOCK * BLOCK
                    warm = self.check(c, ids[:whole] + [17, 23, 31], 2, attention)
                    self.assertEqual(cached(warm), whole, warm["mc"])
                    c.wait_quiet()
                    if transport == "shm":
                        self.check_what_is_shown(c)

    def test_a_cluster_on_emu_with_pages_of_fp8_gives_the_cpus_tokens_cold_and_from_a_cached_prefix(self):
        fp8 = ["--kv-dtype", "fp8_e4m3", "--attention", "full"]
        with Cluster("1p1d", worker=[*EMU, *CHUNKS, *fp8]) as c:
            for ids, reused in ((IDS[:70], 0), (IDS[:64] + [17, 23, 31], BLOCK)):
                answer = c.complete(ids=ids, max_tokens=2)
                self.assertEqual(token_ids(answer), oracle(ids, 2, *MODEL, "--threads", "1", *fp8, dtype="bf16"))
                self.assertEqual(cached(answer), reused, answer["mc"])
            c.wait_quiet()

    def test_two_devices_that_share_a_model_give_the_cpus_tokens_in_chunks_and_from_a_cached_prefix(self):
        for attention, ids in (("full", IDS[:70]), (MOBA, IDS)):
            with self.subTest(attention=attention):
                flags = [*TWO, *CHUNKS, "--attention", attention, "--transport", "shm"]
                with Cluster("1p1d", worker=flags) as c:
                    self.assertEqual(cached(self.check(c, ids, 3, attention)), 0)
                    whole = len(ids) // BLOCK * BLOCK
                    warm = self.check(c, ids[:whole] + [17, 23, 31], 2, attention)
                    self.assertEqual(cached(warm), whole, warm["mc"])
                    self.assertEqual([n["device"] for n in c.cluster()["nodes"]], ["emu,emu", "emu,emu"])
                    self.assertRegex(c.processes["conductor"].text(), r"sums over devices .*library=\"?NCCL 2")
                    c.wait_quiet()

    def test_kv_of_two_devices_is_decoded_on_one_and_the_other_way_round_through_a_cache_node(self):
        with Cluster(conductor=MODEL, roles=["conductor", "c0"]) as c:
            c.start("p0", *TWO, *CHUNKS, *PROFILED)
            c.start("d0", *EMU, *PROFILED)
            c.wait_nodes()
            self.check(c, IDS[:70], 2, "auto")
            c.start("p1", *CPU)
            c.start("d1", *TWO, *PROFILED)
            c.wait_nodes()
            pin = {"pin": {"prefill": "p1", "decode": "d1"}}
            for fields in ({}, {"logprobs": 1}, {"temperature": 0.9, "top_k": 1, "seed": 5}):
                answer = self.check(c, [9, *IDS[1:70]], 3, "auto", mc=pin, **fields)
            self.assertEqual(cached(answer), BLOCK, answer["mc"])
            c.wait_quiet()

    def test_a_device_with_room_for_one_prompt_gives_the_cpus_tokens_from_blocks_that_it_loads_again(self):
        with Cluster(conductor=MODEL, roles=["conductor"]) as c:
            c.start("p0", *EMU, *CHUNKS, *PROFILED, *FOUR_PAGES)
            c.start("d0", *EMU, *PROFILED, *FOUR_PAGES)
            c.wait_nodes()
            prompts = {"full": IDS, MOBA: [9, *IDS[1:]]}  # of three pages
            for turn in range(2):
                for attention, ids in prompts.items():
                    answer = self.check(c, ids, 2, attention, mc={"attention": attention})
                    self.assertEqual(cached(answer), turn * 2 * BLOCK, answer["mc"])
            node = until(lambda: c.node("p0") if c.node("p0")["device_loaded_blocks"] >= 2 else None, 60, "a load")
            self.assertEqual(node["device_pages"], 4)
            self.assertGreater(node["device_evicted_blocks"], 0)
            self.assertGreater(node["device_block_ms"], 0)
            answer = c.complete(ids=IDS + IDS[:60], max_tokens=2, expect=400)  # of four pages, and one for the answer
            self.assertIn("192", answer["error"]["message"])
            self.check(c, IDS[:20], 2, "auto")
            c.wait_quiet()

    def check_what_is_shown(self, c):
        self.assertEqual([n["device"] for n in c.cluster()["nodes"]], ["emu", "emu"])
        code, out, err = c.verb("ps", "--wide")
        self.assertEqual(code, 0, err)
        said, head, *rows = out.decode().splitlines()
        self.assertIn(" on emu at ", said)
        at = head.split().index("DEVICE")
        self.assertEqual([row.split()[at] for row in rows], ["emu", "emu"])
        log = c.processes["conductor"].text()
        self.assertRegex(log, r"started .*device=\"?emu")
        self.assertRegex(log, r"memory of the device .*weights_bytes=\d+ .*kv_tokens=\d+ kv_on_host_bytes=\d+")

    def test_kv_of_a_node_on_emu_is_decoded_on_the_cpu_and_the_other_way_round_through_a_cache_node(self):
        with Cluster(conductor=MODEL, roles=["conductor", "c0"]) as c:
            c.start("p0", *EMU, *CHUNKS, *PROFILED)
            c.start("d0", *CPU)
            c.wait_nodes()
            self.check(c, IDS if cluster.FULL else IDS[:70], 2, "auto")
            self.assertEqual(c.node("p0")["device"], "emu")
            self.assertEqual(c.node("d0")["device"], "cpu")
            self.assertEqual(c.node("c0")["device"], "")
            c.start("p1", *CPU)
            c.start("d1", *EMU, *PROFILED)
            c.wait_nodes()
            pin = {"pin": {"prefill": "p1", "decode": "d1"}}
            for fields in ({}, {"logprobs": 1}):
                self.check(c, [9, *IDS[1:70]], 2, "auto", mc=pin, **fields)
            self.check_draws(c)
            c.wait_quiet()

    def test_a_plan_beyond_the_kernels_is_the_requests_fault_and_the_node_serves_on(self):
        with Cluster(conductor=MODEL, roles=["conductor"]) as c:
            for name in ("p0", "d0"):
                c.start(name, *EMU, *PROFILED)
            c.wait_nodes()
            for _ in range(4):  # three faults of a node would set it aside
                answer = c.complete(ids=IDS[:20], max_tokens=2, mc={"attention": "moba:block=64,top_k=32"}, expect=400)
                self.assertIn("top_k is 32, at most", answer["error"]["message"])
            self.check(c, IDS[:20], 2, "auto")
            c.wait_quiet()

    def check_draws(self, c):
        """Draws of one seed on d1's GPU and on d0's CPU, beside greedy ones."""
        sampling = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "min_p": 0.01}

        def drawn(decode):
            pin = {"pin": {"prefill": "p1", "decode": decode}}
            answer = c.complete(ids=IDS[3:70], max_tokens=4, mc=pin, seed=5, logprobs=20, **sampling)
            logprobs = answer["choices"][0]["logprobs"]
            rows = [list(top.items()) for top in logprobs["top_logprobs"]]
            return list(zip(logprobs["tokens"], logprobs["token_logprobs"], rows, strict=True))

        self.assertGreaterEqual(draws.check(self, drawn("d0"), drawn("d1"), LAYERS, sampling), 2)

    @unittest.skipUnless(cluster.FULL, "a part of the full tier")
    def test_a_pipeline_of_two_stages_on_emu_gives_the_cpus_tokens(self):
        with Cluster(conductor=MODEL, roles=["conductor"]) as c:
            for stage, name in enumerate(("p0", "p0.1")):
                words = ["mc-prefill", "--name", "p0", "--pipeline", f"{stage}/2", "--http", "127.0.0.1:0", "--json"]
                c.processes[name] = c.spawn([*words, *EMU, *CHUNKS, *PROFILED])
            c.start("d0", *CPU)
            c.wait_nodes()
            self.check(c, IDS, 3, "auto")
            c.wait_quiet()

    def test_kill_9_of_either_node_on_emu_costs_no_token(self):
        tokens = cluster.count(9, 12)  # enough for a status report while a node computes
        with Cluster(conductor=MODEL, roles=["conductor"]) as c, concurrent.futures.ThreadPoolExecutor(1) as pool:
            for name in ("p0", "d0"):
                c.start(name, *EMU, *PROFILED, *FOUR_PAGES)
            c.wait_nodes()
            for name in ("p0", "d0"):
                before = c.cluster()["totals"]["retried"]
                for turn in range(5):  # on a busy machine the node may be done before it is killed
                    ids = [IDS[0] + turn, *IDS[1:]]
                    answer = pool.submit(c.complete, ids=ids, max_tokens=tokens)
                    until(lambda: answer.done() or c.node(name)["running"] > 0, 60, f"{name} computes")
                    c.processes[name].kill()
                    c.start(name, *EMU, *PROFILED, *FOUR_PAGES)
                    given = answer.result()
                    self.assertEqual(token_ids(given), tokens_on_cpu(ids, tokens, "auto"), given["mc"])
                    if c.cluster()["totals"]["retried"] > before:
                        break
                self.assertGreater(c.cluster()["totals"]["retried"], before, name)
            c.wait_quiet()

    def test_a_node_whose_gpu_dies_in_a_request_leaves_with_the_reason_and_another_node_takes_the_request(self):
        cases = (
            ("p0", "emu:fault=45", "emu"),
            ("d0", "emu:fault=97", "emu"),
            ("p0", "emu,emu:fault=50", "emu[1]"),
            ("d0", "emu:fault=80,emu", "emu[0]"),
        )
        for name, device, failed in cases:
            with self.subTest(node=name, device=device), Cluster(conductor=MODEL, roles=["conductor"]) as c:
                for node in ("p0", "d0"):
                    c.start(node, *CPU, *PROFILED, "--device", device if node == name else "cpu")
                c.wait_nodes()
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    answer = pool.submit(c.complete, ids=IDS[:20], max_tokens=4)
                    node = c.processes[name]
                    self.assertEqual(node.popen.wait(60), 1, node.tail())
                    self.assertRegex(node.text(), r"error MC7006 .*uncorrectable ECC error .*CUDA error 214")
                    self.assertIn("next:  this fault was asked for by --device emu:fault=N", node.text())
                    c.start(name[0] + "1", *CPU, *PROFILED)
                    self.assertEqual(token_ids(answer.result()), tokens_on_cpu(IDS[:20], 4, "auto"))
                conductor = c.processes["conductor"]
                left = rf"node left .*{name}.*uncorrectable ECC error"
                until(lambda: re.search(left, conductor.text()), 60, "the reason in the conductor's log")
                retried = rf"request is retried .*reason=io why=\"{re.escape(failed)}: .*uncorrectable ECC error"
                until(lambda: re.search(retried, conductor.text()), 60, "the retry in the conductor's log")
                left = {"p0", "d0", name[0] + "1"} - {name}
                # The prefill node gives the last token, so the answer may come before the new node has joined.
                members = lambda: {n["id"] for n in c.cluster()["nodes"]}
                until(lambda: members() == left, 60, lambda: f"{members()} are {left}")

    def test_without_a_tier_a_decode_node_has_no_more_pages_than_its_device_can_hold(self):
        pages = {}
        for device in (["cpu"], ["emu:memory=43"], ["emu:memory=43", "--device-mem", "0"]):
            flags = ["--dtype", "bf16", *PROFILED, "--check", "--http", "127.0.0.1:0", "--device", *device]
            code, _, err = cluster.run("mc-decode", *flags)
            self.assertEqual(code, 0, err)
            pages[device[-1]] = int(re.search(r"check passed kv_bytes=(\d+)", err)[1]) / 204800
        self.assertGreater(pages["cpu"], 1000)
        self.assertEqual(pages["emu:memory=43"], pages["cpu"])
        self.assertGreater(pages["0"], 50)
        self.assertLess(pages["0"], 80)


class BadInput(unittest.TestCase):
    def test_a_node_names_the_device_that_it_cannot_use_before_it_loads_the_model(self):
        for tool in ("mc-prefill", "mc-decode"):
            code, _, err = cluster.run(tool, "--device", "cuda:1000", "--check", "--http", "127.0.0.1:0")
            self.assertEqual(code, 1, err)
            self.assertRegex(err, r"error MC7002 .*(no NVIDIA driver|no GPU 1000|no kernels for a GPU)")

    def test_a_node_says_before_it_loads_what_it_widens_for_its_gpu_and_counts_the_widened_bytes(self):
        flags = [*MODEL, "--dtype", "bf16", "--device", "emu", *PROFILED, "--check", "--http", "127.0.0.1:0"]
        code, _, err = cluster.run("mc-prefill", *flags, "--weight-dtype", "int8")
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r'"?weights widened to bf16: 13 of 13 matrices, 1\.36 MiB from 814 KiB"? device="?emu')
        code, _, err = cluster.run("mc-prefill", *flags)
        self.assertEqual(code, 0, err)
        self.assertNotIn("widened", err)

    def test_a_node_keeps_fp8_weights_where_its_device_multiplies_them_and_else_says_why_it_widens_them(self):
        with tempfile.TemporaryDirectory() as folder:
            shape = "--layers 2 --hidden 256 --intermediate 256 --heads 4 --kv-heads 2 --head-dim 64 --tied".split()
            code, _, err = cluster.run("mc-bench", "mkmodel", *shape, "--dtype", "fp8", "-o", folder + "/m")
            self.assertEqual(code, 0, err)
            flags = ["--model", folder + "/m", "--device", "emu", *PROFILED, "--check", "--http", "127.0.0.1:0"]
            kept = r'"?weights kept in fp8: 8 of 9 matrices'
            widened = r'"?weights widened to bf16: 8 of 9 matrices, .* why="products of fp8 need cuBLASLt"'
            for more, says in ((["--kernels", "cublaslt"], kept), (["--kernels", "own"], widened)):
                code, _, err = cluster.run("mc-prefill", *flags, *more)
                self.assertEqual(code, 0, err)
                self.assertRegex(err, says)
            code, _, err = cluster.run("mc-prefill", *flags, "--kernels", "cublaslt", "--weight-dtype", "full")
            self.assertEqual(code, 0, err)
            self.assertNotRegex(err, "weights (kept|widened)")

    def test_a_device_without_room_says_what_is_needed_what_is_free_and_what_fits(self):
        flags = ["--device", "emu:memory=28", *CHUNKS, "--check", "--http", "127.0.0.1:0"]
        code, _, err = cluster.run("mc-prefill", *flags)
        self.assertEqual(code, 1, err)
        need = r"needs 10 MiB for weights, 22 MiB of scratch and 1 MiB for KV, together 32 MiB; 28 of 28 MiB are free"
        self.assertRegex(err, rf"error MC7005 .*emu: the model {need}")
        self.assertRegex(err, r"next: +weights of at most 5 MiB fit; use a smaller model, --chunk-tokens")

    def test_several_devices_refuse_what_they_do_not_compute_together(self):
        cases = (
            (["--device", "emu,emu", "--device-mem", "1MiB"], r"--device-mem 1MiB: emu,emu are several devices", "0"),
            (["--device", "emu,emu,emu"], r"emu,emu,emu: the model's 4 attention heads cannot be split", "divides: 2"),
            (["--device", "emu,emu:memory=1"], r"emu\[1\]: the model needs .*; 1 of 1 MiB are free", "smaller"),
        )
        for flags, said, advice in cases:
            for tool in ("mc-prefill", "mc-decode"):
                with self.subTest(tool=tool, flags=flags):
                    code, _, err = cluster.run(tool, *CPU, *flags, *PROFILED, "--check", "--http", "127.0.0.1:0")
                    self.assertEqual(code, 1, err)
                    self.assertRegex(err, rf"error MC700[25] .*{said}")
                    self.assertRegex(err, rf"next: .*{advice}")

    def test_nodes_that_load_a_prefix_as_a_whole_refuse_to_load_it_by_layers(self):
        stage, device = "a stage of a pipeline", "a node whose KV goes to a device"
        costed = ["--runner", "costed:a800-llama3-70b"]
        cases = (
            ([*EMU, *PROFILED], device),
            ([*CPU, *PROFILED, "--name", "p0", "--pipeline", "0/2"], stage),
            ([*CPU, *PROFILED, "--name", "p0", "--pipeline", "1/2"], stage),
            ([*costed, "--name", "p0", "--pipeline", "0/2"], stage),
            ([*costed, "--device-mem", "50%"], device),
        )
        for flags, node in cases:
            with self.subTest(flags=flags):
                check = [*flags, "--check", "--http", "127.0.0.1:0"]
                code, _, err = cluster.run("mc-prefill", *check, "--load-by-layer", "1MiB")
                self.assertEqual(code, 2, err)
                self.assertIn(f"--load-by-layer 1MiB: {node} loads a prefix as a whole", err)
                code, _, err = cluster.run("mc-prefill", *check, "--load-by-layer", "off")
                self.assertEqual(code, 0, err)

    def test_a_tier_that_does_not_fit_on_the_device_is_refused_with_what_fits(self):
        pages = r"--device-mem holds \d+ pages of KV, and \d+ fit beside the weights on emu"
        cases = (
            ("1GiB", pages, r"give --device-mem at most \d+"),
            ("1KiB", r"--device-mem holds 0 pages of .*; a node needs 4", r"give --device-mem at least \d+"),
        )
        for tool in ("mc-prefill", "mc-decode"):
            for size, said, advice in cases:
                with self.subTest(tool=tool, size=size):
                    flags = ["--dtype", "bf16", "--device", "emu:memory=64", "--device-mem", size, *PROFILED]
                    code, _, err = cluster.run(tool, *flags, "--check", "--http", "127.0.0.1:0")
                    self.assertEqual(code, 1, err)
                    self.assertRegex(err, rf"error MC7005 .*{said}")
                    self.assertRegex(err, rf"next: +{advice}")

    def test_a_node_plans_the_memory_of_moba_where_the_rows_that_it_computes_have_it(self):
        cases = (
            ("mc-prefill", ["--chunk-tokens", "1024", "--attention", "full"], 32),
            ("mc-prefill", ["--chunk-tokens", "1024", "--attention", "full", "--decode-attention", MOBA], 32),
            ("mc-prefill", ["--chunk-tokens", "1024", "--attention", MOBA], 42),
            ("mc-decode", ["--inline-tokens", "512", "--attention", "full"], 27),
            ("mc-decode", ["--inline-tokens", "512", "--attention", "full", "--prefill-attention", MOBA], 33),
        )
        for tool, flags, scratch in cases:
            with self.subTest(tool=tool, flags=flags):
                code, _, err = cluster.run(tool, "--dtype", "bf16", "--device", "emu:memory=8", *flags, "--check",
                                           "--http", "127.0.0.1:0")
                self.assertEqual(code, 1, err)
                self.assertRegex(err, rf"error MC7005 .* {scratch} MiB of scratch")

    def test_a_local_cluster_passes_the_device_on(self):
        code, out, err = cluster.run("mc-conductor", "--local", "1p1d1c", "--device", "emu", "--print-commands")
        self.assertEqual(code, 0, err)
        lines = out.decode().splitlines()
        self.assertEqual(["--device emu" in line for line in lines], [True, True, False], lines)
        code, _, err = cluster.run("mc-conductor", "--local", "1p1d", "--device", "gpu")
        self.assertNotEqual(code, 0)
        self.assertIn("MC1002", err)


if __name__ == "__main__":
    for program in ("mc-conductor", "mc-prefill", "mc-decode", "mc-cache"):
        cluster.program(program)
    unittest.main()

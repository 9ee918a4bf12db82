"""The GPU kernels in the emulator: every kernel, shape and plan against the reference, and every mutant reported.

`mc-bench gpu` does the work; this test chooses the cases. Each case and each mutant of an attention kernel runs under
one policy, by turns. Each kernel has at least three cases for each head dimension and type of K and V, which meet all
policies. MC_TEST_FULL=1 runs 50 schedules of each case under each policy, and one schedule of each mutant under each
policy. The host compiler compiled the kernels, so no build lacks them.
"""

import glob
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import cluster

LIB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "lib")
FULL = os.environ.get("MC_TEST_FULL") == "1"
PLANS = "full,window:tokens=70,moba:block=64,top_k=2,moba:block=128,top_k=3"


def gpu(*words, timeout=600):
    code, out, err = cluster.run("mc-bench", "gpu", *words, "--json", "--quiet", timeout=timeout)
    return code, [json.loads(line) for line in out.splitlines()], err


class Kernels(unittest.TestCase):
    cases = runs = tests = 0
    policies = {}  # met by each kernel with each head dimension and type of K and V

    def setUp(self):
        Kernels.tests += 1

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.cases:,} sound cases, {cls.runs:,} runs")
        if cls.tests == len(unittest.defaultTestLoader.getTestCaseNames(cls)):  # no test was chosen by its name
            few = {variant: met for variant, met in cls.policies.items() if len(met) < 3}
            assert not few, f"not all policies are met: {few}"

    def sound(self, *words):
        """Runs cases: none breaks a rule, such as the bank conflicts that an access states, and all are in bounds."""
        code, lines, err = gpu(*words, "--schedules", "50" if FULL else "0", timeout=3600)
        self.assertEqual(code, 0, err)
        points = [line for line in lines if line.get("type") == "point"]
        self.assertTrue(points)
        for point in points:
            self.assertLessEqual(point["error_share"], 1, point)
            self.assertEqual(point["runs"], 150 if FULL else 1, point)
            met = Kernels.policies.setdefault((point["kernel"], point["head_dim"], point.get("dtype", "bf16")), set())
            met |= {"in-order", "random", "sticky"} if FULL else {point["policy"]}
        Kernels.runs += sum(point["runs"] for point in points)
        Kernels.cases += len(points)
        return points

    def test_decode_equals_the_reference(self):
        self.sound("--kernel", "decode", "--tokens", "1,64,65,200", "--head-dim", "64,128", "--attention", PLANS)

    def test_decode_of_a_cluster_equals_the_reference(self):
        self.sound("--kernel", "cluster", "--tokens", "1,64,65,200", "--head-dim", "64", "--attention", PLANS)
        self.sound("--kernel", "cluster", "--tokens", "200", "--head-dim", "128", "--attention", PLANS)

    def test_the_ctas_of_a_cluster_choose_among_the_blocks_of_all(self):
        self.sound("--kernel", "cluster", "--tokens", "4200", "--head-dim", "64", "--attention",
                   "moba:block=64,top_k=4,moba:block=128,top_k=3")

    def test_prefill_equals_the_reference(self):
        self.sound("--kernel", "prefill", "--tokens", "1,63,130", "--head-dim", "64", "--attention", PLANS)
        self.sound("--kernel", "prefill", "--tokens", "200", "--head-dim", "128", "--attention", PLANS)

    def test_pages_of_fp8_give_the_references_results(self):
        fp8 = ["--dtype", "fp8_e4m3"]
        self.sound("--kernel", "prefill,decode", "--tokens", "1,64,200", "--head-dim", "64", "--attention", PLANS, *fp8)
        # Batches of both: their kernels are the same, and four of five sequences are shorter than the longest.
        self.sound("--kernel", "mixed", "--tokens", "1,64,200" if FULL else "200", "--head-dim", "64", "--attention",
                   PLANS, *fp8)
        self.sound("--kernel", "prefill,decode", "--tokens", "130,200", "--head-dim", "128", "--splits", "3",
                   "--attention", "full,moba:block=128,top_k=2", "--block-tokens", "128", *fp8)

    def test_batches_of_chunks_and_decode_rows_equal_the_reference(self):
        self.sound("--kernel", "mixed", "--tokens", "65", "--head-dim", "64,128", "--attention",
                   "full,window:tokens=70,moba:block=64,top_k=2")

    def test_kernels_of_hopper_refuse_pages_of_fp8(self):
        code, _, err = gpu("--kernel", "hopper", "--tokens", "64", "--dtype", "fp8_e4m3")
        self.assertEqual(code, 2, err)
        self.assertIn("K and V are fp8_e4m3, which prefill and decode of sm_80 read", err)

    def test_prefill_of_hopper_equals_the_reference(self):
        self.sound("--kernel", "hopper", "--tokens", "1,64,130", "--head-dim", "64", "--attention", PLANS)
        self.sound("--kernel", "hopper", "--tokens", "200", "--head-dim", "128", "--attention", PLANS)

    def test_splits_of_the_keys_merge_to_one_result(self):
        # Five splits of four tiles: one has no keys.
        self.sound("--kernel", "decode,cluster,prefill,hopper", "--tokens", "200", "--head-dim", "64",
                   "--splits", "2,5", "--attention", "full,moba:block=64,top_k=2")
        self.sound("--kernel", "mixed", "--tokens", "200", "--head-dim", "64", "--splits", "2,5" if FULL else "5",
                   "--attention", "full,moba:block=64,top_k=2" if FULL else "moba:block=64,top_k=2")
        self.sound("--kernel", "decode,cluster,prefill,hopper", "--tokens", "200", "--head-dim", "128",
                   "--splits", "3", "--attention", "full")

    def test_many_chosen_blocks(self):
        self.sound("--kernel", "decode,cluster,prefill,hopper", "--tokens", "700", "--head-dim", "64",
                   "--attention", "moba:block=64,top_k=5")

    def test_the_own_block_alone_and_one_chosen_block(self):
        # top_k counts the block of the query itself.
        self.sound("--kernel", "decode,cluster,prefill,mixed,hopper,routed,wide,stationary,transposed,united",
                   "--tokens", "200", "--head-dim", "64", "--attention", "moba:block=64,top_k=1,moba:block=64,top_k=2")

    def test_moba_by_key_blocks_equals_the_reference(self):
        routed = "moba:block=64,top_k=2,moba:block=128,top_k=3,moba:block=192,top_k=2"
        self.sound("--kernel", "routed,wide", "--tokens", "1,64,500", "--head-dim", "64", "--attention", routed)
        self.sound("--kernel", "routed,wide", "--tokens", "70,130,400", "--head-dim", "128",
                   "--attention", "moba:block=64,top_k=3")

    def test_the_shapes_of_key_blocks_equal_the_reference_and_have_the_bits_of_wide(self):
        shapes = "stationary,transposed,united"
        small, large = "moba:block=64,top_k=3", "moba:block=128,top_k=3,moba:block=192,top_k=2"
        points = self.sound("--kernel", shapes, "--tokens", "1,200,500", "--head-dim", "64", "--attention", small)
        # 200 tokens have one complete block of these at most; the second sequence of a batch is as short at times.
        points += self.sound("--kernel", shapes, "--tokens", "1,200,500" if FULL else "500", "--head-dim", "64",
                             "--attention", large)
        points += self.sound("--kernel", shapes, "--tokens", "70,130,400", "--head-dim", "128", "--attention",
                             small + ",moba:block=128,top_k=2" if FULL else small)
        self.assertEqual({point["bits_of"] for point in points}, {"wide"})

    def test_pages_of_128_tokens_in_each_shape_of_key_blocks(self):
        self.sound("--kernel", "wide,stationary,transposed,united", "--tokens", "500", "--head-dim", "64",
                   "--block-tokens", "128", "--attention", "moba:block=128,top_k=3")

    def test_a_plan_that_is_not_moba_takes_the_plain_kernels(self):
        points = self.sound("--kernel", "routed,wide,stationary,transposed,united", "--tokens", "130", "--head-dim",
                            "64", "--attention", "full,window:tokens=70")
        self.assertFalse(any("bits_of" in point for point in points))

    def test_pages_of_128_tokens(self):
        self.sound("--kernel", "decode,cluster,prefill,hopper", "--tokens", "300", "--head-dim", "64",
                   "--block-tokens", "128", "--attention", "full,moba:block=128,top_k=2")


class Experts(unittest.TestCase):
    def test_mixtures_of_experts_equal_the_reference_under_every_policy(self):
        code, lines, err = gpu("--experts", "--schedules", "50" if FULL else "1", timeout=3600)
        self.assertEqual(code, 0, err)
        cases = [line for line in lines if line.get("type") == "experts"]
        self.assertEqual(len(cases), 7)
        for case in cases:
            self.assertLessEqual(case["error_share"], 1, case)
            self.assertEqual(case["runs"], 150 if FULL else 3, case)


class Products(unittest.TestCase):
    def test_products_by_each_body_are_within_their_bound_and_keep_the_bits_that_they_promise(self):
        code, lines, err = gpu("--products")
        self.assertEqual(code, 0, err)
        points = [line for line in lines if line.get("type") == "product"]
        bodies = {(p["body"], p["dtype"]) for p in points}
        self.assertEqual(bodies, {("own", "bf16"), ("cublaslt", "bf16"), ("cublaslt-tuned", "bf16"),
                                  ("cublaslt", "fp8")})
        for point in points:
            self.assertLessEqual(point["error_share"], 1, point)
            self.assertNotIn("not_run", point)
            self.assertNotIn("seconds", point)  # the emulator has no speed
            if point["body"] != "cublaslt-tuned":
                self.assertIsNot(point.get("same_bits"), False, point)
        # The emulated library gives an algorithm the rows of the product for which it was proposed. The tile of 128
        # inner elements is that of the algorithm for a chunk; it proposes smaller ones first, whose bits differ.
        few = {p["rows"]: p["algorithm"] for p in points if (p["body"], p["dtype"]) == ("cublaslt", "bf16")}
        self.assertEqual(few, {1: 4, 5: 8, 63: 64, 64: 64, 70: 128})
        self.assertEqual({p["tile"] for p in points if p["body"] == "cublaslt"}, {128})
        self.assertIn("cuBLASLt 13.1.0", lines[-1]["cublaslt"])


def read_gpu(pattern):
    """The text of the files of lib/gpu that match the pattern."""
    texts = []
    for path in sorted(glob.glob(os.path.join(LIB, "gpu", pattern))):
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    return "\n".join(texts)


class Instructions(unittest.TestCase):
    def test_each_instruction_gives_one_result_under_every_schedule(self):
        code, lines, err = gpu("--instructions")
        self.assertEqual(code, 0, err)
        rows = [line for line in lines if line.get("type") == "instruction"]
        for row in rows:
            self.assertEqual((row["runs"], row["differences"]), (4, 0), row)
        kernels = re.findall(r"KERNEL\((trial_\w+),", read_gpu("kernels/trial_*.cu"))
        self.assertEqual({row["kernel"] for row in rows}, set(kernels))

    def test_each_function_of_the_instructions_is_in_a_trial(self):
        functions = set(re.findall(r"^(?:MC_DEVICE|inline)[^;=\n]*?(\w+)\(", read_gpu("ptx/*.cuh"), re.MULTILINE))
        self.assertGreater(len(functions), 80)
        tried = set(re.findall(r"ptx::(\w+)", read_gpu("kernels/trial_*.cu")))
        self.assertEqual(functions - tried, {"has_fault"})  # of the emulator alone


class Mutants(unittest.TestCase):
    def test_every_mutant_is_reported_under_the_policy_whose_turn_it_is_or_under_each(self):
        code, lines, err = gpu("--mutants", "--schedules", "1" if FULL else "0")
        mutants = [line for line in lines if line.get("type") == "mutant"]
        self.assertEqual(code, 0, err)
        self.assertGreaterEqual(len(mutants), 200)  # those of the tables, and every synchronisation left out
        kernels = {mutant["kernel"] for mutant in mutants}
        experts = {"route_rows", "group_rows", "expert_product_16", "expert_product_64", "combine_experts"}
        self.assertLessEqual(experts, kernels)
        for mutant in mutants:
            self.assertEqual(mutant["caught"], mutant["of"], mutant)
        print(f"{len(mutants):,} mutants, {sum(mutant['of'] for mutant in mutants):,} runs: all are reported")

    def test_kernels_without_mutants_are_refused(self):
        code, _, err = gpu("--mutants", "--kernel", "mixed")
        self.assertEqual(code, 2, err)
        self.assertIn("no mutants", err)

    def test_without_the_rules_some_mutants_pass(self):
        """The negative control: results alone do not show every missing synchronisation."""
        code, lines, _ = gpu("--mutants", "--no-checks", *([] if FULL else ["--kernel", "decode"]))
        missed = [line["mutant"] for line in lines if line.get("type") == "mutant" and "none" in line["reported"]]
        self.assertEqual(code, 1)
        self.assertTrue(missed)


class Resources(unittest.TestCase):
    """Resources that ptxas gives a kernel, beside lib/gpu/kernels/resources.txt: lib/ptxas.cmake on the built PTX."""

    def assemble(self, edit):
        """The messages about the PTX of the layer kernels under an edited table; empty: it is taken."""
        ptxas = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
        built = os.path.join(cluster.BUILD, "kernels", "layer_sm80.ptx")
        if ptxas is None or not os.path.exists(built):
            self.skipTest("the build has no nvcc")
        with tempfile.TemporaryDirectory() as folder:
            ptx, table = os.path.join(folder, "layer_sm80.ptx"), os.path.join(folder, "resources.txt")
            shutil.copy(built, ptx)
            with open(os.path.join(LIB, "gpu", "kernels", "resources.txt"), encoding="utf-8") as file:
                rows = file.read()
            with open(table, "w", encoding="utf-8") as file:
                file.write(edit(rows))
            words = [f"-DPTXAS={ptxas}", "-DARCH=sm_80", f"-DPTX={ptx}", f"-DRESOURCES={table}"]
            done = subprocess.run(["cmake", *words, "-P", os.path.join(LIB, "ptxas.cmake")], capture_output=True,
                                  text=True, timeout=120)
            self.assertEqual(done.returncode == 0, os.path.exists(ptx), done.stderr)
            return " ".join(done.stderr.split())

    def test_a_kernel_beyond_its_row_of_the_table_is_refused(self):
        self.assertEqual(self.assemble(lambda rows: rows), "")
        for pattern, row, says in (
            (r"rms_norm +128 +12 +0", "rms_norm 128 64 0", r"rms_norm has \d+ registers a thread, 8 leave room for 64"),
            (r"silu_mul +128 +12 +0", "silu_mul 128 12 20480", r"silu_mul: 12 CTAs have 258048 bytes of shared memory"),
            (r"seal_pages +128", "seal_page 128", "seal_pages has no row"),
        ):
            self.assertRegex(self.assemble(lambda rows: re.sub(pattern, row, rows)), says)


class BadInput(unittest.TestCase):
    def test_wrong_use_is_named(self):
        for words, said in (
            (("--kernel", "encode"), "encode"),
            (("--tokens", "0"), "--tokens"),
            (("--splits", "65"), "--splits"),
            (("--head-dim", "96"), "head dimension is 96"),
        ):
            code, _, err = gpu(*words)
            self.assertNotEqual(code, 0, words)
            self.assertIn(said, err)
            self.assertIn("error MC1002", err)

    def test_a_missing_gpu_is_named_with_the_next_step(self):
        code, _, err = gpu("--device", "cuda:1000", "--kernel", "decode", "--tokens", "1")
        self.assertEqual(code, 1)
        missing = "7002 .*(no NVIDIA driver|no GPU 1000|no kernels for a GPU)"
        self.assertRegex(err, f"error MC({missing}|7004 .*supports CUDA)")
        self.assertIn("next:", err)


class Script(unittest.TestCase):
    SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "gpu-check")

    def check(self, *words):
        return subprocess.run([self.SCRIPT, *words, cluster.BUILD], capture_output=True, text=True, timeout=600)

    def test_without_a_gpu_it_says_so(self):
        done = self.check()
        if done.returncode == 0:
            self.skipTest("this host has a GPU")
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertRegex(done.stderr, "not run: .*(no NVIDIA driver|no GPU 0|no kernels for a GPU|the kernels need)")

    def test_a_rehearsal_in_the_emulator_takes_every_step_and_keeps_its_cases(self):
        # Kernels has the other plans and head dimensions.
        few = {} if FULL else {"MCT_GPU_LENGTHS": "1", "MCT_GPU_TEXT": "2", "MCT_GPU_HEAD_DIMS": "64",
                               "MCT_GPU_PLANS": "full,moba:block=64,top_k=2"}
        with tempfile.TemporaryDirectory() as out:
            done = subprocess.run([self.SCRIPT, "--rehearse", cluster.BUILD], capture_output=True, text=True,
                                  timeout=900, env=os.environ | few | {"OUT": out})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            head, *rows, total = done.stdout.splitlines()
            self.assertTrue(head.startswith("step "), head)
            self.assertEqual({row.split()[0] for row in rows},
                             {"instruction", "decode", "cluster", "prefill", "hopper", "routed", "wide", "stationary",
                              "transposed", "united", "mixed", "experts", "product", "model", "step", "llama",
                              "speed"})
            self.assertRegex(total, f"^{len(rows)} rows, 0 failed, ")
            with open(os.path.join(out, "gpu-check.json"), encoding="utf-8") as file:
                lines = [json.loads(line) for line in file]
            self.assertEqual(sum(line["type"] == "row" for line in lines), len(rows))
            points = [line for line in lines if line["type"] == "point"]
            self.assertGreater(len(points), 20)
            for kernel in ("decode", "cluster"):
                self.assertEqual({p["splits"] for p in points if p["kernel"] == kernel}, {1, 3, 64})
            self.assertEqual({p["kernel"] for p in points if p.get("bits_of") == "decode"}, {"cluster"})
            self.assertEqual({p["kernel"] for p in points if p.get("bits_of") == "wide"},
                             {"stationary", "transposed", "united"})
            clusters = [line["figure"] for line in lines if line.get("step") == "cluster"]
            self.assertTrue(clusters)
            for figure in clusters:
                self.assertRegex(figure, "^error 0[.0-9]+ of bound, bits of decode, [0-9]+ cases$")
            self.assertEqual([line["figure"] for line in lines if line.get("step") == "model"],
                             ["equal to the CPU's"] * 2)
            # Steps that are queued ahead, or as graphs, draw the tokens of steps one by one, or the program fails.
            steps = [line for line in lines if line["type"] == "steps"]
            self.assertEqual([(line["batch"], line["way"]) for line in steps],
                             [(2, "one by one"), (2, "ahead"), (2, "ahead, as graphs")])
            self.assertNotIn("seconds", steps[0])  # the emulator has no speed
            llama = [line for line in lines if line["type"] == "model"]
            self.assertEqual([(line["phase"], line["way"], line["batch"], line["tokens"]) for line in llama],
                             [("prefill", "chunks of 64", 1, 128), ("hand-over", "chunks of 64", 1, 128),
                              ("load", "at once", 1, 128), ("decode", "one by one", 2, 64), ("decode", "ahead", 2, 64),
                              ("decode", "ahead, as graphs", 2, 64)])
            self.assertGreater(llama[-1]["replayed"], 0)
            with open(os.path.join(out, "gpu-speed.json"), encoding="utf-8") as file:
                chosen = {line["routing"]: line["group_blocks"] for line in map(json.loads, file)
                          if "group_blocks" in line}
            # Two of the blocks behind the row's own, for two heads of a group.
            self.assertEqual(chosen["coherent"], 2)
            self.assertGreater(chosen["random"], 2)

    def script(self, name):
        loader = importlib.machinery.SourceFileLoader(name, os.path.join(os.path.dirname(self.SCRIPT), name))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(module)
        return module

    def test_a_time_is_judged_beside_the_fastest_peer_our_dense_attention_and_the_five_steps(self):
        moba = "moba:block=4096,top_k=12"

        def point(plan, tokens, seconds):
            return {"type": "speed", "kernel": "hopper", "attention": plan, "tokens": tokens, "batch": 1, "q_heads": 4,
                    "kv_heads": 2, "head_dim": 64, "seconds": seconds, "peak_share": None}

        points = [(point("full", 32768, 0.010), "ratio", 0.95), (point(moba, 32768, 0.0103), "own", 0.98),
                  (point(moba, 1048576, 1.0), "ratio", 8.5),
                  (point(moba, 1048576, 0.5) | {"routing": "coherent"}, "ratio", 14)]
        with tempfile.TemporaryDirectory() as out:
            path = os.path.join(out, "speed.json")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(p) + "\n" for p, _, _ in points)
            keys = [key for key, _ in self.script("gpu-peers").shapes([path])]
            check = self.script("gpu-check").Check(cluster.BUILD, out, True)
            peers = {(check.key(p, "prefill"), "own"): p["seconds"] for p, _, _ in points}
            self.assertLessEqual({key for key, _ in peers}, set(keys))
            dense = {tokens: check.key(point("full", tokens, 1), "prefill") for tokens in (32768, 1048576)}
            peers |= {(dense[32768], "flash"): 0.0098, (dense[32768], "cudnn"): 0.0096, (dense[1048576], "flex"): 8.0,
                      (check.key(points[2][0], "prefill"), "five steps"): 2.6}
            for p, bound, floor in points:
                check.judge(p, "prefill", bound, floor, peers)
            self.assertEqual([(row[1].partition(", to ")[2], row[4], row[6]) for row in check.rows],
                             [("", "0.96 x", "met"), ("our dense", "0.97 x", "missed"), ("", "8.00 x", "missed"),
                              ("the five steps", "2.60 x", "met"), ("", "16.00 x", "met")])
            self.assertIn("top_k=12, coherent, 1048576 x 1", check.rows[-1][1])

    @unittest.skipUnless(FULL, "packing takes a minute: MC_TEST_FULL=1")
    def test_a_bundle_is_small_and_holds_all_that_the_check_needs(self):
        bundle = subprocess.run([os.path.join(os.path.dirname(self.SCRIPT), "gpu-bundle"), cluster.BUILD],
                                capture_output=True, text=True, timeout=600)
        self.assertEqual(bundle.returncode, 0, bundle.stderr)
        with tempfile.TemporaryDirectory() as out:
            subprocess.run(["tar", "-C", out, "-xf", os.path.join(cluster.BUILD, "gpu-bundle.tar.xz")], check=True)
            done = subprocess.run([os.path.join(out, "scripts", "gpu-check"), "--rehearse"],
                                  capture_output=True, text=True, timeout=900, cwd=out,
                                  env=os.environ | {"MCT_GPU_LENGTHS": "1", "MCT_GPU_TEXT": "3", "OUT": out})
            for peer in ("gpu-peers", "gpu-model-peer"):
                self.assertTrue(os.access(os.path.join(out, "scripts", peer), os.X_OK), peer)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_folder_without_programs_is_refused_with_the_command_that_builds_them(self):
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run([self.SCRIPT, empty], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("ninja", done.stderr)


if __name__ == "__main__":
    cluster.program("mc-bench")
    unittest.main()

"""--device of the one-shot verbs: the GPU path in the emulator gives the CPU's text, greedy and drawn, and a device
that cannot be used is refused by name. The cases are small because the emulator runs every instruction of every
thread."""

import json
import os
import re
import tempfile
import unittest

import cluster
import draws

TOP_K = 40
LAYERS = 3  # of the shallow model
PLAIN = ["--ignore-eos", "--dtype", "bf16", "--threads", "1"]
GREEDY = ["--temperature", "0", *PLAIN]
SHALLOW = ["--model", cluster.shallow_model()]
PASSKEY = "The pass key is 48213. Remember it. " + "The grass is green. The sky is blue. " * 4 + "The pass key is"
IDS = ",".join(str(5 + i * 7 % 900) for i in range(135))  # two whole blocks of 64 and a tail


def result(device, *words, tool="mc-prefill", how=GREEDY, **kwargs):
    code, out, err = cluster.run(tool, "once", "--device", device, *how, "--json", *words, **kwargs)
    assert code == 0, f"{device} {words}: exit {code}: {err}"
    return json.loads(out.splitlines()[-1])


def answer(device, *words, **kwargs):
    return result(device, *words, **kwargs)["output_ids"]


def drawn(device, *words, how):
    """Each token with its log-probability and the likeliest ones, as draws.check() takes them."""
    rows = result(device, *words, "--logprobs", str(TOP_K), how=how)["logprobs"]
    return [(row["id"], row["logprob"], [(one["id"], one["logprob"]) for one in row["top"]]) for row in rows]


class Equality(unittest.TestCase):
    def equal(self, *words, how=GREEDY, device="emu"):
        on_cpu, on_emu = answer("cpu", *words, how=how), answer(device, *words, how=how)
        self.assertEqual(on_cpu, on_emu, words)
        return on_emu

    def test_a_greedy_answer_on_emu_is_the_cpu_s_over_full_attention(self):
        count, model = (5, []) if cluster.FULL else (3, SHALLOW)
        self.assertEqual(len(self.equal(*model, "-p", PASSKEY, "-n", str(count), "--attention", "full")), count)

    def test_a_greedy_answer_of_two_devices_that_share_a_model_is_the_cpu_s_over_full_attention_and_moba(self):
        count, model = (5, []) if cluster.FULL else (3, SHALLOW)
        for plan in ("full", "moba:block=64,top_k=2,full_last=1"):
            with self.subTest(plan=plan):
                words = [*model, "--prompt-ids", IDS, "-n", str(count), "--attention", plan, "--chunk-tokens", "64"]
                self.assertEqual(len(self.equal(*words, device="emu,emu")), count)

    def test_a_greedy_answer_of_two_devices_by_cublaslt_is_the_cpu_s_and_the_log_names_what_sums(self):
        words = [*SHALLOW, "-p", PASSKEY, "-n", "3", "--kernels", "cublaslt"]
        code, out, err = cluster.run("mc-prefill", "once", "--device", "emu,emu", *GREEDY, "--json", *words,
                                     "--log-level", "info")
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out.splitlines()[-1])["output_ids"], answer("cpu", *words[:-2]))
        self.assertRegex(err, r'sums over devices .*devices="?emu,emu"? library="NCCL 2')
        self.assertEqual(len(re.findall(r'matrix products .*device="?emu\[[01]\]', err)), 2, err)

    def test_a_greedy_answer_by_cublaslt_is_the_cpu_s_and_the_log_names_what_multiplies(self):
        count, model = (5, []) if cluster.FULL else (3, SHALLOW)
        words = [*model, "-p", PASSKEY, "-n", str(count)]
        want = answer("cpu", *words)
        for kernels, says in (("cublaslt", "cuBLASLt 13.1.0, workspace 32.0 MiB"), ("own", "own: --kernels own")):
            code, out, err = cluster.run("mc-prefill", "once", "--device", "emu", *GREEDY, "--json", *words,
                                         "--kernels", kernels, "--log-level", "info")
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out.splitlines()[-1])["output_ids"], want, kernels)
            self.assertRegex(err, rf'matrix products .*device="?emu"? kernels="{says}"')

    def test_a_greedy_answer_by_cublaslt_in_chunks_is_the_one_without_chunks(self):
        plan = ["--attention", "moba:block=64,top_k=2,full_last=1", "--kernels", "cublaslt"]
        words = [*SHALLOW, "--prompt-ids", IDS, "-n", "2", *plan]
        self.assertEqual(answer("emu", *words, "--chunk-tokens", "64"), answer("emu", *words, "--chunk-tokens", "128"))

    def test_a_greedy_answer_over_moba_in_chunks_is_the_cpu_s(self):
        plan = "moba:block=64,top_k=2,full_last=1"
        self.equal(*SHALLOW, "--prompt-ids", IDS, "-n", "2", "--attention", plan, "--chunk-tokens", "64")

    def test_a_greedy_answer_over_moba_by_key_blocks_is_the_cpu_s(self):
        """Chunks of 128 tokens: the second one takes shape S, the third one shape T, and both have union tiles."""
        shape = ["--layers", "2", "--hidden", "128", "--intermediate", "64", "--heads", "4", "--kv-heads", "1",
                 "--head-dim", "64", "--vocab", "264", "--tied"]
        with tempfile.TemporaryDirectory(prefix="mct-moba-") as folder:
            path = os.path.join(folder, "model")
            code, _, err = cluster.run("mc-bench", "mkmodel", "--arch", "qwen3", *shape, "-o", path)
            self.assertEqual(code, 0, err)
            ids = ",".join(str(20 + i * 37 % 240) for i in range(325))
            self.equal("--model", path, "--prompt-ids", ids, "-n", "2", "--attention", "moba:block=64,top_k=2",
                       "--chunk-tokens", "128")

    def test_a_greedy_answer_behind_a_prompt_of_two_splits_is_the_cpu_s(self):
        ids = ",".join(str(5 + i * 7 % 900) for i in range(530))
        for plan in ("full", "moba:block=64,top_k=3", "window:tokens=520") if cluster.FULL else ("full",):
            self.equal(*SHALLOW, "--prompt-ids", ids, "-n", "3", "--attention", plan)

    def test_a_greedy_answer_of_a_mixture_of_experts_is_the_cpu_s_with_and_without_a_shared_expert(self):
        shape = ["--layers", "2", "--hidden", "128", "--intermediate", "24", "--experts", "4", "--heads", "2",
                 "--head-dim", "64", "--vocab", "264", "--tied"]
        with tempfile.TemporaryDirectory(prefix="mct-experts-") as folder:
            for arch in ("qwen2_moe", "qwen3_moe"):
                path = os.path.join(folder, arch)
                code, _, err = cluster.run("mc-bench", "mkmodel", "--arch", arch, *shape, "-o", path)
                self.assertEqual(code, 0, err)
                ids = ",".join(str(20 + i * 37 % 240) for i in range(66))
                self.equal("--model", path, "--prompt-ids", ids, "-n", "3", "--chunk-tokens", "64")

    def test_a_greedy_answer_of_an_fp8_checkpoint_that_is_widened_is_the_cpu_s(self):
        with tempfile.TemporaryDirectory() as folder:
            shape = "--layers 2 --hidden 256 --intermediate 256 --heads 4 --kv-heads 2 --head-dim 64 --tied".split()
            code, _, err = cluster.run("mc-bench", "mkmodel", *shape, "--dtype", "fp8", "-o", folder + "/m")
            self.assertEqual(code, 0, err)
            self.equal("--model", folder + "/m", "--prompt-ids", "5,12,19,26,33", "-n", "3")

    def test_one_seed_draws_by_the_same_numbers_on_emu_and_on_the_cpu(self):
        sampling = {"temperature": 0.8, "top_k": TOP_K, "top_p": 0.95, "min_p": 0.01}
        flags = [word for name, value in sampling.items() for word in ("--" + name.replace("_", "-"), str(value))]
        compared = 0
        seeds = ("3", "8") if cluster.FULL else ("3",)
        for seed in seeds:
            how = [*flags, "--seed", seed, *PLAIN]
            answers = [drawn(device, *SHALLOW, "-p", PASSKEY, "-n", "5", how=how) for device in ("cpu", "emu")]
            compared += draws.check(self, *answers, LAYERS, sampling)
        self.assertGreaterEqual(compared, 2 * len(seeds))  # of 5 a seed: more than the first tokens

    def test_kv_that_emu_wrote_is_continued_on_the_cpu_and_the_other_way_round(self):
        count = "4" if cluster.FULL else "3"
        want = answer("cpu", *SHALLOW, "-p", PASSKEY, "-n", count)
        with tempfile.TemporaryDirectory(prefix="mct-device-") as folder:
            for first, second in (("emu", "cpu"), ("cpu", "emu"), ("emu,emu", "cpu"), ("emu", "emu,emu")):
                path = os.path.join(folder, first + ".mckv")
                words = [*SHALLOW, "-p", PASSKEY, "-n", count, "--kv-out", path]
                code, _, err = cluster.run("mc-prefill", "once", "--device", first, *GREEDY, *words)
                self.assertEqual(code, 0, err)
                self.assertEqual(answer(second, *SHALLOW, "--kv-in", path, "-n", count, tool="mc-decode"), want, first)


class BadInput(unittest.TestCase):
    def refused(self, number, says, *words):
        code, _, err = cluster.run(*words)
        self.assertNotEqual(code, 0, words)
        self.assertIn(f"error {number} ", err, words)
        for text in says:
            self.assertIn(text, err)

    def test_a_text_that_names_no_device_is_refused_with_the_names(self):
        for text in ("gpu", "cuda", "cuda:x", "emu:1"):
            words = ("mc-prefill", "once", "--device", text, "-p", "x")
            self.refused("MC1002", ("auto, cpu, cuda:N, emu, emu:fault=N, emu:memory=N",), *words)

    def test_a_list_that_is_no_set_of_gpus_is_refused_with_what_is_wrong(self):
        cases = (
            ("cuda:0,cuda:1,cuda:0", "lists cuda:0 twice"),
            ("cpu,emu", "lists the CPU beside other devices"),
            ("cuda:0,emu", "lists GPUs of the host and of the emulator"),
            ("emu,", "'' is no device"),
            ("cuda:0-16", "lists 17 GPUs"),
        )
        for text, says in cases:
            self.refused("MC1002", (says,), "mc-prefill", "once", "--device", text, "-p", "x")

    def test_a_model_that_cannot_be_split_is_refused_with_the_width_and_what_divides(self):
        says = ("emu,emu,emu: the model's 4 attention heads cannot be split over 3 devices", "that divides: 2")
        for tool in (("mc-prefill", "once", "-p", "x"), ("mc-prefill", "--http", "127.0.0.1:0", "--check")):
            self.refused("MC7002", says, *tool, *SHALLOW, "--device", "emu,emu,emu", "--dtype", "bf16")

    def test_a_node_does_not_start_with_a_plan_that_its_device_cannot_compute(self):
        plan = "moba:block=64,top_k=18,full_last=1"
        for tool, flag in (("mc-prefill", "--prefill-attention"), ("mc-decode", "--decode-attention")):
            words = (tool, "--device", "emu", "--dtype", "bf16", "--threads", "1", *SHALLOW, flag, plan)
            says = f"{flag} {plan}: emu refuses it: attention on a GPU: top_k is 18, at most 17"
            self.refused("MC1002", (says, f"give {flag} a plan within the bounds of the device"), *words)

    def test_a_gpu_that_is_not_there_is_named_with_the_next_step(self):
        code, _, err = cluster.run("mc-prefill", "once", "--device", "cuda:1000", "-p", "x")
        self.assertEqual(code, 1)
        self.assertRegex(err, r"error MC7002 .*(no NVIDIA driver|no GPU 1000|no kernels for a GPU)")
        self.assertIn("next:", err)

    def test_what_multiplies_on_a_gpu_is_refused_on_the_cpu(self):
        for name in ("own", "cublaslt", "cublaslt-tuned"):
            says = (f"'{name}' computes matrix products of a GPU", "give --device cuda:N or emu")
            self.refused("MC7003", says, "mc-prefill", "once", "--kernels", name, "-p", "x")

    def test_a_compute_type_that_a_gpu_does_not_serve_is_named(self):
        says = "emu does not serve the compute type f32 yet"
        self.refused("MC7002", (says,), "mc-prefill", "once", "--device", "emu", "--dtype", "f32", "-p", "x")


if __name__ == "__main__":
    for program in ("mc-prefill", "mc-decode", "mc-bench"):
        cluster.program(program)
    unittest.main()

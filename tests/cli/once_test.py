"""The verbs that need no cluster: mc-prefill once, mc-decode once, mc-cache inspect.

First what they must do: KV as a byte stream through pipes and files, the same tokens whichever way it goes.
Then every bad input: an exit code, a number and a message that names the thing.
"""

import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
MODEL = os.path.join(ROOT, "lib", "model", "mc-tiny")
GREEDY = ["--temperature", "0", "--ignore-eos", "--dtype", "f32"]
IDS = ",".join(str(5 + i * 7 % 900) for i in range(150))  # two whole blocks of 64 and a tail


def last_json(out):
    return json.loads(out.splitlines()[-1])


class Once(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in ("mc-prefill", "mc-decode", "mc-cache"):
            cluster.program(tool)
        cls.dir = tempfile.mkdtemp(prefix="mct-once-")
        cls.stream = cls.made("mc-prefill", "once", "--prompt-ids", IDS, "--kv-out", "-", *GREEDY)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir, ignore_errors=True)

    @staticmethod
    def made(*words, **kwargs):
        code, out, err = cluster.run(*words, **kwargs)
        assert code == 0, f"{words}: exit {code}: {err}"
        return out

    def path(self, name):
        return os.path.join(self.dir, name)

    def file(self, name, data):
        with open(self.path(name), "wb") as file:
            file.write(data)
        return self.path(name)

    def refused(self, number, exit_code, *words, says=(), **kwargs):
        code, out, err = cluster.run(*words, **kwargs)
        self.assertEqual(code, exit_code, f"{words}: {err}")
        self.assertTrue(err.startswith(f"{words[0]}: error {number} "), f"{words}: {err}")
        self.assertLessEqual(len(err.splitlines()), 3, err)
        for text in says:
            self.assertIn(text, err)
        return out


class Streams(Once):
    def test_a_stream_in_a_file_is_for_its_user_alone(self):
        path = self.path("mine.mckv")
        self.made("mc-prefill", "once", "--prompt-ids", IDS, "--kv-out", path, *GREEDY)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)

    def test_text_is_printed_while_it_is_made(self):
        tokens = 8000  # seconds of work
        words = [cluster.program("mc-prefill"), "once", "-p", "Once upon a time", "-n", str(tokens), "--ignore-eos"]
        for _ in range(10):  # on a busy machine the program may end before this test reads the first byte
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            first = os.read(process.stdout.fileno(), 1)
            process.kill()
            rest, err = process.communicate(timeout=100)
            self.assertTrue(first, err)
            if len(rest) < tokens:  # less than the whole text, in which few tokens have no byte
                return
        self.fail("the whole text was there with its first byte, ten times")

    def test_a_stream_of_nothing_is_told_as_that(self):
        said = ("stdin is empty", "where: --kv-in -", "mc-prefill once --kv-out")
        self.refused("MC6001", 1, "mc-decode", "once", "--kv-in", "-", stdin=b"", says=said)
        self.refused("MC6001", 1, "mc-decode", "once", "--kv-in", "-", stdin=self.stream[:100])

    def test_text_ends_with_one_newline_and_json_says_the_same(self):
        prompt = ["-p", "Once upon a time", "-n", "6", *GREEDY]
        text = self.made("mc-prefill", "once", *prompt).decode()
        result = last_json(self.made("mc-prefill", "once", *prompt, "--json"))
        self.assertEqual(text, result["text"] + "\n")
        self.assertEqual(
            (result["type"], len(result["output_ids"]), result["finish_reason"]), ("result", 6, "length")
        )
        for key in ("prefill_ms", "decode_ms", "prefill_tokens_per_s", "decode_tokens_per_s"):
            self.assertGreater(result["timings"][key], 0)

    def test_prompt_from_file_stdin_and_flag_are_the_same_prompt(self):
        text = "The capital of France is"
        flags = ["-n", "4", "--json", *GREEDY]
        given = last_json(self.made("mc-prefill", "once", "-p", text, *flags))
        read = last_json(self.made("mc-prefill", "once", "-f", self.file("p.txt", text.encode()), *flags))
        piped = last_json(self.made("mc-prefill", "once", "-f", "-", *flags, stdin=text.encode()))
        self.assertEqual(given["output_ids"], read["output_ids"])
        self.assertEqual(given["output_ids"], piped["output_ids"])
        self.assertEqual(given["prompt_tokens"], piped["prompt_tokens"])

    def test_a_piped_stream_gives_the_tokens_of_one_process(self):
        for plan in ("full", "moba:block=64,top_k=3"):
            flags = ["--prompt-ids", IDS, "--attention", plan, *GREEDY]
            whole = last_json(self.made("mc-prefill", "once", *flags, "-n", 20, "--json"))
            stream = self.made("mc-prefill", "once", *flags, "--kv-out", "-")
            split = last_json(
                self.made("mc-decode", "once", "--kv-in", "-", "-n", 20, "--json", *GREEDY, stdin=stream)
            )
            self.assertEqual(whole["output_ids"], split["output_ids"], plan)
            self.assertEqual(whole["text"], split["text"])

    def test_a_stream_of_fp8_gives_the_tokens_of_one_process_in_half_of_the_bytes(self):
        fp8 = ["--kv-dtype", "fp8_e4m3"]
        for plan in ("full", "moba:block=64,top_k=2"):
            flags = ["--prompt-ids", IDS, "--attention", plan, *fp8, *GREEDY]
            whole = last_json(self.made("mc-prefill", "once", *flags, "-n", 20, "--json"))
            stream = self.made("mc-prefill", "once", *flags, "--kv-out", "-")
            split = last_json(
                self.made("mc-decode", "once", "--kv-in", "-", "-n", 20, "--json", *fp8, *GREEDY, stdin=stream)
            )
            self.assertEqual(whole["output_ids"], split["output_ids"], plan)
        found = last_json(self.made("mc-cache", "inspect", "--json", "-", stdin=stream))
        self.assertEqual((found["kv_dtype"], found["sound"]), ("fp8_e4m3", True))
        bf16 = self.made(
            "mc-prefill", "once", "--prompt-ids", IDS, "--temperature", 0, "--dtype", "bf16", "--kv-out", "-"
        )
        half = last_json(self.made("mc-cache", "inspect", "--json", "-", stdin=bf16))["extent_bytes"]
        self.assertLess(found["extent_bytes"], 0.53 * half)

    def test_a_real_pipe_works_in_bounded_memory(self):
        """Both programs at once, as a user types it."""
        line = (
            f"mc-prefill once --prompt-ids {IDS} --kv-out - --dtype f32 --temperature 0 | "
            "mc-decode once --kv-in - -n 5 --ignore-eos --dtype f32 --json"
        )
        env = dict(os.environ, PATH=os.path.abspath(cluster.BUILD) + os.pathsep + os.environ["PATH"])
        done = subprocess.run(["bash", "-o", "pipefail", "-c", line], env=env, capture_output=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        whole = last_json(self.made("mc-prefill", "once", "--prompt-ids", IDS, "-n", 5, "--json", *GREEDY))
        self.assertEqual(last_json(done.stdout)["output_ids"], whole["output_ids"])

    def test_chunks_do_not_change_a_byte_of_the_stream(self):
        for chunk in (64, 128):
            again = self.made(
                "mc-prefill", "once", "--prompt-ids", IDS, "--kv-out", "-", "--chunk-tokens", chunk, *GREEDY
            )
            self.assertEqual(again, self.stream, f"--chunk-tokens {chunk}")

    def test_sampling_travels_with_the_stream(self):
        sampling = ["--temperature", "8", "--top-k", "500", "--seed", "9"]  # flat, whatever the model is sure of
        flags = ["--prompt-ids", IDS, "--dtype", "f32", "--ignore-eos", *sampling]
        decode = ["mc-decode", "once", "--kv-in", "-", "--dtype", "f32", "--json"]
        whole = last_json(self.made("mc-prefill", "once", *flags, "-n", 12, "--json"))
        stream = self.made("mc-prefill", "once", *flags, "-n", 12, "--kv-out", "-")
        split = last_json(self.made(*decode, stdin=stream))
        self.assertEqual(whole["output_ids"], split["output_ids"])
        other = last_json(self.made(*decode, "--seed", 10, stdin=stream))
        self.assertNotEqual(whole["output_ids"], other["output_ids"])

    def test_inspect_tells_the_stream_as_text_and_json(self):
        found = last_json(self.made("mc-cache", "inspect", "-", "--json", stdin=self.stream))
        self.assertEqual((found["type"], found["sound"], found["damage"]), ("mckv", True, None))
        self.assertTrue(found["namespace_matches"])
        self.assertEqual((found["prompt_tokens"], found["block_tokens"], found["kv_dtype"]), (150, 64, "f32"))
        self.assertEqual(
            [(b["first_position"], b["tokens"]) for b in found["blocks"]], [(0, 64), (64, 64), (128, 22)]
        )
        self.assertIsNone(found["blocks"][2]["id"])
        self.assertTrue(all(b["id_matches"] and b["checksums_hold"] for b in found["blocks"]))
        text = self.made("mc-cache", "inspect", self.file("a.mckv", self.stream)).decode()
        self.assertEqual(text.splitlines()[-1], "sound")
        for word in (found["namespace"], found["blocks"][0]["id"], "(tail, not indexed)", "150 tokens in 3 blocks"):
            self.assertIn(word, text)

    def test_logits_are_a_numpy_row(self):
        path = self.path("l.npy")
        self.made("mc-decode", "once", "--kv-in", "-", "-n", 1, "--logits-out", path, *GREEDY, stdin=self.stream)
        with open(path, "rb") as file:
            data = file.read()
        header = 10 + struct.unpack("<H", data[8:10])[0]
        self.assertTrue(data.startswith(b"\x93NUMPY\x01\x00"))
        self.assertEqual((header % 64, len(data) - header), (0, 2048 * 4))
        logits = struct.unpack(f"<{2048}f", data[header:])
        whole = last_json(self.made("mc-prefill", "once", "--prompt-ids", IDS, "-n", 2, "--json", *GREEDY))
        self.assertEqual(logits.index(max(logits)), whole["output_ids"][1])

    def test_log_probabilities_come_with_each_token(self):
        flags = ["--prompt-ids", "5,17,9", "-n", 3, "--logprobs", 4, "--json", *GREEDY]
        result = last_json(self.made("mc-prefill", "once", *flags))
        self.assertEqual([p["id"] for p in result["logprobs"]], result["output_ids"])
        for position in result["logprobs"]:
            self.assertEqual(len(position["top"]), 4)
            self.assertEqual(position["top"][0]["id"], position["id"])
            self.assertLessEqual(position["logprob"], 0)

    def test_results_go_to_the_named_file_only(self):
        path = self.path("out.json")
        out = self.made("mc-prefill", "once", "--prompt-ids", "5", "-n", 2, "--json", "-o", path, *GREEDY)
        self.assertEqual(out, b"")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["output_ids"]), 2)

    def test_a_stop_string_is_cut_off(self):
        flags = ["--prompt-ids", IDS, "-n", "12", "--json", *GREEDY]
        whole = last_json(self.made("mc-prefill", "once", *flags))["text"]
        stop = whole[3:6]
        cut = last_json(self.made("mc-prefill", "once", *flags, "--stop", stop))
        if "," in stop or not stop:
            self.skipTest(f"the answer has no usable piece: {whole!r}")
        self.assertEqual((cut["text"], cut["finish_reason"]), (whole[: whole.index(stop)], "stop"))


class BadModels(Once):
    def model(self, name, **config):
        """A copy of mc-tiny with some keys of config.json replaced."""
        path = self.path(name)
        shutil.copytree(MODEL, path)
        if config:
            with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
                found = json.load(file)
            found.update(config)
            with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
                json.dump(found, file)
        return path

    def weights(self, name, change):
        """mc-tiny with its header changed: change(header) in place."""
        path = self.model(name)
        file_name = os.path.join(path, "model.safetensors")
        with open(file_name, "rb") as file:
            data = file.read()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        with open(file_name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data[8 + size :])
        return path

    def once(self, number, path, *says, exit_code=1):
        out = self.refused(number, exit_code, "mc-prefill", "once", "-m", path, "--prompt-ids", "5", says=says)
        self.assertEqual(out, b"")

    def test_a_missing_directory(self):
        self.once("MC3001", self.path("nowhere"), "there is no directory", "nowhere")

    def test_missing_files_are_named(self):
        for missing, says in (
            ("model.safetensors", "model.safetensors"),
            ("config.json", "config.json"),
        ):
            path = self.model("without-" + missing)
            os.remove(os.path.join(path, missing))
            self.once("MC3001", path, says)

    def test_a_model_without_a_tokenizer_takes_and_gives_token_ids(self):
        path = self.model("only-ids")
        os.remove(os.path.join(path, "tokenizer.json"))
        words = ["mc-prefill", "once", "--prompt-ids", IDS, "-n", "8", *GREEDY]
        whole = last_json(self.made(*words, "--json"))
        ids = last_json(self.made(*words, "--json", "-m", path))
        self.assertEqual(ids["output_ids"], whole["output_ids"])
        self.assertEqual(ids["text"], "")
        printed = self.made(*words, "-m", path).decode()
        self.assertEqual(printed, " ".join(map(str, whole["output_ids"])) + "\n")
        stream = self.made(*words, "-m", path, "--kv-out", "-")
        decoded = self.made("mc-decode", "once", "--kv-in", "-", "-m", path, "--dtype", "f32", stdin=stream).decode()
        self.assertEqual(decoded, printed)
        says = ("the model takes token ids only", "tokenizer.json", "--prompt-ids")
        self.refused("MC3007", 1, "mc-prefill", "once", "-m", path, "-p", "text", says=says)

    def test_a_model_with_a_rank_file_takes_text(self):
        path = self.model("ranks")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            os.remove(os.path.join(path, name))
        with open(os.path.join(path, "bytes.tiktoken"), "wb") as file:
            file.writelines(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
        words = ["mc-prefill", "once", "-m", path, "-n", "8", "--json", *GREEDY]
        says = ("no encoding is known by the name 'bytes'", "tiktoken.json")
        self.refused("MC3007", 1, *words, "-p", "text", says=says)
        with open(os.path.join(path, "tiktoken.json"), "w", encoding="utf-8") as file:
            json.dump({"pat_str": "[a-z]+|[^a-z]+", "special_tokens": {}}, file)
        of_text = last_json(self.made(*words, "-p", "a word"))
        of_ids = last_json(self.made(*words, "--prompt-ids", ",".join(map(str, b"a word"))))
        self.assertEqual(of_text["output_ids"], of_ids["output_ids"])
        self.assertEqual(of_text["prompt_tokens"], 6)

    def test_a_cluster_without_a_tokenizer_serves_token_ids(self):
        path = self.model("only-ids-served")
        os.remove(os.path.join(path, "tokenizer.json"))
        ids = [int(i) for i in IDS.split(",")]
        whole = last_json(self.made("mc-prefill", "once", "--prompt-ids", IDS, "-n", "8", "--json", *GREEDY))
        with cluster.Cluster("1p1d", worker=["-m", path, "--dtype", "f32"]) as c:
            answer = c.complete(ids=ids, max_tokens=8)
            self.assertEqual(answer["choices"][0]["token_ids"], whole["output_ids"])
            self.assertEqual(answer["choices"][0]["text"], "")
            status, _, refused = c.post("/v1/completions", {"prompt": "text", "max_tokens": 4})
            self.assertEqual(status, 400, refused)
            self.assertIn("token ids", refused["error"]["message"])

    def test_truncated_weights_name_tensor_and_bytes(self):
        path = self.model("truncated")
        os.truncate(os.path.join(path, "model.safetensors"), 5_000_000)
        self.once("MC3002", path, "model.safetensors", "tensor", "truncated")
        for size in (0, 7, 8, 100):
            os.truncate(os.path.join(path, "model.safetensors"), size)
            self.once("MC3002", path, "model.safetensors")

    def test_lying_headers(self):
        def beyond(header):
            header["model.embed_tokens.weight"]["data_offsets"][1] += 10**9

        def backwards(header):
            header["model.embed_tokens.weight"]["data_offsets"] = [64, 0]

        def shape(header):
            header["model.embed_tokens.weight"]["shape"][0] += 1

        def dtype(header):
            header["model.embed_tokens.weight"]["dtype"] = "F32"

        for name, change in (("beyond", beyond), ("backwards", backwards), ("shape", shape), ("dtype", dtype)):
            self.once("MC3002", self.weights(name, change), "model.embed_tokens.weight")

    def test_a_missing_tensor_is_named(self):
        path = self.weights("no-tensor", lambda header: header.pop("model.layers.3.mlp.up_proj.weight"))
        code, _, err = cluster.run("mc-prefill", "once", "-m", path, "--prompt-ids", "5")
        self.assertEqual(code, 1, err)
        self.assertRegex(err, r"error MC300[12] .*")

    def test_an_unknown_architecture_and_rope_are_refused_by_value(self):
        path = self.model("arch", architectures=["MambaForCausalLM"])
        self.once("MC3003", path, "MambaForCausalLM", "LlamaForCausalLM")
        self.once(
            "MC3004", self.model("rope", rope_scaling={"rope_type": "longrope", "factor": 2.0}), "longrope", "yarn"
        )

    def test_impossible_configurations(self):
        for name, config in (
            ("heads", {"num_key_value_heads": 3}),
            ("hidden", {"hidden_size": -1}),
            ("layers", {"num_hidden_layers": 10**9}),
            ("type", {"head_dim": "many"}),
        ):
            path = self.model("config-" + name, **config)
            code, out, err = cluster.run("mc-prefill", "once", "-m", path, "--prompt-ids", "5")
            self.assertEqual((code, out), (1, b""), name)
            self.assertRegex(err, r"error MC300[1236] ", name)

    def test_a_config_that_is_not_json(self):
        path = self.model("not-json")
        with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
            file.write("{")
        code, _, err = cluster.run("mc-prefill", "once", "-m", path, "--prompt-ids", "5")
        self.assertEqual(code, 1)
        self.assertRegex(err, r"error MC300[26] .*config\.json")


class BadPrompts(Once):
    def once(self, number, exit_code, *words, says=(), **kwargs):
        self.assertEqual(self.refused(number, exit_code, "mc-prefill", "once", *words, says=says, **kwargs), b"")

    def test_text_that_is_not_utf8_names_the_byte(self):
        self.once("MC1004", 2, "-f", self.file("bad.txt", b"abc\xc3("), says=["byte 3"])
        self.once("MC1004", 2, "-f", "-", stdin=b"\xff", says=["byte 0"])

    def test_a_file_beyond_the_text_that_is_read_names_the_limit(self):
        says = ["input-too-large", "larger than the limit of 16777216 bytes"]
        self.once("MC1008", 2, "-f", self.file("large.txt", b"word " * (22 << 18)), says=["large.txt", *says])
        self.once("MC1008", 2, "-f", "-", stdin=b"word " * (22 << 18), says=["stdin", *says])

    def test_a_prompt_beyond_the_context_names_both_numbers(self):
        self.once("MC4005", 1, "-p", "hi", "-n", 9000, says=["9000", "8192"])
        self.once("MC4005", 1, "-f", self.file("long.txt", b"word " * 9000), "-n", 1, says=["8192"])

    def test_ids_must_be_ids(self):
        self.once("MC1002", 2, "--prompt-ids", "5,x", says=["x", "2048"])
        self.once("MC1002", 2, "--prompt-ids", "5,2048", says=["2048"])
        self.once("MC1002", 2, "--prompt-ids", "5,-1", says=["-1"])
        self.once("MC1002", 2, "--prompt-ids", "", says=["the list is empty"])

    def test_exactly_one_prompt(self):
        self.once("MC1001", 2)
        self.once("MC1001", 2, "-p", "a", "-f", "b")
        self.once("MC1001", 2, "-p", "a", "--prompt-ids", "5")
        self.once("MC5005", 1, "-f", self.path("none.txt"), says=["none.txt"])

    def test_numbers_out_of_range(self):
        for words in (
            ["-n", "0"],
            ["-n", "abc"],
            ["-n", "5000000000"],
            ["--temperature", "-1"],
            ["--top-p", "0"],
            ["--top-p", "1.5"],
            ["--min-p", "2"],
            ["--block-tokens", "100"],
            ["--block-tokens", "8"],
            ["--chunk-tokens", "100"],
            ["--chunk-tokens", "0"],
            ["--kernels", "abacus"],
            ["--dtype", "fp4"],
            ["--attention", "some"],
            ["--attention", "moba:block=0"],
        ):
            self.once("MC1002", 2, "-p", "a", *words)
        self.once("MC3009", 1, "-p", "a", "--attention", "moba:block=100", says=["100", "64"])

    def test_output_that_cannot_be_written(self):
        self.once("MC5005", 1, "-p", "a", "-n", 1, "-o", self.path("no/such/folder"))
        self.once("MC5005", 1, "-p", "a", "--kv-out", self.path("no/such/folder"))


class BadStreams(Once):
    def both(self, number, stream, *says):
        """mc-decode once and mc-cache inspect refuse the same stream with the same number."""
        path = self.file("bad.mckv", stream)
        self.refused(number, 1, "mc-decode", "once", "--kv-in", path, "--dtype", "f32", says=["bad.mckv", *says])
        self.refused(number, 1, "mc-cache", "inspect", path, says=["bad.mckv", *says])

    def test_truncation_anywhere(self):
        for size in (0, 3, 15, 16, 100, 1000, len(self.stream) // 2, len(self.stream) - 1):
            self.both("MC6001", self.stream[:size], "end of")

    def test_a_stream_cut_short_is_told_as_that_with_its_whole_blocks_and_its_end(self):
        size = len(self.stream) - 33  # one byte of the last block is missing
        path = self.file("cut.mckv", self.stream[:size])
        for name, stdin in ((path, None), ("-", self.stream[:size])):
            said = (f"{name}: the stream ends early, at byte {size}: ", " blocks are whole", "copy it whole")
            out = self.refused("MC6001", 1, "mc-cache", "inspect", name, stdin=stdin, says=said).decode()
            self.assertIn("  incomplete\n", out)
            self.assertNotIn("MISMATCH", out)
        json_out = self.refused("MC6001", 1, "mc-cache", "inspect", path, "--json", says=["at byte "])
        blocks = json.loads(json_out)["blocks"]
        self.assertEqual([b["checksums_hold"] for b in blocks], [True] * (len(blocks) - 1) + [False])

    def test_a_flipped_byte_anywhere(self):
        size = len(self.stream)
        for at in (0, 9, 13, 40, 900, size // 3, size // 2, size - 33, size - 20, size - 2):
            damaged = bytearray(self.stream)
            damaged[at] ^= 0x20
            self.both("MC6001", bytes(damaged))

    def test_a_flipped_value_names_block_and_layer(self):
        damaged = bytearray(self.stream)
        damaged[len(damaged) // 2] ^= 1
        self.both("MC6001", bytes(damaged), "block ", "layer ", "checksum")

    def test_another_version_of_the_format(self):
        self.both("MC6002", self.stream[:4] + b"\x09" + self.stream[5:], "version 9")

    def test_bytes_of_something_else(self):
        self.both("MC6001", b"hello\n" * 100)
        self.both("MC6001", b"\x00" * 4096)

    def test_a_missing_file(self):
        path = self.path("none.mckv")
        self.refused("MC5005", 1, "mc-decode", "once", "--kv-in", path, says=[path])
        self.refused("MC5005", 1, "mc-cache", "inspect", path, says=[path])
        self.refused("MC1001", 2, "mc-decode", "once")
        self.refused("MC1001", 2, "mc-cache", "inspect")

    def test_another_layout_prints_both_values(self):
        out = self.refused(
            "MC6003",
            1,
            "mc-decode",
            "once",
            "--kv-in",
            "-",
            "--block-tokens",
            128,
            "--dtype",
            "f32",
            stdin=self.stream,
            says=["block_tokens=64", "block_tokens=128"],
        )
        self.assertEqual(out, b"")
        self.refused(
            "MC6003",
            1,
            "mc-decode",
            "once",
            "--kv-in",
            "-",
            "--dtype",
            "bf16",
            stdin=self.stream,
            says=["dtype=f32", "dtype=bf16", "also compared and equal", "layers"],
        )
        fp8 = ["mc-decode", "once", "--kv-in", "-", "--dtype", "f32", "--kv-dtype", "fp8_e4m3"]
        out = self.refused("MC6003", 1, *fp8, stdin=self.stream, says=["kv_dtype=f32", "kv_dtype=fp8_e4m3"])
        self.assertEqual(out, b"")

    def test_another_type_of_kv_than_the_compute_type_is_refused_with_both_names(self):
        words = ["mc-prefill", "once", "--prompt-ids", IDS, "--dtype", "f32", "--kv-dtype", "bf16"]
        self.refused("MC3010", 1, *words, says=["'bf16'", "f32", "fp8_e4m3"])

    def test_another_model_is_foreign(self):
        path = self.path("other")
        shutil.copytree(MODEL, path)
        name = os.path.join(path, "model.safetensors")
        with open(name, "rb") as file:
            data = bytearray(file.read())
        data[-1000] ^= 1
        with open(name, "wb") as file:
            file.write(data)
        self.refused(
            "MC6003",
            1,
            "mc-decode",
            "once",
            "-m",
            path,
            "--kv-in",
            "-",
            "--dtype",
            "f32",
            stdin=self.stream,
            says=["weights="],
        )

    def test_a_reader_that_leaves_ends_the_writer_without_an_error_storm(self):
        line = f"mc-prefill once --prompt-ids {IDS} --kv-out - --dtype f32 | head -c 10 | wc -c"
        env = dict(os.environ, PATH=os.path.abspath(cluster.BUILD) + os.pathsep + os.environ["PATH"])
        done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.stdout.strip(), "10")
        self.assertLessEqual(len(done.stderr.splitlines()), 3, done.stderr)


if __name__ == "__main__":
    if not os.path.isdir(MODEL):
        print("lib/model/mc-tiny is not here", file=sys.stderr)
        sys.exit(cluster.SKIP)
    del Once
    unittest.main()

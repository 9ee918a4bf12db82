#!/usr/bin/env python3
"""The memory of a model while it is loaded, and the error when it does not fit."""

import json
import os
import shutil
import tempfile
import unittest

import cluster

# Beside the weights: the program, its libraries and threads, scratch and KV of a few tokens.
REST_BYTES = 96 << 20


class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="mct-memory-")
        shape = "--hidden 1024 --heads 16 --kv-heads 4 --head-dim 64".split()
        cls.bytes = {}
        # As few layers as make a second copy larger than what the checks allow beside the first one.
        for name, dtype, layers in (("m", "bf16", 5), ("fp8", "fp8", 8)):
            words = [*shape, "--layers", layers, "--dtype", dtype, "-o", cls.dir + "/" + name]
            code, out, err = cluster.run("mc-bench", "mkmodel", *words, "--json")
            assert code == 0, err
            cls.bytes[name] = json.loads(out.splitlines()[-1])["weight_bytes"]

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir, ignore_errors=True)

    def peak(self, name, *words):
        """Largest resident size in bytes of one run that loads the model and makes a token."""
        command = [cluster.program("mc-prefill"), "once", "-m", self.dir + "/" + name, "-p", "x", "-n", "1", *words]
        child = os.posix_spawn(
            command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        )
        _, status, usage = os.wait4(child, 0)
        self.assertEqual(status, 0)
        return usage.ru_maxrss * 1024

    def test_a_model_is_never_in_memory_twice_while_it_is_loaded(self):
        self.assertGreater(self.bytes["m"], 120 << 20)
        self.assertLess(self.peak("m", "--dtype", "bf16"), 1.2 * self.bytes["m"] + REST_BYTES)

    def test_int8_weights_take_half_of_it_also_while_they_are_made(self):
        self.assertLess(self.peak("m", "--weight-dtype", "int8"), 1.2 * 0.53 * self.bytes["m"] + REST_BYTES)

    def test_a_checkpoint_in_fp8_takes_its_own_size_also_while_it_is_loaded(self):
        embeddings = 2 * 2048 * 1024 * 2  # and head, in bf16
        layer = (self.bytes["m"] - embeddings) / 5
        self.assertLess(self.bytes["fp8"], embeddings + 0.53 * 8 * layer)
        self.assertLess(self.peak("fp8"), 1.2 * self.bytes["fp8"] + REST_BYTES)

    def test_what_does_not_fit_is_refused_before_loading_with_the_largest_pool_that_does(self):
        code, _, err = cluster.run("mc-prefill", "-m", self.dir + "/m", "--kv-mem", "900TiB", "--check")
        self.assertEqual(code, 1)
        for word in ("MC5003", "for weights", "for KV", "MiB are free", "the largest --kv-mem that fits is"):
            self.assertIn(word, err)

    def test_a_decode_node_counts_the_copies_of_its_moba_centroids(self):
        plan = "moba:block=128,top_k=3"
        words = ("-m", self.dir + "/m", "--kv-mem", "900TiB", "--check")
        for attention, said in (("full", False), (plan, True)):
            code, _, err = cluster.run("mc-decode", *words, "--attention", attention)
            self.assertEqual(code, 1)
            self.assertEqual("for its MoBA centroids" in err, said, err)
        self.assertNotIn("centroids", cluster.run("mc-prefill", *words, "--attention", plan)[2])


if __name__ == "__main__":
    unittest.main()

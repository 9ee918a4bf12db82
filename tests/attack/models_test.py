#!/usr/bin/env python3
"""A model directory from strangers: no file in it can make a program wait, take all memory, or end without a word.

Each file of a model is replaced in turn: by a FIFO, whose opening waits for a writer, a directory, a socket, a file of
1 TiB without content, and the first half of itself.
"""

import json
import os
import shutil
import socket
import struct
import tempfile
import unittest

from cluster import is_sanitized, run

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "lib", "model", "mc-tiny")
SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"
REQUIRED = ["config.json", "tokenizer.json", "model.safetensors"]
OPTIONAL = ["generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
PATIENCE_S = 60  # a start that waits would wait for ever


def fifo(path):
    os.mkfifo(path)


def socket_file(path):
    with socket.socket(socket.AF_UNIX) as door:
        here = os.open(os.path.dirname(path), os.O_RDONLY)  # a path of any length
        try:
            door.bind(f"/proc/self/fd/{here}/{os.path.basename(path)}")
        finally:
            os.close(here)


def words(value):
    """A string of a GGUF header."""
    return struct.pack("<Q", len(value)) + value.encode()


def huge(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)


class Models(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mct-model-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.model = os.path.join(self.folder, "model")
        shutil.copytree(MODEL, self.model)

    def once(self):
        words = ["once", "-m", self.model, "-p", "hello", "-n", 1]
        return run("mc-prefill", *words, stdin=b"", timeout=PATIENCE_S)

    def divide(self):
        """Makes the one file of weights a shard with an index."""
        with open(os.path.join(self.model, "model.safetensors"), "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        names = [name for name in header if name != "__metadata__"]
        os.rename(os.path.join(self.model, "model.safetensors"), os.path.join(self.model, SHARD))
        with open(os.path.join(self.model, INDEX), "w") as file:
            json.dump({"weight_map": {name: SHARD for name in names}}, file)

    def replaced(self, name, make):
        """The answer to a model in which `make` made the file."""
        path = os.path.join(self.model, name)
        kept = path + ".kept"
        if os.path.exists(path):
            os.rename(path, kept)
        make(path)
        try:
            return self.once()
        finally:
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            if os.path.exists(kept):
                os.rename(kept, path)

    def refused(self, name, make, says):
        with self.subTest(name=name, make=make.__name__):
            code, _, err = self.replaced(name, make)
            self.assertEqual(code, 1, err)
            self.assertIn(name, err)
            if name == "config.json" and make is not huge:
                self.assertIn("MC3001", err)  # the file that makes a directory a model
                return
            self.assertIn("MC3002", err)
            self.assertIn(says, err)

    def all_files(self):
        yield from REQUIRED + OPTIONAL
        self.divide()
        yield from (INDEX, SHARD)

    def test_a_file_that_is_no_regular_file_is_refused_at_once(self):
        self.assertEqual(self.once()[0], 0)
        for name in self.all_files():
            for make in (fifo, os.mkdir, socket_file):
                self.refused(name, make, "is not a regular file")
        code, _, err = self.once()
        self.assertEqual(code, 0, err)

    def test_a_huge_file_is_refused_before_it_is_read(self):
        for name in self.all_files():
            if is_sanitized() and name.endswith(".safetensors"):
                continue  # the shadow memory leaves no room to map it
            says = "safetensors" if name.endswith(".safetensors") else "at most"
            self.refused(name, huge, says)

    def test_the_first_half_of_a_file_is_refused_by_name(self):
        for name in self.all_files():
            path = os.path.join(self.model, name)
            if name == "chat_template.jinja" or not os.path.exists(path):
                continue  # half a template may be a template
            with open(path, "rb") as file:
                half = file.read(os.path.getsize(path) // 2)

            def first_half(to, half=half):
                with open(to, "wb") as file:
                    file.write(half)

            code, _, err = self.replaced(name, first_half)
            self.assertEqual(code, 1, f"{name}\n{err}")
            self.assertRegex(err, "error MC3[0-9]{3}", name)


class OneFile(unittest.TestCase):
    """A GGUF file is a whole model."""

    PROGRAMS = (
        ("mc-prefill", "once", "-p", "hello", "-n", 1),
        ("mc-decode", "once", "--kv-in", "STREAM"),
        ("mc-decode", "--check", "--http", "127.0.0.1:0"),
        ("mc-conductor", "--check", "--http", "127.0.0.1:0"),
    )

    def test_a_gguf_file_that_is_none_is_refused_at_once_by_each_program(self):
        folder = tempfile.mkdtemp(prefix="mct-model-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)

        def start(path):
            with open(path, "wb") as file:  # version 3 with a tensor and a field of metadata that do not come
                file.write(b"GGUF" + struct.pack("<IQQ", 3, 1, 1))

        def half(path):
            with open(path, "wb") as file:  # a whole header, and half of the 64 floats of its one tensor
                file.write(b"GGUF" + struct.pack("<IQQ", 3, 1, 1))
                file.write(words("general.architecture") + struct.pack("<I", 8) + words("llama"))
                file.write(words("output_norm.weight") + struct.pack("<IQIQ", 1, 64, 0, 0))
                file.write(bytes(-file.tell() % 32 + 128))

        stream = os.path.join(folder, "sound.mckv")  # mc-decode reads a stream before its model
        code, _, err = run("mc-prefill", "once", "-p", "hello", "--kv-out", stream, stdin=b"", timeout=PATIENCE_S)
        self.assertEqual(code, 0, err)
        for program, *flags in self.PROGRAMS:
            flags = [stream if flag == "STREAM" else flag for flag in flags]
            for make in (fifo, os.mkdir, socket_file, huge, start, half):
                path = os.path.join(folder, f"{make.__name__}.gguf")
                if not os.path.lexists(path):
                    make(path)
                with self.subTest(program=program, flag=flags[0], make=make.__name__):
                    code, _, err = run(program, *flags, "-m", path, stdin=b"", timeout=PATIENCE_S)
                    self.assertEqual(code, 1, err)
                    self.assertIn(os.path.basename(path), err)
                    self.assertRegex(err, "error MC3[0-9]{3}")


if __name__ == "__main__":
    unittest.main()

"""mc-bench disk on a small store: its points, its folder, its refusals."""

import json
import os
import shutil
import tempfile
import unittest

import cluster


class Disk(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mct-disk-", dir=cluster.BUILD)
        self.addCleanup(shutil.rmtree, self.folder, True)

    def run_disk(self, *words, expect=0):
        code, out, err = cluster.run("mc-bench", "disk", self.folder, "--size", "64MiB", *words)
        self.assertEqual(code, expect, err)
        self.assertEqual(os.listdir(self.folder), [], "the bench removes its folder")
        return out.decode(), err if isinstance(err, str) else err.decode()

    def points(self, *words):
        out, _ = self.run_disk("--json", *words)
        return json.loads(out.splitlines()[-1])["points"]

    def test_puts_and_gets_are_measured_on_every_kind_of_disk(self):
        for kind in ("auto", "threads", "memory"):
            points = self.points("-t", "100ms", "--bs", "4KiB,100000", "--jobs", "4", "--disk-io", kind)
            self.assertEqual([p["op"] for p in points], ["write", "write", "randread", "randread"])
            for point in points:
                self.assertGreater(point["blocks"], 0)
                self.assertEqual(point["failed"], 0)

    def test_a_restart_finds_every_block(self):
        (point,) = self.points("--rw", "restart", "--blocks", "10k", "--bs", "4KiB")
        self.assertEqual(point["blocks"], 10000)
        self.assertEqual(point["damaged"], 0)
        self.assertGreater(point["segments_sealed"], 0)

    def test_a_folder_that_is_there_already_is_not_touched(self):
        inside = os.path.join(self.folder, "mc-bench-disk")
        os.mkdir(inside)
        code, _, err = cluster.run("mc-bench", "disk", self.folder, "--size", "64MiB", "-t", "50ms")
        self.assertEqual(code, 1)
        self.assertIn("MC5005", str(err))
        self.assertEqual(os.listdir(inside), [])

    def test_wrong_words_are_named(self):
        for words, part in (
            (["--rw", "scan"], "none of write, randread, restart"),
            (["--disk-io", "tape"], "none of auto|uring|threads|memory"),
            (["--bs", "16MiB"], "1 byte to 8MiB"),
            (["--rw", "restart", "--against", "fio"], "no reference for --op restart"),
        ):
            _, err = self.run_disk(*words, expect=2)
            self.assertIn(part, err)


if __name__ == "__main__":
    unittest.main()

"""mc-bench disk on a small store: its points, its folder, its refusals."""

import json
import os
import shutil
import subprocess
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

    def on_a_full_disk(self, *words):
        """(exit code, error text, files left) of a command in a file system of 4 MiB."""
        script = 'mount -t tmpfs -o size=4m none "$0" && cd "$0" && { "$@"; echo "code $?"; find . -mindepth 1; }'
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, self.folder, *words], capture_output=True, text=True, timeout=300
        )
        said, mounted, after = done.stdout.partition("code ")
        if not mounted:
            self.skipTest("no file system can be mounted: " + done.stderr.strip())
        code, *left = after.splitlines()
        return "code " + code, said + done.stderr, left

    def test_a_full_disk_is_an_error_with_a_number_and_leaves_no_folder(self):
        words = [cluster.program("mc-bench"), "disk", ".", "--size", "64MiB", "-t", "50ms"]
        code, err, left = self.on_a_full_disk(*words)
        self.assertEqual((code, left), ("code 1", []), err)
        self.assertIn("MC5004", err)
        self.assertIn("mc-bench-disk", err)

    def test_a_model_that_does_not_fit_names_its_file_and_leaves_no_part_of_it(self):
        code, err, left = self.on_a_full_disk(cluster.program("mc-bench"), "mkmodel", "--hidden", "512", "-o", "m")
        self.assertEqual(code, "code 1", err)
        self.assertIn("MC5004", err)
        self.assertIn("m/model.safetensors", err)
        self.assertEqual([path for path in left if path.endswith(".part")], [])

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

"""scripts/sim-cliff: hits fall where the working set passes DRAM, a disk keeps them, and live nodes do as simulated."""

import glob
import json
import os
import subprocess
import unittest
import uuid

import cluster

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "sim-cliff")


def cliff(*words):
    done = subprocess.run([SCRIPT, "--build", cluster.BUILD, "--json", *words], capture_output=True, text=True,
                          timeout=600, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


class Cliff(unittest.TestCase):
    def test_published_sizes_hit_until_dram_is_full_and_beyond_with_a_disk(self):
        code, found, err = cliff("--published")
        self.assertEqual(code, 0, err)
        memory, disk = found["rounds"]
        self.assertEqual(len(memory), 10)
        for r in range(1, 7):  # the working set of round 6 is 0.91 of DRAM
            self.assertAlmostEqual(memory[r - 1][0], (r - 1) / r, delta=0.001)
        for r in (8, 9, 10):
            self.assertLess(memory[r - 1][0], 0.1)
            self.assertGreater(disk[r - 1][0], 0.84)
            self.assertLess(disk[r - 1][1], memory[r - 1][1] / 2)

    def test_live_nodes_hit_and_answer_as_the_simulated_ones(self):
        few = ["--clients", "3", "--rounds", "3", "--gap", "1", "--times", "2"]
        code, found, err = cliff(*cluster.count(few, []))
        self.assertIn(code, (0, 4), err)  # 4: a mean of TTFT is off, which a busy machine may cause
        for point in found["points"]:
            for model, live in (point["all"][:2], point["all"][2:]):
                self.assertAlmostEqual(live[0], model[0], delta=0.1 * model[0] + 0.005)
                self.assertGreater(live[1], 0.9 * model[1])
                self.assertLess(live[1], 1.1 * model[1] + 10)  # seconds, for a machine that is busy


def processes_with(mark):
    """Command lines of the processes that have this in their environment."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if mark.encode() not in file.read():
                    continue
            with open(os.path.join(os.path.dirname(path), "cmdline"), "rb") as file:
                found.append(file.read().replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or is another user's
            continue
    return found


class Start(unittest.TestCase):
    def test_a_daemon_that_does_not_start_is_quoted_and_the_others_are_ended(self):
        # Both workers read MCT_SSD_MIN_USES. The one that ends first is quoted.
        for flag, name in (("MCT_DEADLINE", "mc-conductor"), ("MCT_SSD_MIN_USES", "mc-(prefill|decode)")):
            with self.subTest(flag=flag):
                mark = str(uuid.uuid4())
                done = subprocess.run([SCRIPT, "--build", cluster.BUILD, "--clients", "1", "--rounds", "1"],
                                      env={**os.environ, flag: "nonsense", "MARK": mark}, capture_output=True,
                                      text=True, timeout=300, check=False)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stderr, f"sim-cliff: {name} ended with 2 before it was ready")
                self.assertIn("'nonsense'", done.stderr)
                self.assertEqual(processes_with(mark), [])

    def test_sim_vs_live_quotes_a_conductor_that_does_not_start_and_refuses_a_trace_beside_prefix(self):
        words = [os.path.join(os.path.dirname(SCRIPT), "sim-vs-live"), "--build", cluster.BUILD, "--prefix"]
        env = {**os.environ, "MCT_DEADLINE": "nonsense"}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("sim-vs-live: mc-conductor ended with 2 before it was ready", done.stderr)
        for more in (["x.jsonl"], ["--real"]):
            done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)

    def test_a_size_that_makes_no_rounds_is_refused(self):
        for words in (["--clients", "0"], ["--rounds", "x"], ["--times", "2,0"]):
            done = subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"argument {words[0]}: invalid", done.stderr)


if __name__ == "__main__":
    unittest.main()

"""scripts/sim-cliff: hits fall where the working set passes DRAM, a disk keeps them, and live nodes do as simulated."""

import json
import os
import subprocess
import unittest

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
                self.assertLess(live[1], 1.1 * model[1] + 0.5)  # seconds, for a machine that is busy


if __name__ == "__main__":
    unittest.main()

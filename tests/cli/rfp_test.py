"""mc-bench rfp: calls by remote fetching over shm and tcp, its parameters, its refusals."""

import json
import unittest

import cluster


class Fetching(unittest.TestCase):
    def run_rfp(self, *words, expect=0):
        code, out, err = cluster.run("mc-bench", "rfp", *words)
        err = err if isinstance(err, str) else err.decode()
        self.assertEqual(code, expect, err)
        return out.decode(), err

    def points(self, *words):
        out, _ = self.run_rfp("--json", *words)
        summary = json.loads(out.splitlines()[-1])
        self.assertEqual(summary["failed"], 0)
        return summary["points"]

    def test_the_server_starts_no_transfer_while_the_client_fetches(self):
        words = ("--transport", "shm", "--retries", "1000000", "-t", "200ms")
        for point in self.points(*words, "--size", "32,480,4064", "--depth", "1,3"):
            self.assertGreater(point["calls"], 0)
            self.assertEqual(point["server_operations"], 0)
            self.assertEqual(point["pushed_calls"], 0)
            self.assertGreaterEqual(point["reads_per_call"], 1 if point["size_bytes"] <= 224 else 2)

    def test_lookups_are_answered_from_the_table_without_a_transfer_of_the_server(self):
        words = ("--transport", "shm", "--op", "call,lookup", "--blocks", "1,100,1000", "--retries", "1000000")
        null, *lookups = self.points(*words, "--depth", "2", "-t", "200ms")
        self.assertNotIn("blocks", null)
        self.assertEqual([point["blocks"] for point in lookups], [1, 100, 1000])
        for point in lookups:
            self.assertGreater(point["calls"], 0)
            self.assertEqual(point["size_bytes"], point["blocks"])
            self.assertEqual(point["server_operations"], 0)
            self.assertAlmostEqual(point["blocks_per_s"], point["calls_per_s"] * point["blocks"], places=3)

    def test_tcp_pushes_every_response(self):
        for point in self.points("--transport", "tcp", "--depth", "1,8", "-t", "200ms"):
            self.assertGreater(point["calls"], 0)
            self.assertEqual(point["pushed_calls"], point["calls"])
            self.assertEqual(point["reads_per_call"], 0)

    def test_the_parameters_follow_from_measured_transfers(self):
        (point,) = self.points("--transport", "shm", "--op", "calibrate", "--size", "480", "-t", "200ms")
        self.assertEqual([row["bytes"] for row in point["reads"]], [64, 128, 256, 512, 640, 768, 1024, 1536, 2048])
        self.assertGreaterEqual(point["retries_bound"], 1)
        self.assertGreater(point["writes_per_s"], 0)
        best = max(point["reads"], key=lambda row: row["reads_per_s"] * (1 if row["bytes"] >= 512 else 0.5))
        self.assertEqual(point["fetch_bytes"], best["bytes"])

    def test_what_cannot_be_measured_is_refused(self):
        for words, text in (
            (("--size", "4065"), "--size: 8 to 4064 bytes"),
            (("--fetch", "32"), "--fetch: 64 to 4096 bytes"),
            (("--depth", "65"), "--depth: 1 to 64"),
            (("--op", "cast"), "'cast' is none of call, lookup, calibrate"),
            (("--op", "lookup", "--blocks", "0"), "--blocks: 1 to 1000"),
            (("--op", "lookup", "--blocks", "1001"), "--blocks: 1 to 1000"),
            (("--op", "calibrate", "--transport", "tcp", "-t", "10ms"), "tcp has no reads to measure"),
        ):
            _, err = self.run_rfp(*words, expect=2)
            self.assertIn(text, err)


if __name__ == "__main__":
    unittest.main()

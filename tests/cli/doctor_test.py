"""mc-bench doctor on this machine, whatever it has: its lines, its exit codes and what it says about peers."""

import json
import os
import tempfile
import unittest

import cluster
from man_test import output_words


def doctor(*words, expect=0):
    code, out, err = cluster.run("mc-bench", "doctor", *words)
    assert code == expect, f"{words}: exit {code}: {err}\n{out.decode()}"
    return out.decode(), err


def summary(*words, **kwargs):
    lines = [json.loads(line) for line in doctor(*words, "--json", **kwargs)[0].splitlines()]
    assert [line["type"] for line in lines] == ["finding"] * (len(lines) - 1) + ["result"]
    assert lines[-1]["findings"] == lines[:-1]
    return lines[-1]


def keys(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


class Doctor(unittest.TestCase):
    def test_shm_and_tcp_are_usable_on_every_machine(self):
        result = summary("--transport", "shm,tcp", "--memory", "1MiB")
        usable = {t["transport"]: t["usable"] for t in result["transports"]}
        self.assertTrue(usable["shm"] and usable["tcp"], usable)
        self.assertEqual(result["to_fix"], 0)

    def test_every_line_for_people_has_a_verdict_and_every_fix_a_way_out(self):
        text = doctor("--transport", "tcp", "--memory", "1MiB")[0]
        for line in text.splitlines():
            self.assertRegex(line, r"^(ok|unused|note|fix) +\w|^        -> |^ {12,}\S")
        for finding in summary("--memory", "900TiB", expect=1)["findings"]:
            self.assertTrue(finding["verdict"] != "fix" or finding["next"], finding)

    def test_without_a_device_rdma_is_a_note_unless_it_was_asked_for(self):
        result = summary("--transport", "tcp", "--memory", "1MiB")
        if result["rdma"]:
            self.skipTest("this machine has RDMA devices")
        note = next(f for f in result["findings"] if f["name"] == "devices")
        self.assertEqual(note["verdict"], "note")
        self.assertIn("rdma link add", note["next"])
        out, err = doctor("--transport", "rdma", expect=1)
        self.assertRegex(out, r"(?m)^fix +rdma devices")
        self.assertIn("MC8006", err)

    def test_peers_are_reached_over_all_they_offer_and_missed_with_a_reason(self):
        with tempfile.TemporaryDirectory(prefix="mct-doctor-") as folder:
            words = ["mc-bench", "xfer", "--server", "--port", "0"]
            server = cluster.Process(words, None, os.path.join(folder, "log"))
            try:
                tcp = next(uri for uri in server.wait_ready()["uris"] if uri.startswith("tcp://"))
                peers = {p["transport"]: p for p in summary(tcp, "--memory", "1MiB")["peers"]}
            finally:
                server.stop()
            self.assertTrue(peers["tcp"]["usable"] and peers["tcp"]["asked_for"], peers)
            self.assertTrue(peers["shm"]["usable"] and not peers["shm"]["asked_for"], peers)
        out, err = doctor(tcp, "--timeout", "300ms", "--memory", "1MiB", expect=3)
        self.assertRegex(out, r"(?m)^fix +peer tcp://127")
        self.assertIn("mc-bench xfer --server", out)
        self.assertIn("MC2101", err)
        self.assertIn("next:  the host answers: start the peer, e.g. mc-bench xfer --server", err)
        err = doctor("192.0.2.1", "--transport", "tcp", "--memory", "1MiB", expect=3)[1]
        self.assertIn("next:  --auth FILE of the cluster, or --insecure data on a network you trust", err)

    def test_copies_of_a_gpu_are_timed_when_one_is_named(self):
        words = ["--transport", "tcp", "--memory", "1MiB"]
        self.assertEqual(summary(*words)["copies"], [])
        (copies,) = summary(*words, "--device", "emu")["copies"]
        self.assertGreater(min(copies["out_bytes_per_s"], copies["in_bytes_per_s"]), 0)
        self.assertTrue(copies["emulated"] and copies["reason"] is None, copies)
        out, err = doctor(*words, "--device", "emu:fault=3", expect=1)
        (broken,) = summary(*words, "--device", "emu:fault=3", expect=1)["copies"]
        self.assertTrue(broken["emulated"] and "ECC" in broken["reason"], broken)
        self.assertRegex(out, r"(?m)^fix +gpu copies of emu:fault=3 +.*ECC")
        self.assertIn("MC8006", err)

    def test_wrong_words_are_refused(self):
        self.assertIn("carrier", doctor("--transport", "carrier", expect=2)[1])
        self.assertIn("--port", doctor("--port", 0, expect=2)[1])
        self.assertIn("--timeout is 0", doctor("--timeout", 0, "tcp://127.0.0.1:1", expect=2)[1])

    def test_every_key_is_in_the_page(self):
        words = output_words("mc-bench") | output_words("mc-bench-doctor")
        self.assertLessEqual(set(keys(summary("--memory", "1MiB", "--transport", "tcp"))), words)


if __name__ == "__main__":
    unittest.main()

"""mc-bench doctor on real (soft) RDMA devices, in the machine of scripts/rdma-vm: it sees what was done to them.

One boot; each step changes the machine, then lets the doctor look. What it says is checked out here.
"""

import json
import os
import subprocess
import sys
import unittest

import cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

SERVER = "mc-bench xfer --server --transport rdma,tcp --port 7790 --bind 10.0.0.1 --insecure data"
STEPS = {
    "peer": f"{SERVER} >/tmp/ready 2>/dev/null & server=$!; until grep -q ready /tmp/ready; do sleep 0.1; done",
    "peer_gone": "kill $server; wait $server",
    "one_pair_down": "ip link set v2 down; ip addr flush dev v1 scope global; ip link set v1 mtu 1500",
    "all_down": "for v in v0 v1 v2 v3; do ip link set $v down; done",
    "no_device": "for r in rxe0 rxe1 rxe2 rxe3; do rdma link delete $r; done",
    "no_device_for_rdma": "true",
}
# Each start of the program takes the emulated machine two seconds, so a step is looked at once.
AUTO = ("peer", "peer_gone", "no_device")


def look():
    script = ""
    for step, change in STEPS.items():
        peer = "10.0.0.1" if step.startswith("peer") else ""
        wait = "10s" if step == "peer" else "500ms"  # a peer that is gone is waited for as long
        transport = "auto" if step in AUTO else "rdma"
        doctor = f"mc-bench doctor --insecure data --memory 8MiB --timeout {wait} --transport {transport}"
        script += f"{change}\n{doctor} --json {peer} >/tmp/seen 2>/dev/null; code=$?\ntail -n 1 /tmp/seen; echo $code\n"
    words = [os.path.join(ROOT, "scripts", "rdma-vm"), "--build", cluster.BUILD, "--timeout", "800"]
    words += ["--add", "mc-bench", "--", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    if done.returncode == 77:
        print(done.stderr, file=sys.stderr)
        sys.exit(cluster.SKIP)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{") or line.isdigit()]
    short = "\n".join(line[:200] for line in done.stdout.splitlines()) + done.stderr
    assert done.returncode == 0 and len(lines) == 2 * len(STEPS), short
    pairs = zip(lines[::2], lines[1::2])
    return {step: (json.loads(text), int(code)) for step, (text, code) in zip(STEPS, pairs)}


class Doctor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cluster.program("mc-bench")
        cls.seen = look()

    def step(self, name):
        """(ports by device, findings by name, exit code)"""
        result, code = self.seen[name]
        ports = {device["device"]: device["ports"][0] for device in result["rdma"]}
        return ports, {finding["name"]: finding for finding in result["findings"]}, code

    def test_a_peer_is_reached_over_tcp_and_rdma_and_refuses_when_it_is_gone(self):
        result, code = self.seen["peer"]
        paths = {path["transport"]: path for path in result["peers"]}
        self.assertTrue(paths["tcp"]["usable"] and paths["rdma"]["usable"], result["peers"])
        self.assertEqual(code, 0)
        result, code = self.seen["peer_gone"]
        self.assertFalse(result["peers"][0]["usable"])
        self.assertEqual(code, 3)

    def test_a_whole_machine_has_four_usable_ports_with_their_ipv4_address_first(self):
        ports, findings, code = self.step("peer")
        self.assertEqual(sorted(ports), ["rxe0", "rxe1", "rxe2", "rxe3"])
        for index, name in enumerate(sorted(ports)):
            port = ports[name]
            self.assertTrue(port["usable"], port)
            self.assertEqual((port["state"], port["link"], port["mtu"]), ("active", "Ethernet", 4096))
            first = port["gids"][0]
            self.assertEqual(first["address"], f"10.0.{index // 2}.{index % 2 + 1}")
            self.assertEqual((first["kind"], first["scope"]), ("RoCE v2", "IPv4"))
            self.assertEqual(findings[name + ":1"]["verdict"], "ok")
        self.assertEqual(code, 0)

    def test_one_port_down_is_a_note_with_the_command_that_brings_it_up(self):
        ports, findings, code = self.step("one_pair_down")
        self.assertFalse(ports["rxe2"]["usable"])
        self.assertEqual(findings["rxe2:1"]["verdict"], "note")
        self.assertEqual(findings["rxe2:1"]["next"], "ip link set v2 up")
        self.assertEqual(code, 0)

    def test_an_address_that_went_away_and_a_small_mtu_are_seen(self):
        ports, findings, _ = self.step("one_pair_down")
        self.assertNotIn("10.0.0.2", [gid["address"] for gid in ports["rxe1"]["gids"] if gid["usable"]])
        if ports["rxe1"]["usable"]:  # its link-local address may serve
            self.assertEqual(ports["rxe1"]["mtu"], 1024)
            self.assertIn("mtu 4200", findings["rxe1:1"]["next"])

    def test_all_ports_down_must_be_fixed(self):
        ports, findings, code = self.step("all_down")
        self.assertFalse(any(port["usable"] for port in ports.values()))
        self.assertEqual({findings[name + ":1"]["verdict"] for name in ports}, {"fix"})
        self.assertEqual(code, 1)

    def test_without_devices_auto_is_content_and_rdma_is_not(self):
        ports, findings, code = self.step("no_device")
        self.assertEqual(ports, {})
        self.assertEqual(findings["devices"]["verdict"], "note")
        self.assertIn("rdma link add", findings["devices"]["next"])
        self.assertEqual(code, 0)
        _, _, code = self.step("no_device_for_rdma")
        self.assertEqual(code, 1)


if __name__ == "__main__":
    unittest.main()

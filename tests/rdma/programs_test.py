"""The programs over rdma://, in the machine with soft-RoCE, which boots once for all of them.

A cluster serves (serving.py). Then mc-bench rfp calls a server that starts no transfer, and mc-bench doctor reports on
the machine: each step changes the machine and runs the doctor once. The checks are made here, after the machine has
ended.
"""

import json
import unittest

import machine
import serving
from serving import Serving  # its cases run here

SERVER = "mc-bench xfer --server --transport rdma,tcp --port 7790 --bind 10.0.0.1 --insecure data"
STEPS = {
    "peer": f"{SERVER} >/tmp/ready 2>/dev/null & server=$!; until grep -q ready /tmp/ready; do sleep 0.1; done",
    "peer_gone": "kill $server; wait $server",
    "one_pair_down": "ip link set v2 down; ip addr flush dev v1 scope global; ip link set v1 mtu 1500",
    "all_down": "for v in v0 v1 v2 v3; do ip link set $v down; done",
    "no_device": "for r in rxe0 rxe1 rxe2 rxe3; do rdma link delete $r; done",
    "no_device_for_rdma": "true",
}
# No call is slow, so the client fetches every response.
CALLS = "--transport rdma --rdma-devices rxe0/rxe1 --retries 1000000 --size 32,480 --depth 1,3 -t 300ms"
AUTO = ("peer", "peer_gone", "no_device")  # the steps whose doctor may choose the transport


def looks():
    """Shell lines that change the machine step by step and run the doctor after each step, once: a start of the program
    takes the emulated machine two seconds."""
    script = ""
    for step, change in STEPS.items():
        peer = "10.0.0.1" if step.startswith("peer") else ""
        wait = "60s" if step == "peer" else "500ms"  # a peer that is gone is waited for as long
        transport = "auto" if step in AUTO else "rdma"
        doctor = f"mc-bench doctor --insecure data --memory 1MiB --timeout {wait} --transport {transport}"
        script += f"{change}\n{doctor} --json {peer} >/tmp/seen 2>/dev/null; code=$?\n"
        script += f'echo "MC-DOCTOR {step} $code $(tail -n 1 /tmp/seen)"\n'
    return script


def setUpModule():
    served = f"sh /mc/serve.sh '{serving.LISTS}'; served=$?; echo \"MC-SERVED $served\""
    calls = f"mc-bench rfp {CALLS} --json 2>/tmp/error | tail -n 1"
    # After a soft lockup rdma-vm runs a line again that does not end with 0: only one whose cluster did not serve.
    line = f'{served}; echo "MC-CALLS $({calls})"; sh /mc/look.sh; test $served = 0'
    machine.FOUND = machine.run(line, {"serve.sh": serving.SERVE, "look.sh": looks()})


class Machine(unittest.TestCase):
    def test_what_a_first_machine_printed_before_a_second_one_ran_the_line_again_does_not_count(self):
        printed = f"{machine.START}\nMC-SERVED 1\nMC-A x\n{machine.START}\nMC-SERVED 0\nMC-B y\n"
        found = machine.found(printed, "complaints")
        self.assertEqual((found["MC-SERVED"], found["MC-B"], found.get("MC-A")), (["0"], ["y"], None))
        self.assertEqual(found["said"], "MC-SERVED 0\nMC-B y\ncomplaints")


class Fetching(unittest.TestCase):
    def test_the_server_starts_no_transfer_while_the_client_fetches_over_rdma(self):
        summary = json.loads(machine.FOUND["MC-CALLS"][0])
        self.assertEqual((summary["failed"], len(summary["points"])), (0, 4))
        for point in summary["points"]:
            self.assertGreater(point["calls"], 0)
            self.assertEqual((point["server_operations"], point["pushed_calls"]), (0, 0), point)
            self.assertGreaterEqual(point["reads_per_call"], 1 if point["size_bytes"] == 32 else 2)


class Doctor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.seen = {}
        for line in machine.FOUND.get("MC-DOCTOR", []):
            step, code, result = line.split(" ", 2)
            cls.seen[step] = (json.loads(result), int(code))
        assert list(cls.seen) == list(STEPS), machine.FOUND["said"]

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

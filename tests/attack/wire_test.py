"""A listener on the wire between two hosts: two network namespaces of this machine, and a cable between them.

The default --tcp-seal auto must seal there, where --tcp-seal off shows the same listener all that it looks for.
"""

import json
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import unittest

import attack
import cluster
import hosts

HELLO, CHALLENGE, DATA = 1, 2, 7
HEADER = 64


class Listener(threading.Thread):
    """Keeps the packets that pass until it is stopped."""

    def __init__(self, packets):
        super().__init__(daemon=True)
        self.packets, self.heard = packets, []
        self.stop_read, self.stop_write = os.pipe()

    def run(self):
        while True:
            ready = select.select([self.packets, self.stop_read], [], [])[0]
            if self.packets in ready:
                self.heard.append(self.packets.recv(1 << 17))
            elif self.stop_read in ready:
                return

    def stop(self):
        os.write(self.stop_write, b"x")
        self.join(60)
        self.packets.close()
        os.close(self.stop_read)
        os.close(self.stop_write)
        return self.heard


def frame_types(packets):
    """Types of the frames whose headers can be read."""
    return {found[0] for packet in packets for found in re.findall(rb"MCXF\x03\x00(.)", packet, re.DOTALL)}


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class OnTheWire(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.key = os.path.join(self.dir.name, "cluster.key")
        code, _, err = cluster.run("mc-conductor", "keygen", "-o", self.key)
        self.assertEqual(code, 0, err)
        self.hosts, self.cables = hosts.two_hosts(self)

    def read(self, seal, address=None):
        """One read of the bench from host to host: its point, and the packets that passed the cable."""
        here, there = self.hosts
        address = address or there.address
        server = subprocess.Popen(
            there.words("mc-bench", "xfer", "--server", "--port", "0", "--bind", address, "--transport", "tcp",
                        "--memory", "1MiB", "--auth", self.key, "--tcp-seal", seal, *attack.PATIENT),
            stdout=subprocess.PIPE,
        )  # fmt: skip
        listener = None
        try:
            self.assertTrue(select.select([server.stdout], [], [], cluster.START_S)[0], "the server is not ready")
            uri = json.loads(server.stdout.readline())["uris"][0]
            client = there if address == "127.0.0.1" else here
            listener = Listener(client.packet_socket("lo" if client is there else self.cables[0]))
            listener.start()
            done = subprocess.run(
                client.words("mc-bench", "xfer", uri, "--auth", self.key, "--tcp-seal", seal, "--size", "64KiB",
                             "--memory", "1MiB", "-t", "100ms", "--json", *attack.PATIENT),
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
        finally:
            packets = listener.stop() if listener else []
            server.send_signal(signal.SIGTERM)
            server.wait(60)
            server.stdout.close()
        point = json.loads(done.stdout.splitlines()[-1])["points"][0]
        self.assertTrue(point["verified"] and point["bytes"] > 0)
        return point, packets

    def test_auto_seals_what_leaves_the_host_and_a_listener_reads_nothing(self):
        point, clear = self.read("off")
        self.assertFalse(point["sealed"])
        begun = re.compile(rb"MCXF\x03\x00\x07.{%d}(.{64})" % (HEADER - 7), re.DOTALL)
        secret = next(found[1] for found in map(begun.search, clear) if found)  # of the memory that is read
        _, again = self.read("off")
        for packets in clear, again:  # the listener hears what it looks for
            self.assertTrue(any(secret in packet for packet in packets))
            self.assertTrue(any(b"bench-landing" in packet for packet in packets))

        point, sealed = self.read("auto")
        self.assertTrue(point["sealed"])
        self.assertGreater(sum(map(len, sealed)), 64 << 10, "the transfer passed the listener")
        self.assertEqual(frame_types(sealed), {HELLO, CHALLENGE})
        self.assertFalse(any(secret in packet or b"bench-landing" in packet for packet in sealed))

    def test_auto_leaves_loopback_alone(self):
        point, packets = self.read("auto", "127.0.0.1")
        self.assertFalse(point["sealed"])
        self.assertIn(DATA, frame_types(packets))


if __name__ == "__main__":
    unittest.main()

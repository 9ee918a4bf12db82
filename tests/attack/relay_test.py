"""An attacker on the path between real programs: it relays every byte of mc-bench's transfers, and changes some."""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import unittest

import attack
import cluster

HEADER = 64


class Relay(threading.Thread):
    """Passes connections on to `target`; `change(direction, bytes)` says what becomes of each piece that is read."""

    def __init__(self, target, change):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target, self.change = target, change
        self.stop_read, self.stop_write = os.pipe()

    def run(self):
        other, seen = {}, {}
        while True:
            ready = select.select([self.stop_read, self.listener, *other], [], [])[0]
            if self.stop_read in ready:
                break
            for one in ready:
                if one is self.listener:
                    dialler = one.accept()[0]
                    listener = socket.create_connection(("127.0.0.1", self.target))
                    other[dialler], other[listener] = listener, dialler
                    seen[dialler], seen[listener] = ["to", 0], ["from", 0]
                elif one in other:
                    try:
                        data = one.recv(65536)
                        if data:
                            way, before = seen[one]
                            seen[one][1] += len(data)
                            other[one].sendall(self.change(way, before, data))
                    except OSError:
                        data = b""
                    if not data:
                        pair = other.pop(one)
                        other.pop(pair, None)
                        one.close()
                        pair.close()
        for one in other:
            one.close()
        self.listener.close()

    def stop(self):
        os.write(self.stop_write, b"x")
        self.join(20)


class Relayed(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.key = os.path.join(self.dir.name, "cluster.key")
        code, out, err = cluster.run("mc-conductor", "keygen")
        self.assertEqual(code, 0, err)
        with open(os.open(self.key, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(out)
        self.server = subprocess.Popen(
            [cluster.program("mc-bench"), "xfer", "--server", "--port", "0", "--transport", "tcp", "--auth", self.key,
             *attack.PATIENT],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self.port = int(json.loads(self.server.stdout.readline())["uris"][0].rsplit(":", 1)[1])

    def tearDown(self):
        self.server.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.wait(60), 0)
        self.server.stdout.close()
        self.dir.cleanup()

    def read(self, port, *flags):
        return cluster.run(
            "mc-bench", "xfer", f"tcp://127.0.0.1:{port}", "--auth", self.key, "--size", "64KiB", "-t", "200ms",
            "--json", *attack.PATIENT, *flags,
        )  # fmt: skip

    def test_an_honest_relay_carries_a_sealed_stream_that_it_cannot_read(self):
        seen = bytearray()
        relay = Relay(self.port, lambda way, before, data: seen.extend(data) or data)
        relay.start()
        code, out, err = self.read(relay.port, "--tcp-seal", "on")
        relay.stop()
        self.assertEqual(code, 0, err)
        point = json.loads(out.splitlines()[-1])["points"][0]
        self.assertTrue(point["sealed"] and point["verified"] and point["bytes"] > 0)
        self.assertNotIn(b"bench-landing", seen)

    def changed_once(self, random):
        """Whether the stream came as far as the byte that the relay changes: a busy host moves little in that time."""
        left = [random.randrange(2000, 400_000)]  # behind the handshake

        def change(way, before, data):
            if way == "to" or not 0 <= left[0] - before < len(data):
                return data
            at = left[0] - before
            left[0] = -1
            return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]

        relay = Relay(self.port, change)
        relay.start()
        code, out, err = self.read(relay.port, "--tcp-seal", "on")
        relay.stop()
        if code == 0:  # the engine asked again over a new connection
            last = json.loads(out.splitlines()[-1])
            self.assertEqual(last["failed"], 0)
        else:
            self.assertRegex(err, r"MC2\d\d\d", "an error that names the peer")
        return left[0] == -1

    def test_changed_bytes_of_a_sealed_stream_are_never_taken(self):
        random = attack.seeded("relay")
        rounds = attack.count(4, 100)
        changed = 0
        for _ in range(10 * rounds):
            changed += self.changed_once(random)
            if changed == rounds:
                break
        self.assertEqual(changed, rounds, "the attack did not happen")

    def test_sides_that_disagree_are_told_both_values(self):
        self.assertRegex(self.read(self.port, "--tcp-seal", "off", "-q")[2], "^$")  # auto on loopback goes with off
        with subprocess.Popen(
            [cluster.program("mc-bench"), "xfer", "--server", "--port", "0", "--transport", "tcp", "--auth", self.key,
             "--tcp-seal", "on", *attack.PATIENT],
            stdout=subprocess.PIPE,
        ) as strict:  # fmt: skip
            port = int(json.loads(strict.stdout.readline())["uris"][0].rsplit(":", 1)[1])
            code, _, err = self.read(port, "--tcp-seal", "off")
            strict.send_signal(signal.SIGTERM)
        self.assertEqual(code, 3)
        self.assertIn("MC2110", err)
        self.assertIn("tcp_seal off", err)
        self.assertIn("tcp_seal on", err)

    def test_sealing_without_a_key_set_is_refused_at_start(self):
        peer = f"tcp://127.0.0.1:{self.port}"
        code, _, err = cluster.run("mc-bench", "xfer", peer, "--tcp-seal", "on", "--insecure", "data")
        self.assertEqual(code, 2)
        self.assertIn("MC1002", err)
        self.assertIn("--auth", err)

    def test_a_peer_of_an_older_protocol_is_named_with_both_versions(self):
        with socket.create_server(("127.0.0.1", 0)) as old:

            def answer():
                while True:
                    try:
                        conn = old.accept()[0]
                    except OSError:
                        return
                    hello = conn.recv(4096)
                    conn.sendall(hello[:4] + struct.pack("<H", 2) + hello[6:HEADER])  # its refusal, of version 2
                    conn.close()

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            code, _, err = self.read(old.getsockname()[1])
            old.shutdown(socket.SHUT_RDWR)
        self.assertEqual(code, 3)
        self.assertIn("MC2102", err)
        self.assertIn("protocol version 2, this process uses 3", err)


if __name__ == "__main__":
    unittest.main()

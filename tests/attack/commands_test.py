#!/usr/bin/env python3
"""A member says commands of ZMTP to the control sockets: PINGs of any form (rfc.zeromq.org/spec/37), subscriptions, and
unknown commands. libzmq 4.3.4 answers a PING whenever it meets one, and ended the process by an assertion when it met
one behind more messages than the program had taken, on a connection whose peer had hung up."""

import os
import socket
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integration"))

import attack
import curve
from cluster import Cluster, run, until
from members import HEARTBEAT
from zmtp import Dealer, pack

PATIENCE_S = 60
NODES = ("p0", "d0", "c0")
FLAGS = {"p0": ("--kv-mem", "64MiB", "--threads", "1"), "d0": ("--kv-mem", "64MiB"), "c0": ("--dram", "16MiB")}
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: the end of the connection is a reset


def ping(ttl, size=7):
    """A PING with a time to live in tenths of a second. A right one has 7 to 23 bytes."""
    return (b"\x04PING" + struct.pack(">H", ttl)).ljust(size, b"c")[:size]


COMMANDS = [
    b"", b"\x04", b"\x04PIN", b"\xffPING", b"\x07UNKNOWNxyz", b"\x05READY", b"\x05ERROR",
    b"\x04PONG", b"\x04PONGcontext",
    b"\x09SUBSCRIBE", b"\x09SUBSCRIBEall", b"\x06CANCEL", b"\x06CANCELall", bytes(200),
    *(ping(ttl, size) for ttl in (0, 1, 655, 656, 65535) for size in (5, 6, 7, 23, 24, 34, 200)),
]  # fmt: skip


def beat(instance):
    """The frames of a message."""
    head = {"v": 1, "type": "heartbeat", "id": 2, "from": "c9", "inst": instance, "epoch": 1}
    return pack(head), pack(HEARTBEAT)


class Commands(unittest.TestCase):
    lock = ()

    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        self.held = os.path.join(self.cluster.dir, "held")
        with open(self.held, "wb") as file:
            file.write(b"\0")
        attack.preload(self, self.cluster, "hold_shim.c")
        self.cluster.env["MC_HOLD"] = self.held
        self.start()
        self.cluster.wait_nodes()
        self.right = until(self.answer, PATIENCE_S, "the cluster answers")

    def start(self):
        self.cluster.start("conductor")
        for name in NODES:
            self.cluster.start(name, *FLAGS[name]).wait_ready()

    def dial(self, process):
        """(what says a message, what says a command, the socket) of a new connection."""
        dealer = Dealer(process.ready["control"], PATIENCE_S)
        return dealer.send_frames, dealer.command, dealer.socket

    def hold(self, on):
        with open(self.held, "r+b") as file:
            file.write(bytes([on]))

    def answer(self):
        """The tokens, or None: a node that was held for seconds may be about to join again."""
        body = {"prompt": list(range(1, 200)), "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        status, _, answer = self.cluster.post("/v1/completions", body)
        self.assertIn(status, (200, 503), answer)
        return answer["choices"][0]["token_ids"] if status == 200 else None

    def is_complete(self):
        for name, process in self.cluster.processes.items():
            self.assertIsNone(process.popen.poll(), f"{name}: {process.tail()}")
        return sorted(node["id"] for node in self.cluster.cluster()["nodes"]) == sorted(NODES)

    def check(self):
        answer = until(lambda: self.is_complete() and self.answer(), PATIENCE_S, "all nodes are members and answer")
        self.assertEqual(answer, self.right)

    def hang_up(self, connected):
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        connected.close()

    def test_no_command_ends_a_program(self):
        for process in self.cluster.processes.values():
            for more in (False, True):
                for body in COMMANDS:
                    say, command, connected = self.dial(process)
                    try:
                        for _ in range(3):
                            command(body, more)
                        say(*beat(os.urandom(16)))
                    except (BrokenPipeError, ConnectionResetError):
                        pass  # the program has hung up, as it may
                    self.hang_up(connected)
        self.check()

    def test_pongs_that_nobody_reads_end_no_program(self):
        for process in self.cluster.processes.values():
            for ttl in (0, 1, 65535):
                _, command, connected = self.dial(process)
                connected.settimeout(1)
                try:
                    for _ in range(attack.count(20_000, 200_000)):
                        command(ping(ttl, 23))
                except (TimeoutError, BrokenPipeError, ConnectionResetError):
                    pass
                self.hang_up(connected)
        self.check()

    def test_a_peer_that_pings_while_a_program_does_not_read_and_hangs_up_ends_nothing(self):
        self.hold(True)
        self.addCleanup(self.hold, False)
        for name, process in self.cluster.processes.items():
            for ttl in (0, 1):
                try:
                    say, command, connected = self.dial(process)
                except OSError as error:
                    self.fail(f"{name}: {error}\n{process.tail()}")
                connected.settimeout(0.5)
                frames = beat(os.urandom(16))
                try:
                    while True:
                        command(ping(ttl))
                        say(*frames)
                except (TimeoutError, BrokenPipeError, ConnectionResetError):
                    self.hang_up(connected)
        self.hold(False)
        for name, process in self.cluster.processes.items():
            until(lambda p=process: self.is_well(p), PATIENCE_S, f"{name} goes on")
        self.check()

    def is_well(self, process):
        """Whether a new connection is taken."""
        self.assertIsNone(process.popen.poll(), process.tail())
        try:
            say, _, connected = self.dial(process)
            say(*beat(os.urandom(16)))
            connected.close()
        except OSError:
            return False
        return True


class Keyed(Commands):
    """With the key set of the cluster, over tcp."""

    def start(self):
        path = os.path.join(self.cluster.dir, "keys")
        code, _, err = run("mc-conductor", "keygen", "-o", path)
        self.assertEqual(code, 0, err)
        self.keys = curve.key_set(path)
        place = self.cluster.start("conductor", "--listen", "tcp://127.0.0.1:0", "--auth", path).ready["control"]
        for name in NODES:
            lock = ("--conductor", place, "--transport", "tcp", "--auth", path)
            self.cluster.start(name, *lock, *FLAGS[name]).wait_ready()

    def dial(self, process):
        host, port = process.ready["control"].removeprefix("tcp://").rsplit(":", 1)
        connected = socket.create_connection((host, int(port)), PATIENCE_S)
        client = curve.Client(connected, self.keys)
        return client.say, client.command, connected


if __name__ == "__main__":
    unittest.main(verbosity=2)

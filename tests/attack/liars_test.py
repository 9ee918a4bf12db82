#!/usr/bin/env python3
"""Liars that speak our protocols: hostile control messages to every role, hostile HTTP to the conductor, hostile
frames to the data port, and broken KV streams. No program may end, hang or grow, and afterwards the cluster answers
as it did before."""

import glob
import json
import os
import socket
import unittest

import attack
from cluster import Random, run
from liar import Attacked, Liar, http_seeds, throw_http
from zmtp import Dealer, Raw, pack, unpack

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden", "wire", "messages.txt")


def golden_messages():
    """(type, body as a Python value) of every control message."""
    with open(GOLDEN) as lines:
        return [(kind, unpack(bytes.fromhex(body))[0]) for kind, body in (line.split() for line in lines)]


class Control(Attacked):
    def sockets(self):
        folder = self.cluster.env["MCT_RUN_DIR"]
        found = [path for path in glob.glob(folder + "/*") if os.path.basename(path).startswith(("conductor", "node-"))]
        return ["ipc://" + path for path in found if not path.endswith((".http", ".key", ".lock"))]

    def test_hostile_control_messages_neither_end_nor_fool_any_role(self):
        names = [n["id"] for n in self.cluster.cluster()["nodes"]]
        liar = Liar(self.random, names)
        messages = golden_messages()
        uris = self.sockets()
        self.assertEqual(len(uris), 4, uris)
        for uri in uris:
            dealer = Dealer(uri)
            for i in range(attack.count(750, 25_000)):
                kind, body = self.random.choice(messages)
                shape = self.random.randrange(10)
                try:
                    if shape < 6:
                        dealer.send(kind, liar.mutate(body))
                    elif shape < 8:
                        dealer.send(kind, Raw(liar.garble(pack(body))))
                    elif shape == 8:
                        head = liar.mutate(
                            {"v": 1, "type": kind, "id": i + 1, "from": self.random.choice(names), "epoch": 1}
                            | {"inst": dealer.instance, "re": 1, "deadline_ms": 5}
                        )
                        dealer.send_frames(pack(head), pack(body))
                    else:
                        dealer.send_frames(*[os.urandom(self.random.randrange(40)) for _ in range(i % 4 + 1)])
                    dealer.drain()
                except (ConnectionError, BrokenPipeError):  # thrown out: come back as another instance
                    dealer.close()
                    dealer = Dealer(uri)
            dealer.close()
            self.alive()
        self.check_after()


class Http(Attacked):
    def test_hostile_http_gets_an_answer_or_a_closed_connection(self):
        sent = attack.count(1500, 100_000)
        liar = Liar(self.random, [])
        port = self.cluster.url_port
        answered = throw_http(port, http_seeds(), liar, sent, lambda data: self.alive("conductor", data))
        self.assertGreater(answered, sent * 0.3)
        self.check_after()


class Frames(Attacked):
    def data_ports(self):
        ports = set()
        for name, process in self.cluster.processes.items():
            if name == "conductor":
                continue
            http = int(self.cluster.node(name)["http"].rsplit(":", 1)[1])
            ports |= {port for _, port in attack.listeners(process.popen.pid) if port != http}
        return sorted(ports)

    def test_hostile_frames_on_the_data_port_end_their_own_connection_only(self):
        liar = Liar(self.random, [])
        with open(os.path.join(HERE, "..", "golden", "wire", "xfer_frame.txt")) as lines:
            frames = [bytes.fromhex(word) for line in lines for word in line.split()[1:2] if len(word) % 2 == 0]
        self.assertTrue(frames)
        for port in self.data_ports():
            for _ in range(attack.count(300, 34_000)):
                data = b"".join(self.random.choice(frames) for _ in range(self.random.choice([1, 2, 5])))
                if self.random.random() < 0.8:
                    data = liar.garble(data)
                connection = socket.create_connection(("127.0.0.1", port), 60)
                try:
                    connection.sendall(data)
                    if self.random.random() < 0.3:
                        connection.shutdown(socket.SHUT_WR)
                        connection.recv(4096)
                except (ConnectionError, BrokenPipeError):
                    pass
                finally:
                    connection.close()
            self.alive()
        self.check_after()


class Streams(unittest.TestCase):
    def test_a_broken_kv_stream_is_refused_by_number_or_computes_the_same(self):
        random = attack.seeded(self.id())
        liar = Liar(random, [])
        prompt = ",".join(map(str, Random(9).ids(100)))
        code, stream, err = run("mc-prefill", "once", "--prompt-ids", prompt, "--kv-out", "-")
        self.assertEqual(code, 0, err)
        decode = ["mc-decode", "once", "--kv-in", "-", "-n", "4", "--temperature", "0", "--ignore-eos", "--json"]
        code, right, err = run(*decode, stdin=stream)
        self.assertEqual(code, 0, err)
        ids = json.loads(right.splitlines()[-1])["output_ids"]
        for _ in range(attack.count(30, 2000)):
            broken = liar.garble(stream[:4096]) + stream[4096:] if random.random() < 0.5 else liar.garble(stream)
            code, out, err = run(*decode, stdin=broken)
            self.assertIn(code, (0, 1, 2, 3), err)
            if code == 0:
                self.assertEqual(json.loads(out.splitlines()[-1])["output_ids"], ids)
            else:
                self.assertRegex(err, r"MC\d{4}")


if __name__ == "__main__":
    unittest.main(verbosity=2)

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
from cluster import Cluster, Random, oracle, run, until
from zmtp import Dealer, Raw, pack, unpack

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden", "wire", "messages.txt")
CORPUS = os.path.join(HERE, "..", "fuzz", "corpus")
GROWTH = 64 << 20  # bytes that a process may grow by under attack: caches, arenas of the allocator, ids remembered
EDGES = [0, 1, -1, 2, 63, 64, 65, 255, 256, 4096, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [0.0, -0.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]


def golden_messages():
    """(type, body as a Python value) of every control message."""
    with open(GOLDEN) as lines:
        return [(kind, unpack(bytes.fromhex(body))[0]) for kind, body in (line.split() for line in lines)]


def resident(pid):
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class Liar:
    """Draws hostile variants of what is right."""

    def __init__(self, random, names):
        self.random = random
        self.names = names

    def value(self, was):
        """Something else in place of one value, often of its type."""
        draw = self.random.random
        if draw() < 0.15:  # another type
            return self.random.choice([None, True, "", "x" * 5000, b"", b"\0" * 16, [], {}, 7, -7, 1.5, [[[[[]]]]]])
        if isinstance(was, bool):
            return not was
        if isinstance(was, int):
            return self.random.choice(EDGES)
        if isinstance(was, float):
            return self.random.choice(FLOATS)
        if isinstance(was, str):
            return self.random.choice(self.names + ["", "\0", "..", "%s%n", "x" * 70_000, "\udcff", was + was])
        if isinstance(was, bytes):
            return self.random.choice([b"", was[:-1], was + b"\0", os.urandom(len(was)), os.urandom(300)])
        if isinstance(was, list):
            return self.random.choice([[], was * 3, was[::-1], [0] * 5000, list(range(2000)), [was]])
        return {}

    def mutate(self, value):
        """One to three places changed, anywhere in the tree."""
        for _ in range(self.random.choice([1, 1, 2, 3])):
            value = self.once(value)
        return value

    def once(self, value):
        if isinstance(value, dict) and value and self.random.random() < 0.9:
            out = dict(value)
            key = self.random.choice(list(out))
            if self.random.random() < 0.05:
                del out[key]
            else:
                out[key] = self.once(out[key])
            return out
        if isinstance(value, list) and value and self.random.random() < 0.5:
            out = list(value)
            at = self.random.randrange(len(out))
            out[at] = self.once(out[at])
            return out
        return self.value(value)

    def garble(self, data):
        """Bytes flipped, cut, doubled or with a hostile length."""
        data = bytearray(data)
        for _ in range(self.random.choice([1, 1, 2, 8])):
            if not data:
                break
            at = self.random.randrange(len(data))
            kind = self.random.randrange(4)
            if kind == 0:
                data[at] ^= 1 << self.random.randrange(8)
            elif kind == 1:
                del data[at : at + self.random.choice([1, 2, 100])]
            elif kind == 2:
                data[at:at] = data[at : at + self.random.choice([1, 4, 64])]
            else:
                data[at : at + 4] = self.random.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"])
        return bytes(data)


class Attacked(unittest.TestCase):
    """A cluster whose processes and answers are compared before and after."""

    def setUp(self):
        self.random = attack.seeded(self.id())
        self.cluster = Cluster(roles=["conductor", "p0", "d0", "c0"], worker=[], conductor=[])
        self.addCleanup(self.cluster.close)
        self.prompt = Random(5).ids(150)
        self.right = self.answer()
        self.before = {name: resident(p.popen.pid) for name, p in self.cluster.processes.items()}

    def answer(self):
        return self.cluster.complete(ids=self.prompt, max_tokens=8)["choices"][0]["token_ids"]

    def alive(self, only=None, sent=b""):
        for name, process in self.cluster.processes.items():
            if only in (None, name):
                self.assertIsNone(process.popen.poll(), f"{name} ended\n{process.tail()}\n{sent[:2000]}")

    def check_after(self):
        self.alive()

        def answers():
            try:
                return self.answer() == self.right
            except (AssertionError, OSError):
                return False

        until(answers, 30, "the cluster answers as before")
        fresh = Random(self.random.randrange(1 << 30)).ids(70)
        self.assertEqual(
            self.cluster.complete(ids=fresh, max_tokens=4)["choices"][0]["token_ids"], oracle(fresh, 4, dtype="bf16")
        )
        self.cluster.wait_quiet(20)
        for name, process in self.cluster.processes.items():
            grown = resident(process.popen.pid) - self.before[name]
            self.assertLess(grown, GROWTH, f"{name} grew by {grown >> 20} MiB")


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


def http_seeds():
    seeds = []
    for path in sorted(glob.glob(os.path.join(CORPUS, "http", "*"))):
        with open(path, "rb") as file:
            data = file.read()
        if data[:4] in (b"GET ", b"POST") or b" HTTP/1." in data[:200]:
            seeds.append(data)
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 2, "stream": True, "mc": {"deadline_ms": 2000}}).encode()
    seeds.append(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    chat = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
    seeds.append(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(chat))
    seeds[-1] += chat
    return seeds


class Http(Attacked):
    def test_hostile_http_gets_an_answer_or_a_closed_connection(self):
        liar = Liar(self.random, [])
        seeds = http_seeds()
        answered, count = 0, attack.count(1500, 100_000)
        for _ in range(count):
            data = self.random.choice(seeds)
            if self.random.random() < 0.5 and b"\r\n\r\n{" in data:  # a right head with a hostile body
                head, body = data.split(b"\r\n\r\n", 1)
                try:
                    body = json.dumps(liar.mutate(json.loads(body)), default=repr).encode()
                except (ValueError, UnicodeEncodeError):
                    body = liar.garble(body)
                target = head.split(b" ")[1]
                data = b"POST " + target + b" HTTP/1.1\r\nHost: localhost\r\n"
                data += b"Content-Length: %d\r\n\r\n" % len(body) + body
            else:
                data = liar.garble(data)
            self.alive("conductor", data)
            connection = socket.create_connection(("127.0.0.1", self.cluster.url_port), 20)
            try:
                connection.sendall(data)
                if self.random.random() < 0.7:
                    connection.shutdown(socket.SHUT_WR)
                    first = connection.recv(64)
                    if first:
                        answered += 1
                        begin = b"HTTP/1.1 "  # sent a byte at a time while the answer is made
                        self.assertEqual(first[:9], begin[: len(first)])
            except (ConnectionError, BrokenPipeError):
                pass
            finally:
                connection.close()
        self.assertGreater(answered, count * 0.3)
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
                connection = socket.create_connection(("127.0.0.1", port), 20)
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

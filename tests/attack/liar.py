"""Parts that the tests with hostile input share: a liar that draws wrong variants of right input, and a cluster whose
processes and answers are compared before and after."""

import glob
import json
import os
import socket
import unittest

import attack
from cluster import Cluster, Random, is_sanitized, oracle, until

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fuzz", "corpus")
# Bytes that a process may grow by under attack: caches, arenas of the allocator, ids remembered. AddressSanitizer keeps
# 256 MiB of freed memory, and as much again around them.
GROWTH = (576 if is_sanitized() else 64) << 20
EDGES = [0, 1, -1, 2, 63, 64, 65, 255, 256, 4096, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [0.0, -0.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]


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
        self.cluster = self.make_cluster()
        self.addCleanup(self.cluster.close)
        self.prompt = Random(5).ids(150)
        self.right = self.answer()
        self.before = {name: attack.resident(p.popen.pid) for name, p in self.cluster.processes.items()}

    def make_cluster(self):
        return Cluster(roles=["conductor", "p0", "d0", "c0"])

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

        until(answers, 60, "the cluster answers as before")
        fresh = Random(self.random.randrange(1 << 30)).ids(70)
        self.assertEqual(
            self.cluster.complete(ids=fresh, max_tokens=4)["choices"][0]["token_ids"], oracle(fresh, 4, dtype="bf16")
        )
        self.cluster.wait_quiet()

        def grown():
            now = {name: attack.resident(p.popen.pid) for name, p in self.cluster.processes.items()}
            return {name: now[name] - self.before[name] for name in now if now[name] - self.before[name] >= GROWTH}

        # Memory of a costly job goes back to the system a second after it, when a thread of the door is idle.
        until(lambda: not grown(), 60, lambda: f"no process is larger by {GROWTH} bytes than before: {grown()}")


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


def draw_http(seeds, liar):
    """One hostile request."""
    data = liar.random.choice(seeds)
    if liar.random.random() >= 0.5 or b"\r\n\r\n{" not in data:
        return liar.garble(data)
    head, body = data.split(b"\r\n\r\n", 1)  # a right head with a hostile body
    try:
        body = json.dumps(liar.mutate(json.loads(body)), default=repr).encode()
    except (ValueError, UnicodeEncodeError):
        body = liar.garble(body)
    data = b"POST " + head.split(b" ")[1] + b" HTTP/1.1\r\nHost: localhost\r\n"
    return data + b"Content-Length: %d\r\n\r\n" % len(body) + body


def throw_http(port, seeds, liar, count, check):
    """Sends hostile requests, each on a connection of its own, and calls check(data) before each. Most clients close
    their sending side and read. Returns the number of those that got an answer; each begins as HTTP does."""
    answered = 0
    for _ in range(count):
        data = draw_http(seeds, liar)
        check(data)
        with attack.dial(port, timeout=60) as connection:
            try:
                connection.sendall(data)
                if liar.random.random() >= 0.7:
                    continue
                connection.shutdown(socket.SHUT_WR)
                first = connection.recv(64)
            except (ConnectionError, BrokenPipeError):
                continue
        if first:
            answered += 1
            begin = b"HTTP/1.1 "  # sent a byte at a time while the answer is made
            assert first[:9] == begin[: len(first)], (first, data[:2000])
    return answered

#!/usr/bin/env python3
"""The HTTP port of a worker, the store of values behind that of mc-cache, and the prompts behind that of mc-prefill,
under hostile requests: no program ends or grows, health is answered throughout, and what is wrong is refused by a
status."""

import json
import socket
import threading
import time
import unittest

import attack
import groups
from cluster import Cluster, until
from exhaust_test import Client, port_of
from liar import Attacked, Liar, throw_http

KEY = "sk-tenant-one"
GRACE_S = 15  # a generous ceiling on a crowded machine; the median is printed
WORKERS = ("p0", "d0", "c0")
CONTEXT = 8192  # tokens, of mc-tiny
SLOW = attack.count(40, 400)


def request(method, target, body=b"", *fields):
    """A request whose length is right."""
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    if body and not fields:
        head += f"Content-Length: {len(body)}\r\n"
    return "".join([head, *(field + "\r\n" for field in fields), "\r\n"]).encode() + body


def batch(*ops, values=b""):
    return json.dumps({"ops": ops}).encode() + b"\n" + values


def prompt_of(ids, **fields):
    return json.dumps({"prompt": ids, **fields}, separators=(",", ":")).encode()


def chunked(method, target, body):
    return request(method, target, body, "Transfer-Encoding: chunked")


def seeds():
    """Requests that are right."""
    put = {"op": "put", "key": "b", "bytes": 5, "ttl": "10m", "replace": True}
    return [
        *(request("GET", page) for page in ("/livez", "/readyz", "/version", "/metrics", "/blocks?limit=5", "/none")),
        request("PUT", "/v1/store/a?ttl=1m&pin=1s&replace=true", b"x" * 500),
        chunked("PUT", "/v1/store/c?replace=1", b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nTrailer: 1\r\n\r\n"),
        request("GET", "/v1/store/a?lease=1s"),
        request("GET", "/v1/store?prefix=a&after=&limit=3"),
        request("POST", "/v1/store/a?op=copy&to=d&replace=true", b"", "Content-Length: 0"),
        request("POST", "/v1/store", batch(put, {"op": "get", "key": "a"}, {"op": "pin", "key": "b", "for": "1s"},
                                           values=b"hello")),
        request("DELETE", "/v1/store/d"),
        request("PUT", "/v1/store/g?group=true&replace=true", groups.group({b"m": b"x" * 100, b"n": b""})),
        request("GET", "/v1/store/g?member=m&lease=1s"),
        request("GET", "/v1/store/g?members=true"),
        request("PUT", "/v1/store/e?durability=d0&replace=true", b"x" * 500),
        request("POST", "/v1/store/e?op=move&to=f&replace=true", b"", "Content-Length: 0", "x-mc-deadline-ms: 20000"),
        request("POST", "/blocks/lookup", json.dumps({"hashes": ["12" * 16, "34" * 16]}).encode()),
        request("POST", "/blocks/evict", json.dumps({"prefix": "12" * 16, "older_ms": 5, "dry_run": True}).encode()),
        request("POST", "/blocks/pin", json.dumps({"prefix": "12" * 16, "for_ms": 1000}).encode()),
        request("GET", "/blocks/export?prefix=" + "12" * 16 + "&first=0"),
        request("POST", "/blocks/import", b"MCKV\x01\0\0\0\x10\0\0\0" + bytes(200)),
        request("POST", "/prefill", prompt_of([5, 17, 9])),
        request("POST", "/prefill", prompt_of([1] * 200, model="mc-tiny", logprobs=20, no_cache=True)),
        chunked("POST", "/prefill", b"12\r\n" + prompt_of([5, 6]) + b"\r\n0\r\n\r\n"),
    ]


def wrong_groups():
    """Values that are no whole group, or have members without a name that can be a key."""
    group = groups.group({b"a": b"first", b"b": b"second"})
    found = [b"", b"x", group[:24], group[:-1], group + b"x", group[:8] + b"\xff" * 4 + group[12:],
             group[:12] + b"\xff" * 4 + group[16:], group[:24] + b"\xff" * 8 + group[32:]]
    names = (b"", b"a\x1b[31m", b"\xff", b"n" * 1025)
    return found + [groups.group({name: b"x"}) for name in names]


def wrong():
    """(request, statuses) of requests that are wrong in one way each. 0: the connection closes without an answer."""
    put, post = "/v1/store/k", "/v1/store"
    bad, large, unknown = (400,), (400, 413), (405, 501)
    keys = ["%00", "%0a", "%ff%fe", "%", "%zz", "k" * 1025, "%c0%af"]
    queries = ["ttl=0s", "ttl=-1s", "ttl=1e400d", "ttl=nan", "ttl=" + "9" * 400 + "s", "pin=400d", "replace=2", "a",
               "=", "ttl=1s&ttl=2s", "tenant=", "tenant=%00", "tenant=" + "t" * 5000, "x=y", "%ff=1",
               "durability=", "durability=d4", "durability=d3", "durability=d2&durability=d1", "durability=%00",
               "group=2", "group=true", "member=a"]
    gets = ["member=", "member=a&members=true", "member=a&member=b", "members=2", "group=true"]
    listings = ["limit=-1", "limit=0", "limit=1e9", "limit=18446744073709551616", "prefix=%ff", "after=%00"]
    batches = [b"", b"{}", b"[" * 100_000, b'{"ops":' + b"[" * 50_000, b'{"ops":{}}\n', b'{"ops":[1]}\n', b"\xff\xfe\n"]
    batches += [batch(*[{"op": "get", "key": "k"}] * 1025), batch({"op": "put", "key": "k", "bytes": 2**63 - 1})]
    batches += [batch({"op": "put", "key": "k", "bytes": -1})]
    batches += [batch({"op": "put", "key": "k", "bytes": 9}, values=b"x")]
    batches += [batch({"op": "get", "key": "k", "member": "a"}), batch({"op": "get", "key": "k", "members": True})]
    batches += [batch({"op": "put", "key": "k", "bytes": 1, "group": True}, values=b"x")]
    batches += [batch({"op": "get", "key": ["k"]}), batch({"op": "none", "key": "k"}), b'{"ops":[]' + b" " * (5 << 20)]
    fields = [("Content-Length: 3", "Content-Length: 4"), ("Content-Length: 3", "Transfer-Encoding: chunked")]
    fields += [("Content-Length: -1",), ("Content-Length: 0x10",), ("Content-Length: 18446744073709551616",)]
    chunks = [b"ffffffffffffffff\r\n", b"fffffffffffffffff\r\n", b"-1\r\n", b"3\nabc\n0\n\n", b"3\r\nabcd\r\n0\r\n\r\n"]
    chunks += [b"1;" + b"x" * 100_000, b"0\r\n" + b"T: 1\r\n" * 20_000]
    return [
        *((request("PUT", f"/v1/store/{key}", b"x"), (400, 414)) for key in keys),
        *((request("PUT", f"{put}?{query}", b"x"), (400, 403)) for query in queries),
        *((request("GET", f"{put}?{query}"), bad) for query in gets),
        *((request("PUT", f"{put}?group=true", value), bad) for value in wrong_groups()),
        *((request("GET", f"{post}?{query}"), bad) for query in listings),
        *((request("POST", post, body), large) for body in batches if body),
        *((request("PUT", put, b"abc", *each), large) for each in fields),
        *((chunked("PUT", put, body), (400, 413, 431)) for body in chunks),
        (request("PUT", put, b"abc", "Transfer-Encoding: gzip"), (400, 501)),
        (request("PUT", put, b"x", "Content-Length: 9999999999"), (413,)),
        (request("PUT", put, b"abc", "Content-Length: 3", "x-mc-crc32c: 00000000"), bad),
        (request("PUT", put, b"abc", "Content-Length: 3", "x-mc-crc32c: " + "z" * 9000), bad),
        (request("GET", "/livez", b"", "X: " + "y" * 100_000), (400, 431)),
        (request("GET", "/livez", b"", *["X: y"] * 5_000), (400, 431)),
        (request("GET", "/" + "v" * 100_000), (400, 414, 431)),
        *((request(method, "/livez"), unknown + bad) for method in ("BREW", "TRACE", "CONNECT", "PATCH", "x" * 300)),
        (b"GET /livez HTTP/9.9\r\n\r\n", (400, 505)),
        (b"GET  /livez\r\n\r\n", bad),
        (b"\0" * 100, bad),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"r" * 300, bad),  # TLS
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 405, 501, 505)),  # HTTP/2
    ]


def wrong_prompts():
    """(request, statuses) of prompts that are wrong in one way each."""
    bad, large = (400,), (400, 413)
    bodies = [b"{}", b"[]", b"\xff\xfe", b"[" * 60_000, b'{"prompt":' + b"[" * 60_000, b"," * 90_000, prompt_of([])]
    bodies += [prompt_of(ids) for ids in ("text", [1.5], [-1], [2**32], [2**64], [[1]], [None], {"1": 1}, 7)]
    bodies += [prompt_of([1], **{key: value}) for key, value in (
        ("logprobs", 21), ("logprobs", -1), ("logprobs", 1e300), ("no_cache", 1), ("none", 1), ("x" * 3000, 1))]
    bodies += [b'{"prompt":[1],"prompt":[1]}', b'{"prompt":[1' + b",1" * 40_000, prompt_of([1] * (CONTEXT + 1))]
    deadlines = ["0", "-1", "3600001", "1e3", "9" * 400, "soon"]
    return [
        *((request("POST", "/prefill", body), bad) for body in bodies),
        (request("POST", "/prefill", prompt_of([1], model="other")), (404,)),
        (request("POST", "/prefill", prompt_of([1] * 500_000)), large),
        (request("POST", "/prefill", b"", "Content-Length: 9999999999"), large),
        *((request("POST", "/prefill", b'{"prompt":[1]}', "Content-Length: 14", f"x-mc-deadline-ms: {ms}"), bad)
          for ms in deadlines),
        (request("GET", "/prefill"), (405,)),
    ]


def wrong_orders():
    """(request, statuses) of orders about blocks that are wrong in one way each."""
    bad, large, absent, one = (400,), (400, 413), (404,), "12" * 16
    bodies = [b"", b"[]", b"\xff\xfe", b"[" * 60_000, b'{"prefix":' + b"[" * 60_000, b'{"prefix":"12"}']
    bodies += [json.dumps(body).encode() for body in (
        {"none": 1}, {"prefix": 7}, {"prefix": "0" * 32}, {"prefix": one + "12"}, {"prefix": one, "for_ms": -1},
        {"prefix": one, "for_ms": 2**63}, {"prefix": one, "for_ms": 1.5}, {"older_ms": 0}, {"tenant": ""},
        {"model": "m" * 5000}, {"dry_run": "yes"}, {"prefix": one, "x" * 3000: 1})]
    bodies += [json.dumps({"hashes": hashes}).encode() for hashes in ([], one, [7], ["0" * 32], [one] * 1001)]
    posts = [("/blocks/" + verb, body) for verb in ("lookup", "evict", "pin", "unpin") for body in bodies]
    streams = [b"", b"MCKV", b"MCKV\x01\0\0\0\xff\xff\xff\xff" + bytes(9000), b"MCKV\x02\0" + bytes(90), bytes(100_000)]
    queries = ["", "?", "?prefix=", "?first=1", "?prefix=" + one + "&first=-1", "?prefix=" + one + "&first=4294967296",
               "?prefix=" + one + "&x=1", "?prefix=" + "z" * 32]
    return [
        *((request("POST", path, body), bad) for path, body in posts),
        *((request("POST", "/blocks/import", stream), bad) for stream in streams),
        (request("POST", "/blocks/import", b"", "Content-Length: 9999999999"), large),
        (request("POST", "/blocks/evict", bytes(70_000)), large),
        *((request("GET", "/blocks/export" + query), bad) for query in queries),
        (request("GET", "/blocks/export?prefix=" + one), absent),
        *((request("POST", "/blocks/" + verb, json.dumps(body).encode()), absent) for verb, body in (
            ("pin", {"prefix": one, "for_ms": 1}), ("unpin", {"prefix": one}))),
        *((request("GET", "/blocks/" + verb), (405,)) for verb in ("lookup", "evict", "pin", "unpin", "import")),
        (request("POST", "/blocks/export", b"{}"), (405,)),
        (request("POST", "/blocks/none", b"{}"), absent),
    ]


class Slow(threading.Thread):
    """Clients that send what they have a byte at a time, and read nothing."""

    def __init__(self, port, texts):
        super().__init__(daemon=True)
        self.clients = [(attack.dial(port), text) for text in texts]
        self.end = threading.Event()
        self.start()

    def run(self):
        at = 0
        while not self.end.wait(0.02):
            for client, text in self.clients:
                try:
                    client.sendall(text[at : at + 1])
                except OSError:
                    pass  # thrown out
            at += 1

    def close(self):
        self.end.set()
        self.join()
        for client, _ in self.clients:
            client.close()


class WorkerHttp(Attacked):
    attacked, flags = WORKERS, ()

    def make_cluster(self):
        c = Cluster(roles=["conductor", "d0"])
        try:
            c.start("p0", "--admin-key-file", attack.private_file(self, "admin", KEY + "\n"))
            attack.start_store(self, c, KEY, "--dram", "32MiB", "--values", "2MiB", *self.flags)
            self.ports = {name: port_of(c.processes[name].wait_ready()["http"]) for name in self.attacked}
            c.wait_nodes()
        except BaseException:
            c.close()
            raise
        self.took = []
        self.health = [Client(port) for port in self.ports.values()]
        for one in self.health:
            self.addCleanup(one.close)
        return c

    def seeds(self):
        return seeds()

    def wrong(self):
        return [*wrong(), (request("PUT", "/v1/store/k?durability=d2", b"x"), (400,))]

    def check_health(self):
        for one in self.health:
            began = time.monotonic()
            self.assertEqual(one.status("/livez"), 200)
            self.took.append(time.monotonic() - began)

    def check_after(self):
        self.check_health()
        took = sorted(self.took)
        middle = took[len(took) // 2]
        print(f"livez: median {middle * 1e3:.1f} ms, most {took[-1] * 1e3:.1f} ms of {len(took)}", flush=True)
        self.assertLess(max(self.took), GRACE_S)
        super().check_after()

    def test_hostile_requests_get_an_answer_or_a_closed_connection_while_health_is_answered(self):
        liar, sent = Liar(self.random, ["a", "b"]), attack.count(400, 34_000)
        for name, port in self.ports.items():
            thrown = 0

            def check(data):
                nonlocal thrown
                thrown += 1
                self.alive(name, data)
                if thrown % 20 == 0:
                    self.check_health()

            self.assertGreater(throw_http(port, self.seeds(), liar, sent, check), sent * 0.3)
        self.check_after()

    def status_of(self, port, data):
        """The status of the answer to these bytes; 0 when the connection closes without an answer."""
        with attack.dial(port, timeout=60) as client:
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # refused before the last byte; the answer is there
            answer = b""
            try:
                while b"\r\n" not in answer and (piece := client.recv(4096)):
                    answer += piece
            except ConnectionError:
                pass
        return int(answer.split(b" ")[1]) if answer else 0

    def test_each_wrong_request_to_the_store_is_refused_by_a_status(self):
        for data, statuses in self.wrong():
            with self.subTest(data[:80]):
                self.assertIn(self.status_of(self.ports["c0"], data), statuses)
            self.alive("c0", data)
            self.check_health()
        self.assertEqual(self.status_of(self.ports["c0"], request("PUT", "/v1/store/k", b"abc")), 201)
        self.check_after()

    def test_each_wrong_prompt_is_refused_by_a_status(self):
        for data, statuses in wrong_prompts():
            with self.subTest(data[:120]):
                self.assertIn(self.status_of(self.ports["p0"], data), statuses)
            self.alive("p0", data)
            self.check_health()
        self.assertEqual(self.status_of(self.ports["p0"], request("POST", "/prefill", prompt_of([5, 17, 9]))), 200)
        self.check_after()

    def test_each_wrong_order_about_blocks_is_refused_by_a_status(self):
        for data, statuses in wrong_orders():
            with self.subTest(data[:120]):
                self.assertIn(self.status_of(self.ports["p0"], data), statuses)
            self.alive("p0", data)
            self.check_health()  # each time, as a connection that is idle for 75 s is closed
        order = request("POST", "/blocks/evict", b'{"all":true,"dry_run":true}')
        self.assertEqual(self.status_of(self.ports["p0"], order), 200)
        self.assertEqual(self.status_of(self.ports["c0"], order), 403)  # a tenant's key is no operator's
        self.check_after()

    def wait_ready(self):
        until(lambda: self.health[0].status("/readyz") == 200, 60, "the node is ready")

    def test_health_is_answered_beside_the_largest_prompts(self):
        deadline = "x-mc-deadline-ms: 20"
        right = prompt_of([1] * CONTEXT)  # more than the server's thread reads itself
        wrong = prompt_of([1] * CONTEXT + [-1] * 30)
        statuses, end, misses = [], threading.Event(), 0

        def send(body):
            while not end.is_set():
                data = request("POST", "/prefill", body, f"Content-Length: {len(body)}", deadline)
                statuses.append(self.status_of(self.ports["p0"], data))

        threads = [threading.Thread(target=send, args=(body,)) for body in (right, wrong) * 3]
        self.wait_ready()
        for thread in threads:
            thread.start()
        try:
            for _ in range(attack.count(100, 2000)):
                self.check_health()
                if self.health[0].status("/readyz") != 200:  # a node that the host kept silent for 3 s registers again
                    misses += 1
                    self.wait_ready()
        finally:
            end.set()
            for thread in threads:
                thread.join()
        self.assertLess(misses, 5)
        self.assertGreater(len(statuses), len(threads))
        self.assertLessEqual(set(statuses), {200, 400, 429, 503, 504})
        self.check_after()

    def test_slow_clients_keep_nobody_out(self):
        shapes = [
            request("GET", "/livez", b"", "X: " + "y" * 8000),
            request("PUT", "/v1/store/slow", b"x", "Content-Length: 60000"),
            chunked("PUT", "/v1/store/slow", b"fff\r\n" + b"x" * 4095),
            b"G" * 8000,
        ]
        for port in self.ports.values():
            slow = Slow(port, shapes * (SLOW // len(shapes)))
            self.addCleanup(slow.close)
            # Clients that ask and read no answer.
            unread = [attack.dial(port) for _ in range(SLOW // 4)]
            for one in unread:
                one.setblocking(False)
                try:
                    one.send(request("GET", "/version") * 2000)
                except OSError:
                    pass
            for _ in range(20):
                self.check_health()
                fresh = Client(port)
                self.assertEqual(fresh.status("/livez"), 200)
                fresh.close()
            for one in unread:
                one.close()
            slow.close()
        self.check_after()


class WorkerHttpOnDisk(WorkerHttp):
    """The store of values alone, whose calls run on threads that wait for a disk."""

    attacked, flags = ("c0",), ("--ssd", "FOLDER/disk:256MiB", "--values-disk", "16MiB")
    test_each_wrong_prompt_is_refused_by_a_status = None
    test_each_wrong_order_about_blocks_is_refused_by_a_status = None
    test_health_is_answered_beside_the_largest_prompts = None

    def seeds(self):
        return [data.replace(b"durability=d0", b"durability=" + level) for data in seeds() for level in (b"d1", b"d2")]

    def wrong(self):
        put = "/v1/store/k?durability=d2&replace=true"
        return [
            *wrong(),
            (request("PUT", put, b"x" * (12 << 20)), (507,)),
            *((request("PUT", put, b"x", "Content-Length: 1", f"x-mc-deadline-ms: {ms}"), (400,))
              for ms in ("0", "-1", "3600001", "1e3", "9" * 400, "soon")),
        ]


if __name__ == "__main__":
    unittest.main(verbosity=2)

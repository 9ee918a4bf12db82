#!/usr/bin/env python3
"""Workers at a limit on their memory: a value, a prompt or a schema for which there is no room fails alone, no worker
ends, and small requests are served afterwards as before."""

import glob
import http.client
import json
import os
import threading
import unittest

import attack
from cluster import Cluster, Random, SocketConnection, oracle, token_ids, until
from exhaust_test import port_of

TOGETHER = attack.count(3, 6)
PATIENCE_S = 60
DEADLINE_S = 600  # of a call to the store of values
KEY = "sk-tenant-one"


def together(calls):
    """The results of calls that run at once; a connection that ended is None."""
    results = [None] * len(calls)

    def run(at):
        try:
            results[at] = calls[at]()
        except (OSError, http.client.HTTPException):
            pass

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@attack.counts_memory
class Limited(unittest.TestCase):
    """Workers `names` have `room` bytes beside what they have at rest."""

    def limit(self, c):
        for name in self.names:
            attack.leave_memory(c.processes[name].popen.pid, self.room)

    def assert_lives(self, c, after):
        for name, process in c.processes.items():
            self.assertIsNone(process.popen.poll(), f"{name} ended after {after}\n{process.tail()}")


class Values(Limited):
    names, room = ("c0",), 40 << 20
    flags, level = (), "d0"
    statuses = (200, 201, 404, 409, 413, 429, 503)

    def setUp(self):
        self.c = Cluster()
        self.addCleanup(self.c.close)
        self.c.start("conductor")
        process = attack.start_store(self, self.c, KEY, "--dram", "512MiB", "--values", "256MiB", *self.flags)
        self.port = port_of(process.wait_ready()["http"])

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S + 60)
        headers = {"Authorization": f"Bearer {KEY}", "x-mc-deadline-ms": str(DEADLINE_S * 1000)}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def test_values_without_room_fail_alone(self):
        value = b"x" * (12 << 20)
        put = {"op": "put", "bytes": len(value) // 4, "durability": self.level}
        line = json.dumps({"ops": [{**put, "key": f"b{i}"} for i in range(4)]})
        batch = line.encode() + b"\n" + value
        gets = json.dumps({"ops": [{"op": "get", "key": f"k{i}"} for i in range(8)]}).encode() + b"\n"
        self.assertEqual(self.ask("PUT", "/v1/store/small", b"abc")[0], 201)
        self.limit(self.c)
        seen = set()
        for _ in range(attack.count(3, 20)):
            calls = [
                lambda i=i: self.ask("PUT", f"/v1/store/k{i}?durability={self.level}", value) for i in range(TOGETHER)
            ]
            calls += [lambda i=i: self.ask("GET", f"/v1/store/k{i}") for i in range(TOGETHER)]
            calls += [lambda: self.ask("POST", "/v1/store", batch), lambda: self.ask("POST", "/v1/store", gets)]
            calls += [lambda: self.ask("PUT", f"/v1/store/most?durability={self.level}", b"y" * (64 << 20))]
            for answer in together(calls):
                if answer:
                    seen.add(answer[0])
                    self.assertIn(answer[0], self.statuses, answer[1][:300])
            self.assert_lives(self.c, "large values")
            until(lambda: self.ask("GET", "/v1/store/small") == (200, b"abc"), PATIENCE_S, "a small value is read")
        self.assertIn(503, seen)
        for row in json.loads(self.ask("GET", "/v1/store")[1])["values"]:
            self.assertEqual(self.ask("DELETE", f"/v1/store/{row['key']}")[0], 204)
        put = lambda: self.ask("PUT", "/v1/store/again?replace=true", value[: 1 << 20])[0] in (200, 201)
        until(put, PATIENCE_S, "there is room again")
        self.assertEqual(self.ask("GET", "/v1/store/again"), (200, value[: 1 << 20]))
        self.assertEqual(self.c.processes["c0"].stop(), 0)


class ValuesOnDisk(Values):
    """As Values, on the threads that wait for a disk."""

    flags, level = ("--ssd", "FOLDER/disk:2GiB", "--values-disk", "1GiB"), "d2"
    statuses = (*Values.statuses, 507)  # the block store says so when it has no memory for a group


class ValuesSoonOnDisk(ValuesOnDisk):
    """With writes behind the answers."""

    level = "d1"


def large_schema(random):
    """A schema of nearly the most nodes that a grammar may have: each worker that compiles it keeps some 10 MB."""
    texts = ["".join(chr(97 + random.below(26)) for _ in range(60)) for _ in range(900)]
    return {"type": "object", "properties": {"a": {"enum": texts}}, "required": ["a"], "additionalProperties": False}


class Prompts(Limited):
    names, room = ("p0", "d0", "c0"), 1 << 20

    def bodies(self):
        """Requests that take all that a request may."""
        random = Random(3)
        base = {"temperature": 0, "max_tokens": 6, "mc": {"deadline_ms": 30_000}}
        return [
            ("long prompts", {**base, "prompt": [random.ids(3000) for _ in range(3)]}),
            ("many answers", {**base, "prompt": random.ids(1000), "n": 8, "temperature": 1, "logprobs": 5}),
            ("log-probabilities of a prompt", {**base, "prompt": random.ids(1500), "prompt_logprobs": 5}),
            ("biases", {**base, "prompt": [5], "logit_bias": {str(i): -1 for i in range(1, 900)}}),
            *(("a schema", {**base, "prompt": [5], "max_tokens": 70, "response_format": {
                "type": "json_schema", "json_schema": {"name": "s", "schema": large_schema(random)}}})
              for _ in range(attack.count(4, 40))),
        ]

    def test_requests_without_room_fail_alone(self):
        c = Cluster()
        self.addCleanup(c.close)
        c.env["MALLOC_ARENA_MAX"] = "1"  # an arena reserves address space, which would be room beyond the limit
        for name in ("conductor", *self.names):
            c.start(name)
        c.wait_nodes()
        prompt = Random(4).ids(200)
        right = oracle(prompt, 6, dtype="bf16")
        self.assertEqual(token_ids(c.complete(ids=prompt, max_tokens=6)), right)
        self.limit(c)
        seen = set()
        for what, body in self.bodies():
            calls = [lambda: c.request("POST", "/v1/completions", body, timeout=120)] * TOGETHER
            for answer in together(calls):
                if answer:
                    seen.add((what, answer[0]))
                    self.assertIn(answer[0], (200, 429, 503, 504), (what, answer[2][:300]))
            self.assert_lives(c, what)
        self.assertIn(("a schema", 503), seen)  # else the limit was no limit
        fresh = Random(6).ids(100)

        said = None

        def is_right():
            nonlocal said
            said = c.post("/v1/completions", {"prompt": fresh, "max_tokens": 6, "temperature": 0,
                                              "return_token_ids": True, "ignore_eos": True})
            return said[0] == 200 and token_ids(said[2]) == oracle(fresh, 6, dtype="bf16")

        until(is_right, PATIENCE_S, lambda: f"a small request is served as before; the last answer is {said}")
        c.wait_quiet()


class Operators(Limited):
    names, room = ("p0",), 512 << 10

    def ask(self, method, path, body=None):
        connection = SocketConnection(self.socket, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body)
            return connection.getresponse().status
        finally:
            connection.close()

    def test_prompts_and_lists_without_room_fail_alone(self):
        c = Cluster()
        self.addCleanup(c.close)
        c.env["MALLOC_ARENA_MAX"] = "1"
        for name in ("conductor", *self.names):
            c.start(name)
        c.wait_nodes()
        (self.socket,) = glob.glob(os.path.join(c.env["MCT_RUN_DIR"], "node-*.http"))
        random = Random(8)
        same = random.ids(8000)  # computed once in the quick tier: what a prompt takes beside its KV is the matter here
        ids = lambda count: random.ids(count) if attack.FULL else same[:count]
        prompt = lambda count: self.ask("POST", "/prefill", json.dumps({"prompt": ids(count)}))
        self.assertEqual(prompt(8000), 200)
        self.limit(c)
        for _ in range(attack.count(1, 30)):
            calls = [lambda: prompt(8000)] * TOGETHER
            calls += [lambda: self.ask("GET", "/blocks?limit=10000")] * TOGETHER
            for status in together(calls):
                self.assertIn(status, (None, 200, 429, 503, 504))
            self.assert_lives(c, "prompts and lists of operators")
        until(lambda: prompt(100) == 200, PATIENCE_S, "a small prompt is computed")
        until(lambda: self.ask("GET", "/blocks?limit=5") == 200, PATIENCE_S, "a short list is made")


if __name__ == "__main__":
    unittest.main(verbosity=2)

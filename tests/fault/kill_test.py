#!/usr/bin/env python3
"""kill -9 of each role in the middle of requests, by a seeded schedule: every request ends by its deadline
(the oracle's tokens, or an error that names the stage; a dead conductor closes its connections), nothing
leaks, and the cluster serves again after the role returns."""

import http.client
import json
import os
import threading
import time
import unittest

from cluster import Cluster, Random, count, oracle, token_ids, until

KILLS = count(1, 50)  # of each role
TOKENS_MAX = count(90, 120)
SEED = int(os.environ.get("MC_TEST_SEED", "0"))
DEADLINE_S = 12.0
GRACE_S = 10  # beyond a deadline, on a crowded machine; attack/kills_test has the bound of the promise
ROLES = ["conductor", "c0", "p0", "p1", "d0", "d1"]


class Client(threading.Thread):
    """One streaming request; keeps the tokens it got and how it ended."""

    def __init__(self, c, ids, count):
        super().__init__(daemon=True)
        self.c, self.ids, self.count = c, ids, count
        self.tokens, self.end, self.took = [], None, None
        self.first = threading.Event()

    def run(self):
        began = time.monotonic()
        try:
            self.ask()
        except (OSError, http.client.HTTPException) as error:
            self.end = ("closed", repr(error))
        finally:
            self.first.set()
            self.took = time.monotonic() - began

    def ask(self):
        body = {
            "prompt": self.ids,
            "max_tokens": self.count,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            "mc": {"deadline_ms": int(DEADLINE_S * 1000)},
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.c.url_port, timeout=DEADLINE_S + 30)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body).encode())
            self.read(connection.getresponse())
        finally:
            connection.close()

    def read(self, answer):
        if answer.status != 200:
            error = json.loads(answer.read())["error"]
            self.end = ("error", error)
            return
        for line in answer:
            line = line.decode().strip()
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                self.end = ("done", None)
                continue
            event = json.loads(line[6:])
            if "error" in event:
                self.end = ("error", event["error"])
                continue
            for choice in event["choices"]:
                self.tokens += choice.get("token_ids") or []
                if choice.get("token_ids"):
                    self.first.set()
        if self.end is None:
            self.end = ("closed", "no [DONE]")


class Kill(unittest.TestCase):
    def test_no_kill_costs_more_than_the_work_in_flight(self):
        random = Random(SEED)
        print(f"seed {SEED}, {KILLS} kills a role")
        worker = ["--dtype", "f32", "--drain-timeout", "1s"]
        with Cluster(roles=ROLES[:2]) as c:
            for name in ROLES[2:]:
                c.start(name, *worker)
            c.wait_nodes()
            for kill in range(KILLS * 4):
                role = ("conductor", "p", "d", "c0")[kill % 4]
                victim = role if role in ROLES else role + str(random.below(2))
                self.round(c, victim, random, worker)

    def round(self, c, victim, random, worker):
        clients = []
        for _ in range(4):
            ids = Random(100 + random.below(4)).ids(200 + 100 * random.below(5))
            clients.append(Client(c, ids, 60 + random.below(TOKENS_MAX - 60)))
        for client in clients:
            client.start()
        if random.below(2):
            clients[0].first.wait(5)
        threading.Event().wait(random.below(120) / 1000)  # the moment of the kill is what the seed chooses
        c.processes[victim].kill()
        for client in clients:
            client.join(DEADLINE_S + 60)
        for client in clients:
            what = f"{victim} killed, {len(client.ids)} prompt tokens, end {client.end}"
            self.assertFalse(client.is_alive(), what + ": hangs")
            self.assertLess(client.took, DEADLINE_S + GRACE_S, what)
            kind, detail = client.end
            self.assertEqual(client.tokens, oracle(client.ids, TOKENS_MAX)[: len(client.tokens)], what)
            if kind == "done":
                self.assertEqual(len(client.tokens), client.count, what)
            elif kind == "error":
                self.assertTrue(detail["message"], what)
            else:
                self.assertEqual(victim, "conductor", what)
        c.processes[victim].stop()
        c.start(victim, *([] if victim in ("conductor", "c0") else worker))
        c.wait_nodes()
        until(lambda: c.request("GET", "/health")[0] == 200, 60, "healthy again")
        ids = Random(7).ids(130)
        self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=8)), oracle(ids, 8))
        c.wait_quiet()


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""Workers that are told to stop while clients ask their pages without pause: each ends in time with status 0, and no
answer that is under way meets a part of the program that is gone."""

import http.client
import json
import os
import threading
import time
import unittest

import attack
from cluster import Cluster, SocketConnection, until
from exhaust_test import port_of

ROLES = ("p", "d", "c")
ROUNDS = attack.count(1, 25)
STOP_S = 60  # a node gives its requests up to 30 s; the rest is for a busy machine
LONG = json.dumps({"prompt": [5, 17, 9] * 600, "logprobs": 5}).encode()
SHORT = json.dumps({"prompt": [5, 17, 9], "no_cache": True}).encode()
BATCH = json.dumps({"ops": [{"op": "put", "key": "k", "bytes": 1 << 20, "replace": True}]}).encode() + b"\n"
ASKED = (
    ("GET", "/blocks?limit=1000", None),
    ("POST", "/prefill", LONG),
    ("POST", "/prefill", SHORT),
    ("POST", "/v1/store", BATCH + b"v" * (1 << 20)),
    ("GET", "/v1/store/k", None),
    ("GET", "/metrics", None),
)


class Asker(threading.Thread):
    """Asks one page again and again until nobody listens any more. `answers` counts whole answers."""

    def __init__(self, connect, what):
        super().__init__(daemon=True)
        self.connect, self.what = connect, what
        self.answers = 0
        self.deadline = time.monotonic() + 3 * STOP_S
        self.start()

    def run(self):
        connection = self.connect()
        while time.monotonic() < self.deadline:
            try:
                connection.request(*self.what)
                connection.getresponse().read()
                self.answers += 1
            except (FileNotFoundError, ConnectionRefusedError):
                break  # the node has closed its doors
            except (OSError, http.client.HTTPException):
                connection.close()
                connection = self.connect()
        connection.close()


class Stops(unittest.TestCase):
    def ask(self, cluster, name):
        """Two clients for each page, one by HTTP and one over the operators' socket."""
        port = port_of(cluster.processes[name].ready["http"])
        path = os.path.join(cluster.env["MCT_RUN_DIR"], f"node-{cluster.node(name)['instance'][:12]}.http")
        doors = (lambda: http.client.HTTPConnection("127.0.0.1", port, timeout=STOP_S),
                 lambda: SocketConnection(path, timeout=STOP_S))
        return [Asker(door, what) for door in doors for what in ASKED]

    def test_a_worker_that_is_asked_without_pause_stops_in_time_with_status_0(self):
        pick = attack.seeded("stops")
        with Cluster(roles=["conductor"]) as c:
            for at in range(ROUNDS * len(ROLES)):
                name = f"{ROLES[at % len(ROLES)]}{at}"
                process = c.start(name, "--log-level", "warn")
                process.wait_ready()
                c.wait_nodes()
                askers = self.ask(c, name)
                least = pick.randrange(1, 6)
                until(lambda: all(a.answers >= least for a in askers), STOP_S, f"{name} answers each client")
                self.assertEqual(process.stop(STOP_S), 0, process.words)
                for asker in askers:
                    asker.join(STOP_S)
                    self.assertFalse(asker.is_alive(), f"{name} left a client without an end: {asker.what[:2]}")
                del c.processes[name]
                until(lambda: name not in {n["id"] for n in c.cluster()["nodes"]}, STOP_S, f"{name} has left")


if __name__ == "__main__":
    unittest.main(verbosity=2)

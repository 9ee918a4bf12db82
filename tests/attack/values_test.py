#!/usr/bin/env python3
"""A tenant of a store of values who asks for all of it: others keep room for values in memory and on disk."""

import http.client
import json
import os
import unittest

from attack import count, private_file
from cluster import Cluster
from exhaust_test import port_of

ONE, TWO = "sk-one-1111", "sk-two-2222"
KEYS = f'[tenant.one]\nkeys = ["{ONE}"]\n[tenant.two]\nkeys = ["{TWO}"]\n'
BATCH = 1000  # operations, of 1,024 that one batch may have
DEADLINE_S = 600  # of a call: a thousand durable values take a slow disk long


class Values(unittest.TestCase):
    def setUp(self):
        self.c = Cluster(roles=["conductor"])
        self.addCleanup(self.c.close)
        folder = os.path.join(self.c.dir, "ssd")
        flags = ["--dram", "32MiB", "--values", "1MiB", "--ssd", f"{folder}:256MiB", "--values-disk", "64MiB"]
        process = self.c.start("c0", *flags, "--api-keys", private_file(self, "keys.toml", KEYS))
        self.port = port_of(process.wait_ready()["http"])

    def ask(self, key, method, path, body=b""):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S + 60)
        headers = {"Authorization": "Bearer " + key, "x-mc-deadline-ms": str(DEADLINE_S * 1000)}
        try:
            connection.request(method, "/v1/store" + path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def put_keys(self, key, first):
        """A batch of values of one byte on disk; the results of its puts."""
        ops = [{"op": "put", "key": f"k{first + i}", "bytes": 1, "durability": "d2"} for i in range(BATCH)]
        status, data = self.ask(key, "POST", "", json.dumps({"ops": ops}).encode() + b"\n" + b"v" * BATCH)
        self.assertEqual(status, 200, data[:500])
        return json.loads(data.split(b"\n")[0])["results"]

    def test_a_tenant_who_fills_the_store_with_keys_of_values_on_disk_leaves_room_to_others(self):
        kept = 0
        for at in range(count(2, 20)):
            results = self.put_keys(ONE, at * BATCH)
            statuses = [one["status"] for one in results]
            self.assertLessEqual(set(statuses), {201, 507})
            kept += statuses.count(201)
        self.assertGreater(kept, 300)
        self.assertLess(kept, 600)  # a quarter of 1 MiB, at 512 bytes and the key each
        error = results[-1]["error"]
        self.assertEqual(error["code"], "store_full")
        self.assertIn("tenant one uses ", error["message"])
        self.assertIn("remove durable values", error["next"])
        self.assertEqual(self.ask(TWO, "PUT", "/k?durability=d2", b"durable")[0], 201)
        self.assertEqual(self.ask(TWO, "PUT", "/large", b"x" * 400_000)[0], 201)
        self.assertEqual(self.ask(ONE, "PUT", "/memory", b"x")[0], 201)
        self.assertEqual(self.ask(ONE, "DELETE", "/k0")[0], 204)
        self.assertEqual(self.ask(ONE, "PUT", "/k0?durability=d2", b"again")[0], 201)
        self.assertEqual(self.ask(TWO, "GET", "/k"), (200, b"durable"))


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""Broken streams of blocks to POST /blocks/import: each is refused by a status, or what it brought gives equal tokens.
Nearly right ones have every checksum right but for the place that lies."""

import json
import os
import struct
import unittest

import attack
from cluster import Cluster, SocketConnection, until
from frames import crc32c
from liar import EDGES, Attacked, Liar
from zmtp import pack, unpack

HEAD, BLOCK, TRAILER = struct.Struct("<IHHII"), 128, 32
EXTENTS_AT = 96  # in the header of a block: bytes of an extent as u64, their number as u32
NODES = ("p0", "c0")


def split(stream):
    """(prologue, [(header and table without the checksum, extents)]) of a stream (wire/mckv.h, wire/block.h)."""
    length = HEAD.unpack_from(stream)[3]
    at = HEAD.size + length
    prologue, blocks = unpack(stream[HEAD.size : at])[0], []
    while stream[at : at + 4] == b"MCKB":
        size, count = struct.unpack_from("<QI", stream, at + EXTENTS_AT)
        table = at + BLOCK + 4 * count
        blocks.append((stream[at : at + BLOCK - 4] + stream[at + BLOCK : table], stream[table : table + size * count]))
        at = table + size * count
    assert stream[at : at + 4] == b"MCKE" and at + TRAILER == len(stream), at
    return prologue, blocks


def joined(prologue, blocks, trailer=()):
    """A stream whose checksums are right. `trailer`: fields that lie, by their index."""
    ids = prologue.get("ids") if isinstance(prologue, dict) else None
    body = pack(prologue)
    out = [HEAD.pack(0x564B434D, 1, 0, len(body), crc32c(body)), body]
    chain, size = struct.pack("<I", crc32c(body)), 0
    for head, extents in blocks:
        crc = struct.pack("<I", crc32c(head))
        chain += crc
        out += [head[: BLOCK - 4], crc, head[BLOCK - 4 :], extents]
        size += len(head) + 4 + len(extents)
    fields = [0x454B434D, len(blocks), len(ids) if isinstance(ids, list) else 0, size, crc32c(chain)]
    for i, value in trailer:
        fields[i] = value % (1 << (64 if i in (2, 3) else 32))
    end = struct.pack("<IIQQI", *fields)
    return b"".join(out) + end + struct.pack("<I", crc32c(end))


class Imports(Attacked):
    def make_cluster(self):
        return Cluster(roles=["conductor", "p0", "d0", "c0"])

    def ask(self, name, method, path, body=None):
        """(status, JSON or bytes) of an order to a node."""
        node = f"node-{self.instances[name][:12]}.http"
        connection = SocketConnection(os.path.join(self.cluster.env["MCT_RUN_DIR"], node))
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            data = answer.read()
            is_json = answer.headers["content-type"].startswith("application/json")
            return answer.status, json.loads(data) if is_json else data
        finally:
            connection.close()

    def empty(self, name):
        listed = self.ask(name, "GET", "/blocks?limit=1")[1]
        return listed["memory_blocks"] == 0 and not listed["blocks"]

    def evict(self):
        def evict_all(name):
            return self.ask(name, "POST", "/blocks/evict", b'{"all":true}')

        for name in self.instances:
            evict_all(name)
            until(lambda n=name: evict_all(n) and self.empty(n), 60, f"{name} is empty")

    def drawn(self, liar, stream):
        """One broken stream."""
        prologue, blocks = split(stream)
        shape = self.random.randrange(6)
        if shape == 0:
            return liar.garble(stream)
        if shape == 1:
            return liar.garble(stream[:4096]) + stream[4096:]
        if shape == 2:
            return joined(liar.mutate(prologue), blocks)
        if shape == 3:
            order = [[1, 0], [0], [1], [0, 0], [0, 1, 1], []]
            return joined(prologue, [blocks[i] for i in self.random.choice(order)])
        if shape == 4:
            return joined(prologue, blocks, [(self.random.randrange(5), self.random.choice(EDGES))])
        i = self.random.randrange(len(blocks))
        head = bytearray(blocks[i][0])
        at, size = self.random.choice([(at, size) for size in (1, 2, 4, 8) for at in range(0, BLOCK - 4, size)])
        head[at : at + size] = (self.random.choice(EDGES) % (1 << 8 * size)).to_bytes(size, "little")
        blocks[i] = bytes(head), blocks[i][1]
        return joined(prologue, blocks)

    def test_a_broken_export_is_refused_or_changes_nothing(self):
        self.cluster.wait_quiet()
        self.instances = {node["id"]: node["instance"] for node in self.cluster.cluster()["nodes"]}
        last = max(self.ask("p0", "GET", "/blocks?limit=5")[1]["blocks"], key=lambda block: block["first_position"])
        status, stream = self.ask("p0", "GET", f"/blocks/export?prefix={last['id']}&first=0")
        self.assertEqual(status, 200)
        prologue, blocks = split(stream)
        self.assertGreaterEqual(len(blocks), 2)
        self.evict()
        liar = Liar(self.random, ["default"])
        for name in NODES:
            self.assertEqual(self.ask(name, "POST", "/blocks/import", joined(prologue, blocks))[0], 200)
            self.evict()
            taken, count = 0, attack.count(30, 2_000)
            for _ in range(count):
                status, answer = self.ask(name, "POST", "/blocks/import", self.drawn(liar, stream))
                self.alive(name)
                if status != 200:
                    self.assertIn(status, (400, 409, 413))
                    self.assertTrue(answer["error"]["code"] and answer["error"]["message"], answer)
                    self.assertTrue(self.empty(name), "a refused stream left blocks")
                    continue
                taken += 1
                if answer["stored"]:
                    until(lambda n=name: self.cluster.node(n)["blocks_indexed"], 60, "the index hears of the import")
                self.assertEqual(self.answer(), self.right)
                self.evict()
            print(f"{name}: {count} broken streams, {taken} were taken and gave equal tokens", flush=True)
            self.assertLess(taken, count * 0.5)
        self.cluster.wait_quiet()
        for node in self.cluster.cluster()["nodes"]:
            self.assertEqual((node["pages_private"], node["pages_cached"], node["pages_pinned"]), (0, 0, 0), node["id"])
        self.check_after()


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""Liars that take a place in the control plane: one that the conductor welcomes as a node, and one that nodes take for
their conductor."""

import hashlib
import os
import re
import time

import frames
from zmtp import Dealer, Router, unpack

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "liar"


def golden_lines(name):
    """The words of each line of a file of golden bytes, the last one as bytes."""
    with open(os.path.join(HERE, "..", "golden", "wire", name)) as lines:
        words = [line.split() for line in lines]
    return [(*line[:-1], bytes.fromhex(line[-1])) for line in words]


def golden_messages():
    """(type, body as a Python value) of every control message."""
    return [(kind, unpack(body)[0]) for kind, body in golden_lines("messages.txt")]


GOLDEN = dict(golden_messages())
LOAD = {key: type(was)() for key, was in GOLDEN["heartbeat"]["load"].items()}  # of a node that has nothing to do
HEARTBEAT = {"load": LOAD, "event_seq": 0, "peers_version": 0}
WELCOME = {"name": NAME, "heartbeat_ms": 200, "dead_after_ms": 3000, "has_tenants": False}


def hello(instance, **fields):
    """The registration of a cache node that is right but for what `fields` says."""
    nothing = {key: type(was)() for key, was in GOLDEN["hello"].items()}
    right = {"role": "cache", "name": NAME, "data": frames.descriptor(instance), "stages": 1, "cache_bytes": 1 << 20}
    return nothing | right | {"cost": dict.fromkeys(GOLDEN["hello"]["cost"], 0.0)} | fields


def block_ref(random):
    return {"hash": random.randbytes(16), "parent": random.randbytes(16), "tier": random.choice(["device", "host"])}


def from_node(random, seq):
    """Messages of a node to its conductor that are right in form."""
    blocks = [block_ref(random) for _ in range(random.randrange(4))]
    events = [{"stored": random.random() < 0.7, "block": block, "evicted": False} for block in blocks]
    return [
        ("hello", hello(random.randbytes(16))),
        ("heartbeat", HEARTBEAT | {"event_seq": seq}),
        ("block_events", {"first_seq": seq + 1, "events": events}),
        ("block_snapshot", {"seq": seq, "part": 0, "part_count": random.randrange(1, 3), "blocks": blocks}),
        *((kind, GOLDEN[kind]) for kind in ("prompt_logprobs", "first_token", "kv_report", "tokens", "failed")),
        *((kind, GOLDEN[kind]) for kind in ("preempted", "copy_done", "goodbye", "stage_done", "kv_accept")),
    ]


def start_of(hellos, turn, ids):
    """The order to compute a prompt at p0 and to hand it to d0, by their registrations."""
    space, spec = hellos["p0"]["kv_namespace"], GOLDEN["prefill_start"]["spec"]
    sampling = {key: type(was)() for key, was in spec["sampling"].items()} | {"top_p": 1.0, "logprobs": -1}
    spec = spec | {
        "req": f"r{turn}", "attempt": 1, "ids": ids, "resumed": 0, "ns": hashlib.sha256(space.encode()).digest()[:16],
        "prefill_attention": re.search(r"^attention[ =](.*)$", space, re.M)[1], "decode_attention": "",
        "sampling": sampling | {"repetition_penalty": 1.0}, "deadline_ms": 500, "tbt_slo_ms": 0.0,
        "stopping": {"max_tokens": 3, "min_tokens": 0, "stop_ids": []}, "prompt_logprobs": -1, "no_cache": False,
        "reuse_nothing": False,
    }  # fmt: skip
    start = GOLDEN["prefill_start"] | {"spec": spec, "decode": "d0", "decode_instance": hellos["d0"]["instance"]}
    return start | {"sources": [], "decode_sources": []}


class Node:
    """A node that the conductor at `uri` welcomes."""

    def __init__(self, uri, **fields):
        self.uri, self.fields, self.instance, self.dealer = uri, fields, os.urandom(16), None

    def join(self):
        """Registers on a new connection. An answer other than a welcome is an AssertionError."""
        self.close()
        end = time.monotonic() + 60
        while True:
            self.dealer = Dealer(self.uri, 60, self.instance)
            self.dealer.send("hello", hello(self.instance, **self.fields))
            kind, body = self.dealer.receive_any(("welcome", "refused"))
            if kind == "welcome":
                return body
            # An earlier registration under this name counts until it has been silent for a while.
            assert "live node" in body["message"] and time.monotonic() < end, body
            self.close()

    def known(self):
        """Whether the conductor still counts it as a member, after all that it sent before."""
        try:
            self.dealer.send("heartbeat", HEARTBEAT)
            return self.dealer.receive_any(("heartbeat_ack",))[1]["known"]
        except ConnectionError:
            return False

    def leave(self):
        self.dealer.send("goodbye", {"reason": "bye"})
        self.close()

    def close(self):
        if self.dealer:
            self.dealer.close()


class Conductor:
    """Listens where a conductor did, and takes the connections of nodes."""

    def __init__(self, path):
        self.router, self.instance = Router(path), os.urandom(16)

    def accept(self):
        """The connection of the next node, and its registration. A node that waited too long has dialled again."""
        while True:
            try:
                node = self.router.accept(self.instance)
                node.send("ctl.ping", {}, **{"from": "conductor"})
                return node, node.receive_any(("hello",))[1]
            except ConnectionError:
                continue

    def close(self):
        self.router.close()

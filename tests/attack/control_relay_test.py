#!/usr/bin/env python3
"""An attacker on the path of control traffic between real programs: it relays all that the conductor and the nodes say
to each other over tcp, records it, changes it and repeats it, without keys (where it succeeds) and with them."""

import itertools
import os
import shutil
import socket
import threading
import unittest

import attack
import curve
from cluster import Cluster, Random, run, until
from control_relay import GREETING, Relay, Way, framed, honest
from zmtp import pack

# Names of messages and of nodes, as msgpack writes them.
KINDS = "hello welcome heartbeat heartbeat_ack peers ctl.ping prefill_start first_token tokens".split()
PLAIN = [bytes([0xA0 + len(kind)]) + kind.encode() for kind in KINDS] + [b"\xa4from\xa2p0", b"\xa4from\xa2d0"]
# Changes of a frame of a message. After each the side that receives ends the connection.
CHANGES = ["flip", "command", "more", "drop", "drop 2", "drop 3", "repeat", "swap", "splice", "reflect", "forge", "cut"]


def prompt(seed, count=40):
    """Token ids that msgpack writes as three bytes each."""
    return Random(seed).ids(count, first=300)


def packed(ids):
    return b"".join(b"\xcd" + each.to_bytes(2, "big") for each in ids)


class Relayed(unittest.TestCase):
    """A cluster whose TCP connections all go through a relay."""

    lock = ()
    nodes = ("p0", "d0")

    @classmethod
    def setUpClass(cls):
        if not shutil.which("cc"):
            raise unittest.SkipTest("no C compiler for connect_shim.c")
        cls.relay = Relay()
        cls.addClassCleanup(cls.relay.stop)
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        cls.lock = [word.replace("KEYS", os.path.join(cls.cluster.dir, "keys")) for word in cls.lock]
        code, _, err = run("mc-conductor", "keygen", "-o", os.path.join(cls.cluster.dir, "keys"))
        assert code == 0, err
        attack.preload(cls, cls.cluster, "connect_shim.c")
        cls.cluster.env["MC_RELAY"] = str(cls.relay.port)
        control = cls.cluster.start("conductor", "--listen", "tcp://127.0.0.1:0", *cls.lock).ready["control"]
        cls.port = int(control.rsplit(":", 1)[1])
        for name in cls.nodes:
            cls.join(name)
        cls.cluster.wait_nodes()

    @classmethod
    def join(cls, name):
        place = f"tcp://127.0.0.1:{cls.port}"
        return cls.cluster.start(name, "--conductor", place, "--transport", "shm", *cls.lock)

    def setUp(self):
        self.random = attack.seeded(self.id())

    def tokens(self, ids):
        return self.cluster.complete(ids=ids, max_tokens=8)["choices"][0]["token_ids"]

    def names(self):
        return sorted(node["id"] for node in self.cluster.cluster()["nodes"])

    def recorded(self, name):
        """The connection of a new node to the conductor until it was a member. The node has left."""
        for _ in range(10):
            before = len(self.relay.flows)
            self.join(name)
            self.cluster.wait_nodes()
            flows = [flow for flow in self.relay.flows[before:] if flow.port == self.port]
            parts = list(flows[0].ways["to"].parts)
            self.cluster.processes.pop(name).stop()
            until(lambda: name not in self.names(), 60, name + " has left")
            if len(flows) == 1:  # more where a node was silent for so long that it dialled again
                return [bytes(flows[0].ways["to"].raw[:GREETING]), *parts]
        self.fail("no node joined over a single connection")

    def joined(self, name):
        """How often a node of this name has become a member."""
        return self.cluster.processes["conductor"].text().count("node joined name=" + name)

    def replay(self, parts, handshake):
        """A new connection to the conductor that says the same again: names of the frames that answer, one for each of
        the handshake. All the rest goes out after the handshake."""
        connection, way = attack.dial(self.port, timeout=60), Way()
        self.addCleanup(connection.close)
        connection.sendall(parts[0])
        for number in range(handshake + 1):
            try:
                while len(way.raw) < GREETING or len(way.frames) < number:
                    data = connection.recv(1 << 16)
                    if not data:
                        return list(map(curve.name_of, way.frames))
                    way.feed(data)
                connection.sendall(parts[number + 1] if number < handshake else b"".join(parts[number + 1 :]))
            except ConnectionError:
                break
        return list(map(curve.name_of, way.frames))


class Open(Relayed):
    lock = ("--insecure", "control")

    def test_without_keys_a_relay_reads_what_is_said(self):
        ids = prompt(1)
        self.tokens(ids)
        seen = self.relay.seen()
        self.assertEqual([word for word in (*PLAIN, packed(ids)) if word not in seen], [])

    def test_without_keys_a_relay_changes_what_is_said(self):
        ids, others = prompt(2), prompt(3)
        right, wrong = self.tokens(ids), self.tokens(others)
        self.assertNotEqual(right, wrong)

        def change(way, number, flags, body):
            return honest(way, number, flags, body.replace(packed(ids), packed(others)))

        for flow in self.relay.live():
            flow.change = change
        self.assertEqual(self.tokens(ids), wrong)
        for flow in self.relay.live():
            flow.change = honest

    def test_without_keys_a_recorded_node_joins_again(self):
        parts = self.recorded("c0")
        joined = self.joined("c0")
        self.assertEqual(self.replay(parts, 1)[0], b"READY")
        # It is silent, so it is a member for 3 s only.
        until(lambda: self.joined("c0") > joined, 60, "a node that does not run becomes a member")


def flipped(data, place, random):
    """One bit of one byte is another. The upper bits of the first byte of a frame mean nothing and stay."""
    bit = 1 << random.randrange(8 if place else 3)
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


class Change:
    """A change of one frame of a message in one direction of a connection."""

    def __init__(self, kind, way, skip, random, flow, strange):
        self.kind, self.way, self.skip, self.random, self.flow, self.strange = kind, way, skip, random, flow, strange
        self.first, self.kept, self.done = None, b"", False

    def __call__(self, way, number, flags, body):
        right = honest(way, number, flags, body)
        if way != self.way or number < 2 + self.skip:
            return right
        if self.first is None:
            if self.kind == "more" and number % 2 == 0:
                return right  # an envelope, behind which more comes anyway
            self.first = number
        out = self.changed(number - self.first, flags, body, right)
        self.done = self.done or out != right
        return out

    def changed(self, at, flags, body, right):
        """The bytes that go out in place of the frame `at` places behind the first one that is changed."""
        if self.kind.startswith("drop"):
            return b"" if at < int(self.kind[4:] or 1) else right
        if self.kind == "swap":
            if at == 0:
                self.kept = right
            return b"" if at == 0 else right + self.kept if at == 1 else right
        if self.kind == "cut":
            return right[: self.random.randrange(1, len(right))] if at == 0 else None
        if at > 0:
            return right
        if self.kind == "flip":
            return flipped(right, self.random.randrange(len(right)), self.random)
        if self.kind == "repeat":
            return right * 2
        if self.kind == "forge":
            return framed(flags, body[:16] + os.urandom(len(body) - 16))
        if self.kind == "splice":
            return framed(flags, body[:16] + self.strange[16:])  # another connection's, with the number that is due
        if self.kind == "reflect":
            return framed(flags, self.flow.ways["from" if self.way == "to" else "to"].frames[-1])
        return framed(flags ^ {"more": 1, "command": 4}[self.kind], body)


class Keyed(Relayed):
    lock = ("--auth", "KEYS")

    def setUp(self):
        super().setUp()
        self.prompts = [prompt(seed) for seed in range(1, 5)]
        self.settled()
        self.right = [self.tokens(ids) for ids in self.prompts]

    def tearDown(self):
        seen = self.relay.seen()
        self.assertEqual([word for word in (*PLAIN, *map(packed, self.prompts)) if word in seen], [])

    def ask(self, at, answers):
        body = {"prompt": self.prompts[at], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        body |= {"return_token_ids": True, "mc": {"deadline_ms": 5000}}
        status, _, answer = self.cluster.post("/v1/completions", body)
        answers.append((status, answer["choices"][0]["token_ids"] == self.right[at] if status == 200 else None))

    def recovers(self):
        """The nodes come back by themselves, and answer as before."""
        answers = []

        def right():
            for name, process in self.cluster.processes.items():
                self.assertIsNone(process.popen.poll(), f"{name} ended\n{process.tail()}")
            try:
                self.ask(0, answers)
            except OSError:
                return False
            return answers[-1] == (200, True)

        until(right, 60, lambda: f"answers as before: {answers[-5:]}")

    def settled(self):
        """The connections of all pairs, once something was said on each."""

        def found():
            flows = self.relay.live()
            both = [flow for flow in flows if min(len(way.frames) for way in flow.ways.values()) > 3]
            return both if len(both) == len(flows) == 4 else None

        return until(found, 60, lambda: [(f.port, [len(w.frames) for w in f.ways.values()]) for f in self.relay.live()])

    def round(self, kinds):
        """Changes one frame of each connection. Each connection ends, and no answer is wrong. Returns the kinds that
        were not done, because the connection had ended with its node."""
        flows, changes, answers = self.settled(), [], []
        self.random.shuffle(flows)
        for i, (flow, kind) in enumerate(zip(flows, kinds)):
            way = self.random.choice(["to", "from"])
            skip = len(flow.ways[way].frames) + self.random.randrange(4)
            changes.append(Change(kind, way, skip, self.random, flow, flows[i - 1].ways[way].frames[-1]))
        for flow, change in zip(flows, changes):
            flow.change = change
        client = threading.Thread(target=self.ask, args=(self.random.randrange(4), answers))
        client.start()
        for flow, change in zip(flows, changes):
            what = (change.kind, change.way, "to the conductor" if flow.port == self.port else "between nodes")
            self.assertTrue(flow.ended.wait(60), f"the connection goes on after {what}")
        client.join(60)
        self.assertEqual([answer for answer in answers if answer[1] is False], [], "a wrong answer")
        self.recovers()
        return [change.kind for change in changes if not change.done]

    def test_a_changed_message_ends_the_connection_and_the_cluster_recovers(self):
        kinds = []
        for _ in range(attack.count(1, 20)):
            kinds += self.random.sample(CHANGES, len(CHANGES))
        rounds = 0
        while kinds:
            kinds = kinds[4:] + self.round(kinds[:4])
            rounds += 1
            self.assertLess(rounds, 4 * attack.count(len(CHANGES), 20 * len(CHANGES)))
        print(f"{rounds} rounds", flush=True)

    def cut(self, port=None):
        """Ends all connections, or those to one port, at their next frame."""
        flows = self.relay.live(port)
        for flow in flows:
            flow.change = lambda *_: None
        for flow in flows:
            self.assertTrue(flow.ended.wait(60))

    def test_a_changed_handshake_opens_no_connection(self):
        kinds = [("mechanism", "both"), *itertools.product(["version"], ["to", "from"])]
        kinds += [*itertools.product(["flip", "repeat"] + attack.count([], ["drop"]), ["to", "from"], [0, 1])]
        kinds.remove(("repeat", "from", 0))  # a WELCOME says the same when it comes twice,
        kinds.remove(("repeat", "from", 1))  # and the first READY and INITIATE are right
        kinds.remove(("repeat", "to", 1))
        kinds = self.random.sample(kinds * attack.count(1, 8), len(kinds) * attack.count(1, 8))
        changed = []

        def born(flow):
            if kinds:
                flow.change = Handshake(self.random, *kinds.pop())
                changed.append(flow)

        self.relay.born = born
        self.addCleanup(setattr, self.relay, "born", None)
        self.cut()
        until(lambda: not kinds, attack.count(60, 1200), lambda: f"left: {kinds}")
        for flow in changed:
            self.assertTrue(flow.ended.wait(60), vars(flow.change))
            names = {curve.name_of(frame) for way in flow.ways.values() for frame in way.frames}
            self.assertLessEqual(names, {b"HELLO", b"WELCOME", b"INITIATE", b"READY", b"ERROR"}, vars(flow.change))
        self.relay.born = None
        self.recovers()

    def test_a_recorded_node_does_not_join_again(self):
        parts = self.recorded("c0")
        self.assertGreater(len(parts), 4)
        joined = self.joined("c0")
        for _ in range(attack.count(2, 200)):
            # The conductor answers a greeting and a HELLO of anybody. The cookie in the INITIATE is not its own.
            self.assertEqual(self.replay(parts, 2), [b"WELCOME"])
        until(lambda: self.names() == ["d0", "p0"], 60, lambda: f"the nodes that run are members: {self.names()}")
        self.assertEqual(self.joined("c0"), joined)
        self.recovers()

    def test_a_recorded_conductor_commands_no_node(self):
        recorded = self.settled()
        recorded = next(flow for flow in recorded if flow.port == self.port)
        before = len(self.relay.flows)
        self.relay.impostors[self.port] = recorded.ways["from"]
        self.addCleanup(self.relay.impostors.clear)
        self.cut(self.port)

        def tried():
            return [flow for flow in self.relay.flows[before:] if flow.port == self.port and flow.ended.is_set()]

        until(lambda: len(tried()) >= attack.count(4, 40), 600, "nodes dial the recording")
        self.relay.impostors.clear()
        for flow in tried():
            if not flow.listener:  # The node does not go on after a WELCOME that is not for this HELLO.
                self.assertEqual([curve.name_of(frame) for frame in flow.ways["to"].frames], [b"HELLO"])
        self.recovers()

    def test_recorded_messages_stay_closed_when_the_key_set_leaks(self):
        keys = curve.key_set(os.path.join(self.cluster.dir, "keys"))
        secrets = [keys[name] for name in ("server-secret", "client-secret", "data-secret")]
        publics = [keys[name] for name in ("server-public", "client-public")]
        servers = []
        flows = [flow for flow in list(self.relay.flows) if min(len(way.frames) for way in flow.ways.values()) > 6]
        for flow in flows[: attack.count(8, 200)]:
            to, back = (flow.ways[way].frames[: attack.count(12, 100)] for way in ("to", "from"))
            opened = curve.Leak(secrets, publics).run(to, back)
            # The long-term keys protect zeros, and the short-term public key of the server with the cookie.
            self.assertEqual(sorted(opened), [b"HELLO", b"WELCOME"])
            servers.append(opened[b"WELCOME"][0][:32])
        clients = [flow.ways["to"].frames[0][80:112] for flow in flows]
        for used in (clients, servers):
            self.assertEqual(len(set(used)), len(used), "a short-term key is used twice")
        self.open_with_a_short_term_key(keys, publics)

    def open_with_a_short_term_key(self, keys, publics):
        """The same attempts succeed with the short-term key of one side: they fail elsewhere for want of it alone."""
        place = (f"127.{self.port >> 8}.{self.port & 255}.1", self.relay.port)
        with socket.create_connection(place, 60) as connected:
            client = curve.Client(connected, keys)
            head = {"v": 1, "type": "ctl.ping", "id": 2, "from": "c9", "inst": os.urandom(16), "epoch": 1}
            client.say(pack(head), b"")
            client.receive()
            client.receive()  # the envelope and the body of its answer
            flow = next(flow for flow in list(self.relay.flows)
                        if [frame[80:112] for frame in flow.ways["to"].frames[:1]] == [client.public])
            to, back = (list(flow.ways[way].frames) for way in ("to", "from"))
        opened = curve.Leak([client.secret], publics).run(to, back)
        self.assertEqual(sorted(opened), [b"HELLO", b"INITIATE", b"MESSAGE", b"READY", b"WELCOME"])
        self.assertEqual(len(opened[b"MESSAGE"]), len(to) + len(back) - 4)
        # One each way, and more from the conductor where this client was slow.
        self.assertGreaterEqual(sum(b"ctl.ping" in text for text in opened[b"MESSAGE"]), 2)


class Handshake:
    """A change of the greeting of a connection, or of one frame of its handshake."""

    def __init__(self, random, kind, way, number=-1):
        self.random, self.kind, self.way, self.number = random, kind, way, number

    def __call__(self, way, number, flags, body):
        right = honest(way, number, flags, body)
        if self.way not in (way, "both") or number != self.number:
            return right
        if self.kind == "mechanism":  # `flags` is the place of these bytes in the greeting
            null = bytes(12) + b"NULL".ljust(20, b"\0") + bytes(32)
            return bytes(null[at] if 12 <= at < 32 else was for at, was in enumerate(body, flags))
        if self.kind == "version":
            older = self.random.choice([0, 1])  # ZMTP 1.0 and 2.0, which have no CURVE
            return bytes(older if at == 10 else was for at, was in enumerate(body, flags))
        if self.kind == "flip":
            padding = range(6, 80) if (way, number) == ("to", 0) else ()  # nothing in a HELLO depends on it
            place = self.random.choice([at for at in range(len(body)) if at not in padding])
            return framed(flags, flipped(body, place, self.random))
        return right * 2 if self.kind == "repeat" else b""


if __name__ == "__main__":
    unittest.main(verbosity=2)

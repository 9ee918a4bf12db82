#!/usr/bin/env python3
"""Liars that speak our protocols: hostile control messages to every role, hostile HTTP to the conductor, hostile
frames to the data port by strangers and by members, and broken KV streams. No program may end, hang or grow, and
afterwards the cluster answers as it did before."""

import glob
import json
import os
import socket
import struct
import unittest

import attack
import frames
from cluster import Random, run
from liar import EDGES, Attacked, Liar, http_seeds, throw_http
from members import golden_lines, golden_messages
from zmtp import Dealer, Raw, pack

FIELD_BITS = {"magic": 32, "version": 16, "flags": 8, "number": 64, "buffer": 32, "snapshot": 32, "offset": 64}
FIELD_BITS |= {"length": 64, "status": 32, "payload_crc": 32, "reserved": 64, "immediate": 32}


def golden_frames():
    """{what: bytes} of a header, of the payloads of a handshake and of descriptors."""
    return dict(golden_lines("xfer_frame.txt"))


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
                    if shape < 6:  # a third in the name of the conductor, whom a node believes on its own link only
                        dealer.send(kind, liar.mutate(body), **{"from": self.random.choice(["", "conductor", "p0"])})
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


class Http(Attacked):
    def test_hostile_http_gets_an_answer_or_a_closed_connection(self):
        sent = attack.count(1500, 100_000)
        liar = Liar(self.random, [])
        port = self.cluster.url_port
        answered = throw_http(port, http_seeds(), liar, sent, lambda data: self.alive("conductor", data))
        self.assertGreater(answered, sent * 0.3)
        self.check_after()


class DataPlane(Attacked):
    """A cluster, and the ports of its workers' data planes."""

    def data_ports(self):
        """{worker: port}"""
        ports = {}
        for name, process in self.cluster.processes.items():
            if name == "conductor":
                continue
            http = int(self.cluster.node(name)["http"].rsplit(":", 1)[1])
            (ports[name],) = {port for _, port in attack.listeners(process.popen.pid) if port != http}
        return ports

    def fields(self, *names):
        """Header fields with hostile numbers, some of those named."""
        drawn = self.random.sample(names, self.random.randrange(min(3, len(names)) + 1))
        return {name: self.random.choice(EDGES) % (1 << FIELD_BITS[name]) for name in drawn}

    def drawn_frame(self, liar, payloads, kind=None):
        """A frame of any type whose checksum is right."""
        payload = self.random.choice(payloads)
        if self.random.random() < 0.5:
            payload = liar.garble(payload)
        kind = kind or self.random.randrange(1, len(frames.TYPES) + 2)
        return frames.frame(kind, payload, **(self.fields(*FIELD_BITS) if self.random.random() < 0.6 else {}))

    def drawn_descriptor(self, liar, instance, ports):
        """A descriptor whose checksum is right, with hostile addresses and buffers."""
        uris = [b"tcp://127.0.0.1:1", b"tcp://[::1]:0", b"tcp://%n:x", b"shm:///etc/passwd", b"shm://../x", b"rdma://1"]
        uris += [b"tcp://127.0.0.1:%d" % port for port in ports.values()] + [b"u" * 257, b"", b"\0"]
        numbers = self.random.sample(range(9), 2)
        buffers = [(n, self.random.randrange(4), n % 3, self.random.choice(EDGES) % 2**64, instance, b"kv")
                   for n in (numbers if self.random.random() < 0.5 else sorted(numbers))]
        drawn = frames.descriptor(
            self.random.choice([instance] * 8 + [bytes(16), os.urandom(16)]),
            self.random.choice([1, 2, 2**32 - 1]),
            self.random.choice([b"liar", b"", b"p0", b"\xff\0", b"n" * 65]),
            self.random.sample(uris, self.random.choice([0, 1, 2, 9])),
            self.random.choice([buffers, buffers[:1], buffers[:1] * 600]),
        )
        return drawn if self.random.random() < 0.7 else frames.checked(liar.garble(drawn[:-4]))


class Frames(DataPlane):
    """A stranger: it lacks the key set, and no handshake of its may come to an end."""

    def wrong_proof(self, liar, asked, challenge, payloads):
        """The frame that follows a challenge."""
        shape = self.random.randrange(8)
        if shape == 0:
            return self.drawn_frame(liar, payloads)
        own = [os.urandom(32), bytes(32), b"", challenge[frames.PROOF_AT : frames.PROOF_AT + 32]]
        own.append(frames.proof(b"another", asked, challenge))
        proof = self.random.choice(own) + frames.descriptor(asked[:16])
        if shape < 4:
            return frames.frame(frames.TYPES["proof"], proof)
        return self.drawn_frame(liar, [proof], frames.TYPES["proof"])

    def connection(self, port, instances, liar, payloads):
        """One connection of a stranger: (it got a challenge, the types of the frames that came after)."""
        lane = frames.Lane(port)
        try:
            shape, challenge = self.random.random(), None
            asked = frames.hello(
                self.random.choice(instances + [os.urandom(16)]), lane=self.random.randrange(2),
                secured=int(shape < 0.55), seal=self.random.randrange(2),
            )  # fmt: skip
            if shape < 0.6:
                challenge = lane.challenged(asked)
                if challenge is not None:
                    lane.send(self.wrong_proof(liar, asked, challenge, payloads))
            elif shape < 0.75:
                lane.send(frames.frame(frames.TYPES["hello"], liar.garble(asked)))
            elif shape < 0.9:
                lane.send(b"".join(self.drawn_frame(liar, payloads) for _ in range(self.random.choice([1, 2, 5]))))
            else:
                lane.send(liar.garble(frames.frame(frames.TYPES["hello"], asked)))
            if challenge is None and self.random.random() < 0.5:
                return False, []
            lane.socket.shutdown(socket.SHUT_WR)
            return challenge is not None, lane.until_closed()
        except OSError:
            return False, []
        finally:
            lane.close()

    def test_hostile_frames_on_the_data_port_end_their_own_connection_only(self):
        liar, payloads = Liar(self.random, []), list(golden_frames().values())
        instances = [bytes.fromhex(node["instance"]) for node in self.cluster.cluster()["nodes"]]
        for name, port in self.data_ports().items():
            challenged, refused, count = 0, 0, attack.count(300, 34_000)
            for _ in range(count):
                asked, kinds = self.connection(port, instances, liar, payloads)
                self.assertLessEqual(set(kinds), {frames.TYPES["challenge"], frames.TYPES["refuse"]})
                challenged += asked or frames.TYPES["challenge"] in kinds
                refused += frames.TYPES["refuse"] in kinds
            print(f"{name}: {count} connections, {challenged} got a challenge, {refused} a refusal", flush=True)
            self.assertGreaterEqual(challenged, count * 0.2)
            self.assertGreaterEqual(refused, count * 0.2)
            self.alive()
        self.check_after()


class MemberFrames(DataPlane):
    """A liar that holds the key set, so that its handshake succeeds and its transfers reach the node."""

    def lane_0(self, liar, payloads):
        """A frame that a control lane takes, and that means nothing."""
        notify = self.random.choice(payloads)
        return frames.frame(frames.TYPES["notify"], notify if self.random.random() < 0.3 else liar.garble(notify))

    def lane_1(self, buffers):
        """A transfer that is refused by a status, or a read that is right."""
        number, length = next(((b[0], b[3]) for b in buffers), (1, 1 << 20))
        buffer = self.random.choice([number] * 4 + [0, number + 1, 2**32 - 1])
        bytes_ = self.random.choice([0, 1, 64, 4096, 65536])
        offset = self.random.choice([0, length - bytes_, length - 1, length, *(edge % 2**64 for edge in EDGES)])
        fields = {"buffer": buffer, "offset": offset % 2**64, **self.fields("number", "snapshot", "payload_crc")}
        if self.random.random() < 0.6:
            return frames.frame(frames.TYPES["read"], length=bytes_, flags=self.random.randrange(2), **fields)
        flags = self.random.randrange(8)
        if flags & frames.HAS_IMMEDIATE:
            fields["immediate"] = self.random.choice(EDGES) % 2**32
        return frames.frame(frames.TYPES["write"], os.urandom(min(bytes_, 4096)), flags=flags, **fields)

    def last_words(self, liar, member, payloads, ports):
        """Frames that a connection may end by, as the lane and the bytes."""
        shape = self.random.randrange(6)
        if shape == 0:  # an answer that nobody asked for
            kind = frames.TYPES[self.random.choice(["data", "ack"])]
            return 1, frames.frame(kind, b"x" * self.random.choice([0, 64, 4096]), **self.fields("number", "status"))
        if shape == 1:
            told = self.drawn_descriptor(liar, member.instance, ports)
            return 0, frames.frame(frames.TYPES["describe"], told)
        if shape == 2:
            return 0, frames.frame(frames.TYPES["goodbye"], self.random.choice([b"", b"bye", b"\xff\0", b"x" * 257]))
        if shape == 3:  # more than a lane may ask for, by one who reads nothing
            buffer = member.buffers[0][0] if member.buffers else 1
            read = frames.frame(frames.TYPES["read"], buffer=buffer, length=65536)
            return 1, read * self.random.choice([10, 1100])
        one = self.drawn_frame(liar, payloads)
        return self.random.randrange(2), one if shape == 4 else liar.garble(one)

    def visit(self, port, liar, payloads, ports, secret):
        """One connection: (it was ready, frames that the node took, (type, status) of its answers)."""
        instance = self.random.choice(self.instances)
        told = self.drawn_descriptor(liar, instance, ports) if self.random.random() < 0.2 else None
        numbers, count = self.random.choice([((0, 1), 2)] * 9 + [((0, 0), 2), ((1, 1), 2), ((0,), 1), ((1, 0), 64)])
        right, version = told is None and numbers == (0, 1), self.random.randrange(1, 9)
        for _ in range(3):  # the node ends a handshake for which the host left it or this process no time
            member = frames.Member(port, secret, instance, version, told, numbers, count)
            if member.ready or not right:
                break
            member.close()
        taken, answers = 0, []
        try:
            if right:
                self.assertTrue(member.ready)
            while member.ready and count == 2 and self.random.random() < 0.7:
                few = [self.lane_0(liar, payloads) for _ in range(self.random.randrange(3))]
                many = [self.lane_1(member.buffers) for _ in range(self.random.randrange(1, 20))]
                member.lanes[0].send(b"".join(few))
                member.lanes[1].send(b"".join(many))
                answers += member.fence()
                taken += len(few) + len(many)
            if member.ready:
                lane, words = self.last_words(liar, member, payloads, ports)
                member.lanes[lane % len(member.lanes)].send(words)
                taken += 1
        except OSError:
            pass  # thrown out
        finally:
            member.close()
        return member.ready, taken, answers

    def test_a_member_that_sends_hostile_frames_harms_nobody(self):
        liar, payloads = Liar(self.random, []), list(golden_frames().values())
        payloads += [golden_lines("notify.txt")[0][0]] * 6
        secret = frames.data_secret(os.path.join(self.cluster.env["MCT_RUN_DIR"], "local.key"))
        ports = self.data_ports()
        self.instances = [os.urandom(16) for _ in range(12)]
        for name, port in ports.items():
            visits, ready, taken, answers = 0, 0, 0, []
            while taken < attack.count(1_000, 34_000):
                was, frames_taken, more = self.visit(port, liar, payloads, ports, secret)
                visits, ready, taken, answers = visits + 1, ready + was, taken + frames_taken, answers + more
                self.alive(name)
            served = answers.count((frames.TYPES["data"], 0))
            print(f"{name}: {visits} connections, {ready} ready; {taken} frames, {len(answers)} answered", flush=True)
            self.assertGreaterEqual(ready, visits * 0.25)
            self.assertGreaterEqual(len(answers), taken * 0.4)
            self.assertEqual(answers.count((frames.TYPES["ack"], 0)), 0, "a write was taken")
            self.assertGreater(served, 0, "no right read was answered by bytes")
        self.check_after()


class Builder(unittest.TestCase):
    def test_the_builder_makes_the_golden_bytes(self):
        golden = golden_frames()
        hello, head = golden["hello"], golden["header"]
        fields = frames.HEADER.unpack(head[:-4])
        names = ("magic", "version", "kind", "flags", "number", "buffer", "snapshot", "offset", "length", "status")
        names += ("payload_crc", "reserved", "immediate")
        self.assertEqual(frames.frame(**dict(zip(names, fields))), head)
        lane, lanes, secured, seal = struct.unpack_from("<HHBB", hello, 48)
        made = frames.hello(hello[:16], hello[16:32], hello[32:48], lane, lanes, secured, seal, hello[-2:])
        self.assertEqual((len(made), made[:54], made[-4:]), (len(hello), hello[:54], hello[-4:]))
        instance = golden["descriptor"][8:24]
        self.assertEqual(frames.buffers_of(golden["descriptor"])[0], (1, 1, 1, 1 << 30, bytes(16), b"kv"))
        made = frames.descriptor(instance, 9, b"p0", [b"shm://x"], frames.buffers_of(golden["descriptor"]))
        self.assertEqual(frames.buffers_of(made), frames.buffers_of(golden["descriptor"]))


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

#!/usr/bin/env python3
"""Liars inside the control plane: a node that the conductor welcomed, a node of a pair that serves a request, a
conductor that took the place of the real one, and strangers before the end of a connection's greeting. No program may
end, hang or grow, and afterwards the cluster answers as it did before."""

import json
import os
import socket
import threading
import time
import unittest

import attack
import frames
from cluster import Cluster, Random, until
from liar import Attacked, Liar
from members import GOLDEN, HEARTBEAT, NAME, WELCOME, Conductor, Node, from_node, golden_messages, start_of
from zmtp import Raw, Router, greeting, pack

BATCH = 25


class Throwing(Attacked):
    """A cluster, and ways to throw hostile messages."""

    def setUp(self):
        super().setUp()
        self.uri = "ipc://" + os.path.join(self.cluster.env["MCT_RUN_DIR"], "conductor")
        self.liar = Liar(self.random, [n["id"] for n in self.cluster.cluster()["nodes"]] + [NAME])

    def throw(self, connection, kind, body, sender):
        """One message, mostly a mutated one."""
        shape = self.random.randrange(10)
        if shape == 0:
            connection.send(kind, body, **{"from": sender})
        elif shape < 8:
            connection.send(kind, self.liar.mutate(body), **{"from": sender})
        else:
            connection.send(kind, Raw(self.liar.garble(pack(body))), **{"from": sender})

    def pages(self):
        """The pages of the conductor, which are JSON without NaN whatever a node said."""

        def wrong(constant):
            raise AssertionError(f"/cluster has {constant}")

        return json.loads(self.cluster.socket_request("GET", "/cluster")[1], parse_constant=wrong)


class Member(Throwing):
    def batch(self, node, seq):
        """Messages to the conductor by a member; whether it was one still after them."""
        try:
            for _ in range(BATCH):
                seeds = from_node(self.random, seq) if self.random.random() < 0.8 else golden_messages()
                kind, body = self.random.choice(seeds)
                if kind not in ("hello", "goodbye") or self.random.random() < 0.1:
                    self.throw(node.dealer, kind, body, NAME)
        except OSError:
            return False
        return node.known()

    def test_a_welcome_node_that_lies_neither_ends_nor_fools_the_conductor(self):
        node = Node(self.uri)
        self.assertEqual(node.join()["name"], NAME)
        self.assertIn(NAME, [n["id"] for n in self.pages()["nodes"]])
        batches, stayed = attack.count(40, 1_000), 0
        for i in range(batches):
            if self.batch(node, i):
                stayed += 1
            else:
                node.join()
            self.alive("conductor")
            if i % 10 == 0:
                self.pages()
        print(f"{batches} batches of {BATCH} messages, {stayed} by a node that stayed a member", flush=True)
        self.assertGreaterEqual(stayed, batches * 0.3)
        node.join()
        node.leave()
        until(lambda: NAME not in [n["id"] for n in self.pages()["nodes"]], 30, "the liar has left")
        self.check_after()


class Impostor(Throwing):
    """A conductor's place, which a liar takes while the conductor is down."""

    def take_place(self):
        """The false conductor, and {node: (connection, registration)}."""
        self.cluster.processes.pop("conductor").stop()
        false = Conductor(self.uri[6:])
        self.addCleanup(false.close)
        nodes = {}
        while len(nodes) < 3:
            connection, hello = false.accept()
            nodes[hello["name"]] = connection, hello
            self.addCleanup(connection.close)
        return false, nodes

    def give_back(self, false, nodes):
        """The real conductor again."""
        for connection, _ in nodes.values():
            connection.close()
        false.close()
        os.unlink(self.uri[6:])
        self.cluster.start("conductor")
        self.before["conductor"] = attack.resident(self.cluster.processes["conductor"].popen.pid)
        try:
            self.cluster.wait_nodes()
        except AssertionError as error:
            logs = [process.tail() for process in self.cluster.processes.values()]
            raise AssertionError("\n".join([str(error), *logs])) from None

    def orders(self, hellos, turn):
        """Messages of a conductor that are right in form, about the nodes that registered."""
        peers = [
            {"name": name, "cache_bytes": 0}
            | {key: hello[key] for key in ("instance", "role", "control_uri", "data")}
            for name, hello in hellos.items()
        ]
        start = start_of(hellos, turn, Random(turn).ids(70))
        return [
            ("welcome", WELCOME),
            ("peers", {"version": turn, "peers": peers}),
            ("prefill_start", start),
            ("kv_offer", GOLDEN["kv_offer"] | {"spec": start["spec"]}),
            ("cancel", GOLDEN["cancel"] | {"req": f"r{turn}", "attempt": 1}),
            ("copy_blocks", GOLDEN["copy_blocks"] | {"hashes": [os.urandom(16)], "node": "d0"}),
            *((kind, GOLDEN[kind]) for kind in ("drain", "index_sync", "heartbeat_ack", "peers", "goodbye")),
        ]

    def obeys(self, name, connection, peers):
        """Whether the node registers here, and sends its heartbeat."""
        try:
            while connection.waits(0):
                connection.receive()
            connection.send("welcome", WELCOME | {"name": name}, **{"from": "conductor"})
            connection.send("peers", peers, **{"from": "conductor"})
            connection.receive_any(("heartbeat",))
            return True
        except OSError:
            return False

    def renew(self, false, nodes, hellos, name):
        """A new connection of this node. Those of other nodes, which were left in silence, may come first."""
        nodes[name][0].close()
        end = time.monotonic() + 60
        while True:
            self.alive(name)
            self.assertLess(time.monotonic(), end, f"{name} comes back\n{self.cluster.processes[name].tail()}")
            connection, hello = false.accept()
            (sender,) = [n for n, known in hellos.items() if known["instance"] == connection.peer]
            nodes[sender][0].close()
            nodes[sender] = connection, hello
            self.addCleanup(connection.close)
            if sender == name:
                return

    def order(self, false, nodes, hellos, name, turn):
        """A batch of orders to a node; whether it had registered before."""
        # A node that is refused ends, as it should.
        golden = [each for each in golden_messages() if each[0] != "refused"]
        orders, connection = self.orders(hellos, turn), nodes[name][0]
        obeyed = self.obeys(name, connection, orders[1][1])
        try:
            for _ in range(BATCH):
                kind, body = self.random.choice(orders if self.random.random() < 0.8 else golden)
                self.throw(connection, kind, body, "conductor")
        except OSError:
            obeyed = False
        if not obeyed or turn % 20 == 0:
            self.renew(false, nodes, hellos, name)
        return obeyed

    def test_a_false_conductor_ends_no_node_and_leaves_no_trace(self):
        false, nodes = self.take_place()
        hellos = {name: hello | {"instance": connection.peer} for name, (connection, hello) in nodes.items()}
        batches = attack.count(10, 1_000)
        for name in list(nodes):
            obeyed = 0
            self.renew(false, nodes, hellos, name)
            for turn in range(1, batches + 1):
                obeyed += self.order(false, nodes, hellos, name, turn)
                self.alive(name)
            print(f"{name}: {batches} batches of {BATCH} orders, {obeyed} to a node that had registered", flush=True)
            self.assertGreaterEqual(obeyed, batches * 0.5)
            for _ in range(5):  # a node that waited long for its welcome dials again
                self.renew(false, nodes, hellos, name)
                if self.obeys(name, nodes[name][0], {"version": 1 << 63, "peers": []}):
                    break
            else:
                self.fail(f"{name} does not obey\n{self.cluster.processes[name].tail()}")
            nodes[name][0].send("drain", {"on": False}, **{"from": "conductor"})
            nodes[name][0].receive_any(("heartbeat",))
        self.give_back(false, nodes)
        self.check_after()

    def ask(self, answers, **pin):
        """A client whose request names the liar as one node of its pair."""
        body = {"prompt": Random(len(answers)).ids(70), "max_tokens": 4, "mc": {"pin": pin, "deadline_ms": 2000}}

        def run():
            answers.append(self.cluster.post("/v1/completions", body)[0])

        client = threading.Thread(target=run)
        client.start()
        return client

    def reply(self, spec, dealer, offered):
        """Hostile answers to the order that has this request, then one that ends it."""
        about = {"req": spec["req"], "attempt": spec["attempt"]}
        ready = {"token": 17, "logprobs": {"chosen": -1.0, "top": []}, "finish_reason": ""}
        rows = [{"index": i, **about, **ready} for i in self.random.choice([[0], [1, 2], [3, 0], [2**32 - 1]])]
        kinds = ("first_token", "prompt_logprobs", "kv_report", "preempted", "failed")
        told = [(kind, GOLDEN[kind] | about) for kind in kinds]
        told += [("tokens", GOLDEN["tokens"] | {"rows": rows}), ("first_token", GOLDEN["first_token"] | about | ready)]
        asked = [(kind, GOLDEN[kind] | about) for kind in ("kv_accept", "kv_refuse", "kv_done")]
        for _ in range(8):
            if offered and self.random.random() < 0.5:
                self.throw(offered, *self.random.choice(asked), NAME)
            else:
                self.throw(dealer, *self.random.choice(told), NAME)
        end = {"stage": "compute", "code": "internal", "message": "no", "retryable": False}
        dealer.send("failed", GOLDEN["failed"] | about | end, **{"from": NAME})

    def turn(self, node, router, links):
        """Takes a message of each connection that has one; how many orders were among them."""
        reached = 0
        try:
            while router.waits():  # every node dials every other one
                links.append(router.accept(node.instance))
                links[-1].send("ctl.ping", {}, **{"from": NAME})
        except OSError:
            pass  # the node has left meanwhile
        for connection in [node.dealer, *links]:
            try:
                node.dealer.send("heartbeat", HEARTBEAT, **{"from": NAME})
                kind, body = connection.receive() if connection.waits(0.01) else ("", None)
                if kind in ("prefill_start", "kv_offer"):
                    reached += 1
                    self.reply(body["spec"], node.dealer, connection if kind == "kv_offer" else None)
                elif kind == "heartbeat_ack" and not body["known"]:
                    node.join()
            except OSError:  # thrown out
                if connection in links:
                    links.remove(connection)
                    connection.close()
                else:
                    node.join()
        return reached

    def serve(self, node, role, router, count):
        """Requests to a pair that the liar is part of: how many reached it."""
        answers, links, reached = [], [], 0
        for turn in range(count):
            if turn % 3 == 0:
                node.join()  # as a new node, whose failures nobody remembers
            client, end = self.ask(answers, **{role: NAME}), time.monotonic() + 60
            while client.is_alive() and time.monotonic() < end:
                reached += self.turn(node, router, links)
                self.alive()
            client.join(60)
            self.assertFalse(client.is_alive(), "a client waits for ever")
        self.assertEqual(len(answers), count)
        print(f"{role}: {count} requests, {reached} reached the liar, answers {sorted(set(answers))}", flush=True)
        node.leave()
        for link in links:
            link.close()
        return reached

    def test_a_node_of_a_pair_that_lies_about_its_request_fails_no_other(self):
        false, nodes = self.take_place()
        self.give_back(false, nodes)
        path, count = os.path.join(self.cluster.env["MCT_RUN_DIR"], NAME), attack.count(9, 400)
        for role, model in (("prefill", "p0"), ("decode", "d0")):
            right = nodes[model][1] | {"name": NAME, "http": "", "key_check": b""}
            right["control_uri"] = f"ipc://{path}-{role}"
            router = Router(f"{path}-{role}")
            self.addCleanup(router.close)
            node = Node(self.uri, **right)
            node.fields["data"] = frames.descriptor(node.instance)
            self.assertGreaterEqual(self.serve(node, role, router, count), count * 0.3)
            router.close()
        self.check_after()


class Refusals(unittest.TestCase):
    def test_a_refusal_by_a_number_that_this_release_lacks_ends_a_node_with_an_error(self):
        with Cluster() as cluster:
            false = Conductor(os.path.join(cluster.env["MCT_RUN_DIR"], "conductor"))
            self.addCleanup(false.close)
            for number in (0, 9999, 2**32 - 1):
                node = cluster.start("p0")
                connection, _ = false.accept()
                connection.send("refused", GOLDEN["refused"] | {"mc": number}, **{"from": "conductor"})
                self.assertEqual(node.popen.wait(60), 3, node.tail())
                self.assertIn(f"(MC{number}, which this release does not have)", node.text())
                self.assertIn("MC2106", node.text())
                node.close()
                connection.close()


class Greetings(Attacked):
    """Strangers at a control port that requires keys."""

    def make_cluster(self):
        c = Cluster()
        try:
            ready = c.start("conductor", "--listen", "tcp://127.0.0.1:0").ready
            self.port = int(ready["control"].rsplit(":", 1)[1])
            for name in ("p0", "d0"):
                c.start(name, "--conductor", f"tcp://127.0.0.1:{self.port}")
            c.wait_nodes()
        except BaseException:
            c.close()
            raise
        return c

    def drawn(self, liar):
        """The first bytes of a connection."""
        right = greeting(self.random.choice([b"CURVE"] * 7 + [b"NULL", b"PLAIN", b"C", b"\xff" * 20]))
        words = [b"\x05HELLO", b"\x08INITIATE", b"\x07MESSAGE", b"\x05READY", b"\x05ERROR", b"\xff"]
        body = self.random.choice(words) + os.urandom(self.random.choice([0, 1, 194, 249, 65_000]))
        size = self.random.choice([len(body), 0, 2**31, 2**63, 2**64 - 1])
        command = b"\x06" + size.to_bytes(8, "big") if self.random.random() < 0.5 else bytes([4, size % 256])
        data = right + command + body
        shape = self.random.randrange(4)
        if shape == 0:
            return data[: self.random.randrange(len(right) + 20)]
        return data if shape < 3 else liar.garble(data[:400])

    def greet(self, data):
        """Sends the first bytes of a connection; whether the port answered by a whole greeting."""
        whole = False
        with attack.dial(self.port, timeout=60) as stranger:
            try:
                stranger.sendall(data[:64])
                if data[:12] == greeting(b"")[:12] and len(data) >= 64:
                    whole = len(stranger.recv(64, socket.MSG_WAITALL)) == 64
                stranger.sendall(data[64:])
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(1 << 16):
                    pass
            except OSError:
                pass  # thrown out
        return whole

    def test_greetings_cut_short_or_wrong_keep_nobody_out(self):
        liar, count = Liar(self.random, []), attack.count(200, 10_000)
        whole = sum(self.greet(self.drawn(liar)) for _ in range(count))
        print(f"{count} greetings, {whole} were answered by a whole one", flush=True)
        self.assertGreaterEqual(whole, count * 0.25)
        self.check_after()


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""Values in a cache node: the verbs of mc-cache and the HTTP door put, get, list, pin and remove them, within memory,
for their tenant alone."""

import http.client
import http.server
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time
import unittest

import cluster
import groups
from cluster import Cluster, run, until

KEYS = """[tenant.one]
keys = ["sk-one-1111"]
[tenant.two]
keys = ["sk-two-2222"]
"""


def private_file(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        file.write(text)
    return path


class Endless(http.server.BaseHTTPRequestHandler):
    """A node that always has more keys and never lists one."""

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b"hello")

    def do_GET(self):
        self.answer(b'{"values": [], "more": true}')

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Stranger(unittest.TestCase):
    """A server that is no cache node."""

    def setUp(self):
        server = http.server.HTTPServer(("127.0.0.1", 0), Endless)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"

    def garbage(self, verb, *words):
        code, out, err = run("mc-cache", verb, self.url, *words, stdin=b"value", timeout=60)
        self.assertEqual(code, 3, err)
        self.assertEqual(out, b"")  # no head of a table
        self.assertIn("MC2106", err)
        self.assertIn(self.url, err)
        return err

    def test_a_listing_that_never_goes_on_is_an_error(self):
        self.assertIn('after "" but names none of them', self.garbage("ls", "--keys"))

    def test_an_answer_that_is_no_answer_of_a_node_is_an_error_with_its_place(self):
        self.assertIn("the answer is not JSON", self.garbage("put", "k", "-"))
        self.assertIn("28 bytes came without its checksum, the header x-mc-crc32c", self.garbage("get", "k"))


class Store(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="mct-store-")
        cls.c = Cluster()
        cls.c.start("conductor")
        keys = private_file(cls.folder.name, "keys.toml", KEYS)
        process = cls.c.start("c0", "--dram", "32MiB", "--values", "2MiB", "--api-keys", keys)
        cls.port = int(process.wait_ready()["http"].rsplit(":", 1)[1])
        cls.c.wait_nodes()

    @classmethod
    def tearDownClass(cls):
        cls.c.close()
        cls.folder.cleanup()

    def setUp(self):
        for row in self.list():
            self.verb("rm", row["key"])

    def verb(self, name, *words, stdin=None):
        """A verb on c0: (exit code, stdout bytes, stderr)."""
        return run("mc-cache", name, "c0", *words, stdin=stdin, env=self.c.env)

    def put(self, key, value, *flags):
        return self.verb("put", key, "-", *flags, stdin=value)

    def list(self, *flags):
        code, out, err = self.verb("ls", "--keys", "--limit", "1000", "--json", *flags)
        self.assertEqual(code, 0, err)
        *rows, end = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((end["type"], end["values"]), ("end", len(rows)))
        return rows

    def ask(self, method, path, body=None, key=None):
        """(status, headers, body) of the node's HTTP port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def test_a_value_of_any_bytes_comes_back_and_is_gone_after_rm(self):
        value = bytes(range(256)) * 2000
        code, out, err = self.put("dir/a key", value)
        self.assertEqual((code, out), (0, b"dir/a key created 512000 bytes\n"), err)
        self.assertEqual(self.verb("get", "dir/a key")[:2], (0, value))
        self.assertEqual(self.verb("exist", "dir/a key")[:2], (0, b"dir/a key 512000 bytes\n"))
        self.assertEqual(self.verb("rm", "dir/a key")[0], 0)
        code, out, err = self.verb("get", "dir/a key")
        self.assertEqual((code, out), (1, b""))
        self.assertIn("MC4007", err)
        self.assertEqual(self.verb("exist", "dir/a key", "other")[:2], (1, b"dir/a key absent\nother absent\n"))

    def test_a_group_is_put_from_files_and_given_back_whole_or_member_by_member(self):
        members = {f"layer.{i}": os.urandom(1000 + i) for i in range(5)}
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, value in members.items():
                paths.append(os.path.join(folder, name))
                with open(paths[-1], "wb") as file:
                    file.write(value)
            code, out, err = self.verb("put", "group", *paths, "--group")
            self.assertEqual((code, out), (0, b"group created 5 members, 5010 bytes\n"), err)
            code, out, err = self.verb("get", "group", "--members", "--json")
            listed = [json.loads(line) for line in out.splitlines()]
            self.assertEqual({row["name"]: row["bytes"] for row in listed}, {n: len(v) for n, v in members.items()})
            for name, value in members.items():
                self.assertEqual(self.verb("get", "group", "--member", name)[:2], (0, value))
            into = os.path.join(folder, "back")
            self.assertEqual(self.verb("get", "group", "--into", into)[0], 0)
            for name, value in members.items():
                with open(os.path.join(into, name), "rb") as file:
                    self.assertEqual(file.read(), value)
            self.assertEqual([row["key"] for row in self.list()], ["group"])
            self.assertEqual(self.verb("move", "group", "moved")[0], 0)
            self.assertEqual(self.verb("get", "moved", "--member", "layer.3")[:2], (0, members["layer.3"]))
            self.assertEqual(self.verb("rm", "moved")[0], 0)
            for name in members:
                code, _, err = self.verb("get", "moved", "--member", name)
                self.assertEqual(code, 1)
                self.assertIn("MC4007", err)
            # Without --group several files are no value, and a group needs files with names.
            self.assertEqual(self.verb("put", "group", *paths)[0], 2)
            self.assertEqual(self.verb("put", "group", paths[0], "-", "--group", stdin=b"")[0], 2)
            self.assertEqual(self.verb("put", "group", paths[0], paths[0], "--group")[0], 1)
            self.assertEqual(self.verb("get", "group", "--members", "--member", "layer.0")[0], 2)
            self.assertEqual(self.list(), [])

    def put_group_of_one(self, name, query):
        group = groups.group({name: b"hi"})
        status, _, answer = self.ask("PUT", f"/v1/store/evil{query}", group, key="sk-one-1111")
        self.assertEqual(status, 201, answer)

    def test_a_member_whose_name_is_a_path_or_has_control_characters_is_written_nowhere(self):
        # The node refuses such names in a put that says that it brings a group.
        for name, query in ((b"../escaped", "?group=true"), (b"red\x1b[31m", ""), (b"two\nlines", "")):
            with self.subTest(name=name), tempfile.TemporaryDirectory() as folder:
                self.put_group_of_one(name, query)
                into = os.path.join(folder, "into")
                code, _, err = self.verb("get", "evil", "--into", into, "--tenant", "one")
                self.assertEqual(code, 2)
                self.assertIn("is no name of a file", err)
                self.assertEqual(os.listdir(folder), [])
                code, out, err = self.verb("get", "evil", "--members", "--tenant", "one")
                self.assertEqual(code, 0, err)
                shown = name.decode() if query else json.dumps(name.decode())
                self.assertEqual([line.split(None, 2)[2] for line in out.decode().splitlines()], [shown])
                if query:
                    got = self.verb("get", "evil", "--member", name.decode(), "--tenant", "one")
                    self.assertEqual(got[:2], (0, b"hi"))
                self.assertEqual(self.verb("rm", "evil", "--tenant", "one")[0], 0)

    def test_a_group_is_evicted_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, f"part{i}") for i in range(4)]
            for path in paths:
                with open(path, "wb") as file:
                    file.write(os.urandom(100_000))
            for number in range(12):  # 2 MiB hold five of them
                self.assertEqual(self.verb("put", f"g{number:02}", *paths, "--group")[0], 0)
            kept = {row["key"] for row in self.list()}
            self.assertLess(len(kept), 12)
            self.assertIn("g11", kept)
            for number in range(12):
                there = [self.verb("get", f"g{number:02}", "--member", f"part{i}")[0] == 0 for i in range(4)]
                self.assertEqual(there, [f"g{number:02}" in kept] * 4)

    def test_keys_without_a_value_do_not_keep_the_other_keys_from_being_changed(self):
        for verb, done in (("pin", b"pinned for 1h"), ("unpin", b"unpinned"), ("rm", b"removed")):
            for key in ("a", "b"):
                self.put(key, b"v", "--replace")
            code, out, err = self.verb(verb, "a", "no", "b", "none")
            self.assertEqual((code, out), (1, b"a %s\nno absent\nb %s\nnone absent\n" % (done, done)), err)
            self.assertIn('MC4007 not-found: there is no value "no"; 2 of 4 keys have none', err)
        self.assertEqual(self.list(), [])
        code, out, err = self.verb("rm", "no")
        self.assertEqual((code, out), (1, b"no absent\n"))
        self.assertIn('there is no value "no"', err)

    def test_a_file_that_is_no_value_and_an_empty_key_are_refused_before_anything_is_sent(self):
        with tempfile.TemporaryFile() as large:
            large.truncate(70 << 20)
            for path in (f"/dev/fd/{large.fileno()}", "-"):
                large.seek(0)
                words = [cluster.program("mc-cache"), "put", "c0", "k", path]
                fds = {"pass_fds": [large.fileno()]} if path != "-" else {"stdin": large}
                done = subprocess.run(words, capture_output=True, timeout=60, env=self.c.env, **fds)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(b"MC1008 input-too-large: ", done.stderr)
                self.assertIn(b"a value has at most 64MiB", done.stderr)
        for words in (["get", ""], ["rm", "a", ""], ["copy", "a", ""], ["put", "", "-"]):
            code, _, err = self.verb(*words, stdin=b"")
            self.assertEqual(code, 2, err)
            self.assertIn("MC1002 bad-value: the key is empty", err)
        self.assertEqual(self.list(), [])

    def test_a_node_is_found_by_the_relative_path_of_its_socket_and_by_its_address(self):
        self.put("k", b"v")
        run_dir = self.c.env["MCT_RUN_DIR"]
        instance = self.c.node("c0")["instance"][:12]
        for place, where in (
            (f"./node-{instance}.http", run_dir),
            (f"{os.path.basename(run_dir)}/node-{instance}.http", os.path.dirname(run_dir)),
        ):
            words = [cluster.program("mc-cache"), "get", place, "k"]
            done = subprocess.run(words, capture_output=True, timeout=60, env=self.c.env, cwd=where)
            self.assertEqual((done.returncode, done.stdout), (0, b"v"), done.stderr)
        key = private_file(self.folder.name, "one.key", "sk-one-1111\n")
        code, out, err = run("mc-cache", "exist", f"127.0.0.1:{self.port}", "k", "--api-key-file", key)
        self.assertEqual((code, out), (1, b"k absent\n"), err)  # the tenant's own values
        code, _, err = run("mc-cache", "get", f"127.0.0.1:{self.port}", "k")
        self.assertEqual(code, 1)
        self.assertIn("send a key with --admin-key-file FILE or --api-key-file FILE", err)

    def test_a_put_replaces_only_when_it_is_told_to(self):
        self.assertEqual(self.put("k", b"one")[0], 0)
        code, _, err = self.put("k", b"two")
        self.assertEqual(code, 1)
        self.assertIn("--replace", err)
        self.assertEqual(self.put("k", b"one")[1], b"k unchanged 3 bytes\n")
        self.assertEqual(self.put("k", b"two", "--replace")[1], b"k replaced 3 bytes\n")
        self.assertEqual(self.verb("get", "k")[1], b"two")

    def test_a_full_store_evicts_what_is_not_pinned_and_then_refuses_with_numbers(self):
        value = b"x" * 500_000
        for n in range(4):
            self.assertEqual(self.put(f"k{n}", value, *(["--pin", "1h"] if n < 2 else []))[0], 0)
        self.assertEqual(self.put("k4", value)[0], 0)  # in place of k2
        self.assertEqual([row["key"] for row in self.list()], ["k0", "k1", "k3", "k4"])
        code, _, err = self.verb("pin", "k4", "--for", "1h")
        self.assertEqual(code, 1)
        self.assertIn("at most half of the store's 2MiB", err)
        code, _, err = self.put("k5", value * 3)
        self.assertEqual(code, 1)
        self.assertIn("MC5008", err)
        self.assertIn("2MiB", err)
        self.assertIn("unpin or remove values", err)
        self.assertEqual(self.verb("unpin", "k0")[0], 0)
        self.assertEqual(self.put("k5", value * 3)[0], 0)
        self.assertEqual([row["key"] for row in self.list()], ["k1", "k5"])

    def test_a_value_ends_with_its_time_to_live(self):
        self.put("short", b"x", "--ttl", "1s", "--pin", "1h")
        self.put("long", b"x", "--ttl", "1h")
        until(lambda: [row["key"] for row in self.list()] == ["long"], 60, "short has expired")
        self.assertEqual(self.verb("get", "short")[0], 1)

    def test_copy_and_move_give_a_value_other_keys(self):
        self.put("a", b"value")
        self.assertEqual(self.verb("copy", "a", "b")[1], b"b copied\n")
        self.assertEqual(self.verb("move", "a", "c")[1], b"c moved\n")
        self.assertEqual([row["key"] for row in self.list()], ["b", "c"])
        self.assertEqual(self.verb("get", "c")[1], b"value")
        self.assertEqual(self.verb("move", "b", "c")[0], 1)
        self.assertEqual(self.verb("move", "b", "c", "--replace")[1], b"c moved, replaced\n")

    def test_ls_lists_the_keys_of_a_prefix_and_the_totals(self):
        for key in ("a/1", "a/2", "b"):
            self.put(key, b"x" * 10)
        self.assertEqual([row["key"] for row in self.list("--prefix", "a/")], ["a/1", "a/2"])
        code, out, _ = self.verb("ls", "--keys", "--limit", "2")
        self.assertEqual(code, 0)
        self.assertIn(b"a/2\n2 values, more are there", out)
        self.assertIn(b"b\n1 value; ", self.verb("ls", "--keys", "--prefix", "b")[1])

    def test_the_http_door_needs_a_key_and_shows_a_tenant_its_own_values_alone(self):
        self.assertEqual(self.ask("PUT", "/v1/store/k", b"x")[0], 401)
        self.assertEqual(self.ask("PUT", "/v1/store/k", b"one", "sk-one-1111")[0], 201)
        self.assertEqual(self.ask("GET", "/v1/store/k", key="sk-two-2222")[0], 404)
        self.assertEqual(self.ask("PUT", "/v1/store/k", b"two", "sk-two-2222")[0], 201)
        status, headers, body = self.ask("GET", "/v1/store/k", key="sk-one-1111")
        self.assertEqual((status, body), (200, b"one"))
        self.assertEqual(len(headers["x-mc-crc32c"]), 8)
        self.assertEqual(self.ask("GET", "/v1/store/k?tenant=one", key="sk-two-2222")[0], 403)
        self.assertEqual(self.verb("get", "k", "--tenant", "two")[1], b"two")  # the operator, over the socket
        self.assertEqual(self.verb("get", "k")[0], 1)
        file = private_file(self.folder.name, "one.key", "sk-one-1111\n")
        url = f"http://127.0.0.1:{self.port}"
        self.assertEqual(run("mc-cache", "get", url, "k", "--api-key-file", file)[1], b"one")
        self.assertEqual(run("mc-cache", "get", url, "k")[0], 1)
        for tenant in ("one", "two"):
            self.verb("rm", "k", "--tenant", tenant)

    def test_a_large_body_is_refused_before_it_is_read_where_nothing_takes_one(self):
        for path, key in (("/v1/store/k", None), ("/metrics", None)):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            headers = {"Content-Length": str(60 << 20), "Expect": "100-continue"}
            connection.putrequest("PUT" if path.startswith("/v1") else "GET", path)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            self.assertIn(connection.getresponse().status, (401, 413))
            connection.close()

    def test_metrics_of_a_store_with_keys_are_for_operators_alone(self):
        for key in (None, "sk-one-1111"):
            for path in ("/metrics", "/version"):
                self.assertEqual(self.ask("GET", path, key=key)[0], 403, (path, key))
        self.assertEqual(self.c.socket_request("GET", "/metrics", node=self.c.node("c0"))[0], 200)

    def test_metrics_count_values_and_what_became_of_them(self):
        self.put("m", b"x" * 1000)

        def counted():
            used = self.c.metric("c0", "mc_store_bytes", 'state="used"')
            return self.c.metric("c0", "mc_store_values") == 1 and 1000 < used < 2000

        until(counted, 60, "the value is counted, and the values of earlier tests are not")
        self.assertEqual(self.c.metric("c0", "mc_store_bytes", 'state="capacity"'), 2 << 20)


class Alone(unittest.TestCase):
    def test_a_node_that_is_no_cache_says_who_has_a_store(self):
        with Cluster("1p1d") as c:
            code, _, err = run("mc-cache", "get", "p0", "k", env=c.env)
            self.assertEqual(code, 1)
            self.assertIn("p0 is a prefill node, which has no store of values", err)
            self.assertIn("next:  start a cache node with mc-cache", err)
            c.start("c0")
            until(lambda: len(c.cluster()["nodes"]) == 3, 60, "the cache node")
            code, _, err = run("mc-cache", "put", "d0", "k", "-", stdin=b"v", env=c.env)
            self.assertEqual(code, 1)
            self.assertIn("next:  name a cache node: c0;", err)
            code, _, err = run("mc-cache", "get", c.node("p0")["http"], "k", env=c.env)
            self.assertIn("it is no cache node", err)


class Durable(unittest.TestCase):
    """Values on a cache node with a disk, which is killed and started again."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mct-durable-")
        self.addCleanup(folder.cleanup)
        self.disk = os.path.join(folder.name, "ssd")
        self.c = Cluster()
        self.addCleanup(self.c.close)
        self.c.start("conductor")
        self.start()

    def start(self, killed=None):
        flags = ("--dram", "64MiB", "--values", "4MiB", "--ssd", f"{self.disk}:256MiB", "--values-disk", "32MiB")
        self.c.start("c0", *flags).wait_ready()
        until(
            lambda: any(n["id"] == "c0" and n["instance"] != killed for n in self.c.cluster()["nodes"]),
            60,
            "c0 is a member",
        )

    def restart(self, damage=lambda: None):
        killed = self.c.node("c0")["instance"]
        self.c.processes["c0"].kill()
        damage()
        self.start(killed)

    def verb(self, name, *words, code=0, stdin=None):
        """A verb on c0: its output, or what it says of its error."""
        got, out, err = run("mc-cache", name, "c0", *words, stdin=stdin, env=self.c.env)
        self.assertEqual(got, code, err)
        return err if code else out

    def damage(self, value):
        """Changes one byte of the value on disk."""
        folder = os.path.join(self.disk, "values")
        hits = 0
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            with open(path, "r+b") as file:
                at = file.read().find(value[:1000])
                if at >= 0:
                    file.seek(at + 500)
                    file.write(b"!")
                    hits += 1
        self.assertEqual(hits, 1)

    def fsck(self, *words, code=0):
        got, out, err = run("mc-cache", "fsck", *words, "--json", env=self.c.env)
        self.assertEqual(got, code, err or out)
        return json.loads(out)["values"]

    def test_fsck_checks_values_and_drops_those_alone_that_are_damaged(self):
        value = b"the value that is damaged " * 2000
        self.verb("put", "k", "-", "--durability", "d2", stdin=value)
        self.verb("put", "old", "-", "--durability", "d2", stdin=b"sound")
        self.verb("move", "old", "sound")
        values = os.path.join(self.disk, "values")
        self.assertIn("MC6007", run("mc-cache", "fsck", values, env=self.c.env)[2])  # the node uses it
        killed = self.c.node("c0")["instance"]
        self.c.processes["c0"].kill()
        for words in ((self.disk,), (values,), (values, "--repair"), (self.disk, "--repair")):
            found = self.fsck(*words)
            self.assertEqual((found["count"], found["bytes"]), (2, len(value) + 5))
            self.assertEqual((found["damaged"], found["lost"], found["dropped"]), ([], [], 0))
        self.damage(value)
        for words in ((self.disk,), (values,)):
            damaged = self.fsck(*words, code=1)["damaged"]
            self.assertEqual([(d["tenant"], d["key"], d["lost"]) for d in damaged], [("default", "k", True)])
        out = run("mc-cache", "fsck", self.disk, env=self.c.env)[1].decode()
        self.assertIn("default k, record", out)
        self.assertIn("2 values", out)
        said = f"\nnext: repair with: mc-cache fsck {re.escape(self.disk)} --repair\\. .*values must be put again\\.\n$"
        self.assertRegex(out, said)
        self.assertEqual(self.fsck(values, "--repair")["dropped"], 1)
        self.assertEqual(self.fsck(self.disk)["count"], 1)
        self.start(killed)
        self.assertEqual(self.verb("get", "sound"), b"sound")
        self.assertIn("MC4007", self.verb("get", "k", code=1))

    def test_the_next_step_of_a_store_without_superblocks_works_for_kv_blocks_and_for_values(self):
        values = os.path.join(self.disk, "values")
        copy, away = self.disk + ".copy", self.disk + ".away"

        def spoil(folder):
            for name in ("super.a", "super.b"):
                with open(os.path.join(folder, name), "r+b") as file:
                    file.write(bytes(4096))

        def refused():
            flags = ("--dram", "64MiB", "--values", "4MiB", "--ssd", f"{self.disk}:256MiB", "--values-disk", "32MiB")
            code, _, err = run("mc-cache", "--check", *flags, env=self.c.env)
            self.assertEqual(code, 1, err)
            self.assertIn("MC6009", err)
            return err

        self.verb("put", "k", "-", "--durability", "d2", stdin=b"value")
        killed = self.c.node("c0")["instance"]
        self.c.processes["c0"].kill()
        shutil.copytree(values, copy)
        # The KV blocks: their files go, and the values beside them stay.
        spoil(self.disk)
        self.assertIn("remove its files seg.* and super.*, and keep its folder values", refused())
        for name in os.listdir(self.disk):
            if name.startswith(("seg.", "super.")):
                os.remove(os.path.join(self.disk, name))
        self.start(killed)
        self.assertEqual(self.verb("get", "k"), b"value")
        # The values: the node starts without the folder, and has them again with the copy.
        killed = self.c.node("c0")["instance"]
        self.c.processes["c0"].kill()
        spoil(values)
        step = "bring the folder back from a copy, or move it out of the directory of --ssd and keep it"
        self.assertIn(step, refused())
        for folder in (self.disk, values):
            self.assertIn(step, run("mc-cache", "fsck", folder, env=self.c.env)[2])
        for name in ("super.a", "super.b"):
            os.remove(os.path.join(values, name))
        self.assertIn(step, refused())
        for folder in (self.disk, values):
            self.assertIn(step, run("mc-cache", "fsck", folder, env=self.c.env)[2])
        os.rename(values, away)
        self.start(killed)
        self.assertIn("MC4007", self.verb("get", "k", code=1))
        killed = self.c.node("c0")["instance"]
        self.c.processes["c0"].kill()
        shutil.rmtree(values)
        os.rename(copy, values)
        self.start(killed)
        self.assertEqual(self.verb("get", "k"), b"value")

    def test_a_node_without_api_keys_keeps_more_durable_keys_than_a_tenant_s_quarter(self):
        folder = self.disk + ".small"
        self.c.start("c1", "--values", "1MiB", "--ssd", f"{folder}:256MiB", "--values-disk", "32MiB").wait_ready()
        ops = [{"op": "put", "key": f"k{i}", "bytes": 1, "durability": "d2"} for i in range(1020)]
        body = json.dumps({"ops": ops}).encode() + b"\n" + b"v" * len(ops)
        until(lambda: any(n["id"] == "c1" for n in self.c.cluster()["nodes"]), 60, "c1 is a member")
        name = f"node-{self.c.node('c1')['instance'][:12]}.http"
        door = cluster.SocketConnection(os.path.join(self.c.env["MCT_RUN_DIR"], name))
        self.addCleanup(door.close)
        door.request("POST", "/v1/store", body)
        results = json.loads(door.getresponse().read().split(b"\n")[0])["results"]
        kept = [one["status"] for one in results].count(201)
        self.assertGreater(kept, 900)  # half of 1 MiB, at 512 bytes and the key each
        self.assertNotIn("quarter", results[-1]["error"]["message"])

    def test_acknowledged_values_outlive_kill_9_and_removed_ones_do_not_come_back(self):
        values = {f"k{i}": os.urandom(size) for i, size in enumerate([0, 1, 4096, 100_000, 3_000_000])}
        for key, value in values.items():
            self.verb("put", key, "-", "--durability", "d2", stdin=value)
        self.verb("put", "removed", "-", "--durability", "d2", stdin=b"x")
        self.verb("put", "pinned", "-", "--durability", "d2", "--ttl", "1h", stdin=b"y")
        self.verb("pin", "pinned", "--for", "30m")
        self.verb("put", "volatile", "-", stdin=b"z")
        self.verb("move", "k3", "moved")
        values["moved"] = values.pop("k3")
        self.verb("rm", "removed")
        self.restart()
        for key, value in values.items():
            self.assertEqual(self.verb("get", key), value)
        self.assertIn("MC4007", self.verb("get", "removed", code=1))
        self.assertIn("MC4007", self.verb("get", "volatile", code=1))
        rows = [json.loads(line) for line in self.verb("ls", "--keys", "--json").splitlines()[:-1]]
        self.assertEqual({row["key"] for row in rows}, {*values, "pinned"})
        pinned = next(row for row in rows if row["key"] == "pinned")
        self.assertTrue(pinned["durable"])
        self.assertLessEqual(pinned["ttl_ms"], 3_600_000)
        self.assertGreater(pinned["ttl_ms"], 3_000_000)
        self.assertGreater(pinned["pin_ms"], 1_500_000)

    def test_a_durable_group_outlives_kill_9_whole_or_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            members = {f"part{i}": os.urandom(150_000) for i in range(4)}
            paths = [os.path.join(folder, name) for name in members]
            for path, value in zip(paths, members.values()):
                with open(path, "wb") as file:
                    file.write(value)
            began = time.monotonic()
            self.verb("put", "kept", *paths, "--group", "--durability", "d2", "--pin", "1h")
            took, draw = time.monotonic() - began, random.Random(11)
            # The node is killed during a put: the group is there with all members, or with none.
            for turn in range(cluster.count(1, 20)):
                killed = self.c.node("c0")["instance"]
                key = f"torn{turn}"
                words = ["put", "c0", key, *paths, "--group", "--durability", "d2"]
                put = subprocess.Popen([cluster.program("mc-cache"), *words], env=self.c.env,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                threading.Event().wait(draw.uniform(0.5, 1) * took)  # the moment of the kill is drawn
                self.c.processes["c0"].kill()
                self.start(killed)
                put.wait()
                for name, value in members.items():
                    self.assertEqual(self.verb("get", "kept", "--member", name), value)
                there = [run("mc-cache", "get", "c0", key, "--member", n, env=self.c.env)[:2] for n in members]
                self.assertIn(there, ([(0, v) for v in members.values()], [(1, b"")] * 4))

    def test_values_beyond_memory_go_to_disk_and_come_back(self):
        values = {f"k{i}": os.urandom(1 << 20) for i in range(10)}
        for key, value in values.items():
            self.verb("put", key, "-", "--durability", "d1", stdin=value)
        until(
            lambda: self.verb("ls", "--keys", "--json").count(b'"durable":true') == len(values),
            60,
            "all values of level d1 are on disk",
        )
        self.assertGreater(self.verb("ls", "--keys", "--json").count(b'"tier":"disk"'), 5)
        for key, value in values.items():
            self.assertEqual(self.verb("get", key), value)

    def test_the_bench_counts_hits_on_disk_apart_from_hits_in_memory(self):
        words = ["--op", "get", "--value", "512KiB", "--keys", "16", "--durability", "d2", "-t", "500ms", "--json"]
        code, out, err = run("mc-bench", "kv", "c0", *words, env=self.c.env)
        self.assertEqual(code, 0, err)
        (point,) = [row for row in map(json.loads, out.splitlines()) if row["type"] == "point"]
        self.assertGreater(point["disk_values"], 0)
        self.assertGreater(point["disk_latency_us_p50"], 0)
        self.assertEqual(point["memory_values"] + point["disk_values"], point["values"])
        self.assertEqual((point["remote_values"], point["remote_latency_us_p50"]), (0, None))

    def test_a_damaged_value_is_an_error_and_never_wrong_bytes(self):
        value = b"the value that is damaged " * 2000
        self.verb("put", "k", "-", "--durability", "d2", stdin=value)
        self.verb("put", "sound", "-", "--durability", "d2", stdin=b"sound")

        self.restart(lambda: self.damage(value))
        self.assertIn("MC6004", self.verb("get", "k", code=1))
        again = self.verb("get", "k", code=1)
        self.assertIn("MC4007", again)
        self.assertIn("damaged", again)
        self.assertEqual(self.verb("get", "sound"), b"sound")

    def test_a_full_disk_has_an_error_of_its_own_and_keeps_what_it_acknowledged(self):
        values = {}
        for i in range(64):
            value = os.urandom(2 << 20)
            code, _, err = run(
                "mc-cache", "put", "c0", f"k{i}", "-", "--durability", "d2", stdin=value, env=self.c.env
            )
            if code:
                self.assertIn("MC5008", err)
                self.assertIn("--values-disk", err)
                break
            values[f"k{i}"] = value
        self.assertGreater(len(values), 5)
        self.assertLess(len(values), 64)
        self.restart()
        for key, value in values.items():
            self.assertEqual(self.verb("get", key), value)

    def test_a_disk_of_values_without_a_disk_is_refused(self):
        code, _, err = run("mc-cache", "--values-disk", "64MiB", env=self.c.env)
        self.assertEqual(code, 2, err)
        self.assertIn("--values-disk", err)
        self.assertIn("--ssd", err)

    def test_a_level_that_the_node_has_not_is_refused(self):
        self.assertIn("MC4031", self.verb("put", "k", "-", "--durability", "d3", code=1, stdin=b"x"))
        self.assertIn("MC4007", self.verb("get", "k", code=1))


class Replicated(unittest.TestCase):
    """Values on several cache nodes with disks, which are killed, come back, and lose their disks."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="mct-replicas-")
        self.addCleanup(self.folder.cleanup)
        self.c = Cluster()
        self.addCleanup(self.c.close)
        self.c.start("conductor")
        for name in ("c0", "c1"):
            self.start(name)

    def start(self, name, killed=None):
        flags = ("--dram", "64MiB", "--values", "16MiB", "--ssd", f"{self.disk(name)}:256MiB")
        self.c.start(name, *flags, "--values-disk", "32MiB", "--replica-grace", "2s").wait_ready()
        until(lambda: self.instance(name) not in (None, killed), 60, f"{name} is a member")

    def disk(self, name):
        return os.path.join(self.folder.name, name)

    def instance(self, name):
        return next((n["instance"] for n in self.c.cluster()["nodes"] if n["id"] == name), None)

    def kill(self, name):
        instance = self.instance(name)
        self.c.processes[name].kill()
        return instance

    def verb(self, name, *words, code=0, stdin=None):
        """A verb: its output, or what it says of its error."""
        got, out, err = run("mc-cache", name, *words, stdin=stdin, env=self.c.env)
        self.assertEqual(got, code, err)
        return err if code else out

    def get(self, node, key):
        """A value, asked for again while the nodes do not know each other yet."""
        said = []

        def done():
            said[:] = run("mc-cache", "get", node, key, env=self.c.env)
            return not (said[0] and ("MC4007" in said[2] or "MC2101" in said[2]))

        until(done, 60, lambda: f"{node} gives {key}: {said[2]}")
        self.assertEqual(said[0], 0, said[2])
        return said[1]

    def row(self, node, key):
        lines = self.verb("ls", node, "--keys", "--json").splitlines()[:-1]
        return next((row for row in map(json.loads, lines) if row["key"] == key), None)

    def put(self, node, key, value, *flags, code=0):
        """A put, again while the nodes do not know each other yet."""
        said = []

        def done():
            got, out, err = run("mc-cache", "put", node, key, "-", *flags, stdin=value, env=self.c.env)
            said[:] = [got, out, err]
            return got == code and not (code and "MC2101" in err)

        until(done, 60, "the put is answered")
        return said[2] if code else said[1]

    def test_a_cache_node_without_values_is_asked_for_none_and_holds_no_replica(self):
        self.c.start("c2", "--dram", "64MiB", "--values", "0B").wait_ready()
        until(lambda: self.instance("c2"), 60, "c2 is a member")
        self.put("c0", "k", b"x", "--durability", "d3")
        self.assertEqual([self.row(n, "k")["missing"] for n in ("c0", "c1")], [0, 0])
        self.assertIn("MC4007", self.verb("rm", "c0", "nothing", code=1))
        self.assertEqual(self.verb("exist", "c0", "nothing", code=1), "")
        self.verb("rm", "c1", "k")
        self.assertIn("--values 0B", self.verb("get", "c2", "k", code=1))

    def test_a_value_with_two_replicas_is_read_after_kill_9_of_either_holder_and_is_made_twice_again(self):
        value = os.urandom(3_000_000)
        self.put("c0", "k", value, "--replicas", "2")
        self.assertEqual([self.row(n, "k")["missing"] for n in ("c0", "c1")], [0, 0])
        for dead, other in (("c0", "c1"), ("c1", "c0")):
            killed = self.kill(dead)
            self.assertEqual(self.get(dead, "k"), value)  # the command asks the other node
            self.assertEqual(self.verb("get", other, "k"), value)
            until(lambda: self.row(other, "k")["missing"] == 1, 60, "the replica is said to be missing")
            self.assertIn(b" 1/2 ", self.verb("ls", other, "--keys"))
            self.start(dead, killed)
            self.assertEqual(self.get(dead, "k"), value)  # its memory was lost
            until(lambda: self.row(dead, "k") is not None, 60, "the replica is made again")
        self.verb("rm", "c1", "k")
        for node in ("c0", "c1"):
            self.assertIn("MC4007", self.verb("get", node, "k", code=1))

    def test_an_acknowledged_value_of_level_d3_survives_the_loss_of_a_node_with_its_disk(self):
        values = {f"k{i}": os.urandom(size) for i, size in enumerate([0, 1, 4096, 2_500_000])}
        for key, value in values.items():
            self.put("c0", key, value, "--durability", "d3")
        for lost in ("c0", "c1"):
            killed = [self.kill(node) for node in ("c0", "c1")]
            shutil.rmtree(self.disk(lost))
            for node, instance in zip(("c0", "c1"), killed):
                self.start(node, instance)
            for key, value in values.items():
                until(
                    lambda k=key: all((self.row(n, k) or {}).get("durable") for n in ("c0", "c1")),
                    60,
                    f"{key} is on both disks again",
                )
                self.assertEqual([self.verb("get", n, key) for n in ("c0", "c1")], [value, value])

    def test_too_few_nodes_are_an_error_with_the_numbers(self):
        said = self.put("c0", "k", b"x", "--replicas", "3", code=1)
        self.assertIn("MC4031", said)
        self.assertIn("3 replicas need 3 cache nodes, and there are 2: c0, c1", said)
        self.assertIn("MC4007", self.verb("get", "c1", "k", code=1))

    def test_a_third_node_takes_the_place_of_a_holder_that_stays_away(self):
        self.put("c0", "k", b"value", "--durability", "d3")
        self.start("c2")
        self.assertEqual(self.get("c2", "k"), b"value")  # any node gives it
        self.assertIsNone(self.row("c2", "k"))
        killed = self.kill("c1")
        until(lambda: self.row("c2", "k") is not None, 60, "c2 holds the value")
        until(lambda: self.row("c0", "k")["missing"] == 0, 60, "two replicas are there")
        self.assertIn("c1 holds the value too", self.verb("rm", "c0", "k", code=3))
        self.start("c1", killed)
        until(lambda: len(self.c.cluster()["nodes"]) == 3, 60, "all are there")
        self.put("c1", "k", b"newer", "--replace")
        self.assertEqual([self.get(n, "k") for n in ("c0", "c1", "c2")], [b"newer"] * 3)
        self.verb("rm", "c2", "k")
        self.assertIn("MC4007", self.verb("get", "c1", "k", code=1))


if __name__ == "__main__":
    unittest.main(verbosity=2)

#!/usr/bin/env python3
"""The doors of a cluster: every socket that listens has a lock of its own, on loopback too.

Attackers here are hosts beyond loopback (a door without its lock does not open), other users of this host, web pages
in a browser of this host, tenants who read about others, and whoever reads the process list or a key file.
"""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import unittest

import attack
import cluster
from cluster import Cluster, run, until

KEYS = """
[tenant.a]
keys = ["sk-tenant-a"]
[tenant.operator]
keys = ["sk-operator"]
admin = true
"""
SMALL = ["--kv-mem", "32MiB"]


def setUpModule():
    global c
    c = Cluster("1p1d", worker=SMALL)


def tearDownModule():
    c.close()


def ask(port, method, path, body=None, **headers):
    """(status, body) of one call to a TCP port; `headers` replace Python's own Host."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        data = json.dumps(body).encode() if body is not None else b""
        for name, value in headers.items():
            if value is not None:
                connection.putheader(name, value)
        if data or method == "POST":
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def code_of(body):
    return json.loads(body)["error"]["code"]


def worker_port(name):
    return int(c.node(name)["http"].rsplit(":", 1)[1])


def operators_socket(of):
    return os.path.join(of.env["MCT_RUN_DIR"], "conductor.http")


class Folder(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mct-doors-")
        self.addCleanup(lambda: subprocess.run(["rm", "-rf", self.dir], check=True))
        self.env = dict(os.environ, MCT_RUN_DIR=os.path.join(self.dir, "run"))

    def write(self, name, text, mode=0o600, uid=None):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        if uid is not None:
            os.chown(path, uid, uid)
        return path


class BeyondLoopback(Folder):
    def check(self, *words):
        return run(*words, "--check", env=self.env)

    def test_each_door_needs_its_own_lock_and_no_other(self):
        key_set = os.path.join(self.dir, "cluster.key")
        self.assertEqual(run("mc-conductor", "keygen", "-o", key_set)[0], 0)
        admin = os.path.join(self.dir, "admin.key")
        self.assertEqual(run("mc-conductor", "keygen", "--admin", "-o", admin)[0], 0)
        tenants = self.write("keys.toml", KEYS)
        locks = {
            "control": ("--auth", key_set),
            "data": ("--auth", key_set),
            "http": ("--api-keys", tenants),
            "pages": ("--admin-key-file", admin),
        }
        conductor = ("mc-conductor", "--http", "127.0.0.1:0")
        cache = ("mc-cache", "--dram", "8MiB")
        for door, words in (
            ("http", ("mc-conductor", "--http", "0.0.0.0:0")),
            ("control", (*conductor, "--listen", "tcp://0.0.0.0:0")),
            ("pages", (*cache, "--http", "0.0.0.0:0")),
            ("data", (*cache, "--http", "127.0.0.1:0", "--bind", "0.0.0.0")),
        ):
            with self.subTest(door):
                others = []
                for lock in {lock for lock in locks.values() if lock != locks[door]}:
                    if not (words[0] == "mc-cache" and lock == locks["http"]):  # a worker has no tenants
                        others += lock
                others += ["--insecure", ",".join(name for name in locks if locks[name] != locks[door])]
                code, _, err = self.check(*words, *others)
                self.assertEqual(code, 2, err)
                self.assertIn("MC1005", err)
                self.assertIn(f"the {door} door", err)
                self.assertIn(locks[door][0], err)
                opened = "data,control" if door == "data" else door  # --bind is the place of both
                for allowed in (locks[door], ("--insecure", opened)):
                    code, _, err = self.check(*words, *allowed)
                    self.assertNotIn("MC1005", err)
                    if door != "data":  # which must be an address of this host that peers can dial
                        self.assertEqual(code, 0, err)

    def test_a_door_that_opened_without_its_lock_does_not_open_the_pages_behind_it(self):
        for flags, page in ((["http"], 403), (["http,pages"], 200), (["all"], 200)):
            with Cluster() as mine:
                words = ["mc-conductor", "--http", "0.0.0.0:0", "--json", "--log-level", "warn", "--insecure", *flags]
                mine.processes["conductor"] = mine.spawn(words)
                mine.url_port = int(mine.processes["conductor"].wait_ready()["http"].rsplit(":", 1)[1])
                self.assertEqual(mine.request("GET", "/v1/models")[0], 200)
                conductor = mine.processes["conductor"]
                until(lambda: "door without a lock" in conductor.text(), 60, "a warning of the open door")
                for path in ("/metrics", "/cluster"):
                    self.assertEqual(mine.request("GET", path)[0], page, f"{flags} {path}")
                self.assertEqual(mine.socket_request("GET", "/metrics")[0], 200)

    def test_a_worker_beyond_loopback_shows_strangers_its_health_alone(self):
        admin = os.path.join(self.dir, "admin.key")
        self.assertEqual(run("mc-conductor", "keygen", "--admin", "-o", admin)[0], 0)
        with open(admin, encoding="utf-8") as file:
            bearer = {"Authorization": "Bearer " + file.read().strip()}
        words = ["mc-cache", "--name", "c0", "--dram", "8MiB", "--json"]
        with Cluster(roles=["conductor"]) as mine:
            words += ["--http", "0.0.0.0:0", "--admin-key-file", admin]
            mine.processes["c0"] = mine.spawn(words)
            until(lambda: mine.cluster()["nodes"], 60, "the cache registered")
            port = int(mine.node("c0")["http"].rsplit(":", 1)[1])
            for path in ("/health", "/livez", "/readyz"):
                until(lambda p=path: ask(port, "GET", p)[0] == 200, 60, path)
            for path in ("/metrics", "/version", "/blocks"):
                self.assertEqual(ask(port, "GET", path)[0], 403, path)
                self.assertEqual(ask(port, "GET", path, Authorization="Bearer wrong-key")[0], 403, path)
                self.assertEqual(ask(port, "GET", path, **bearer)[0], 200, path)
            # Another host names this one as it likes; a page of another site is still refused.
            self.assertEqual(ask(port, "GET", "/health", Host="node7.example")[0], 200)
            self.assertEqual(ask(port, "GET", "/health", Origin="https://evil.example")[0], 403)
            # SIGHUP takes a new key.
            with open(admin, "w", encoding="utf-8") as file:
                file.write("another-admin-key\n")
            mine.processes["c0"].popen.send_signal(signal.SIGHUP)
            new = {"Authorization": "Bearer another-admin-key"}
            until(lambda: ask(port, "GET", "/metrics", **new)[0] == 200, 60, "the new key")
            self.assertEqual(ask(port, "GET", "/metrics", **bearer)[0], 403)

    def test_the_old_flag_is_refused_with_the_names_of_the_doors(self):
        for words in (["--insecure"], ["--insecure", "--json"], ["--insecure", "yes"]):
            code, _, err = run("mc-cache", *words, env=self.env)
            self.assertEqual(code, 2, err)
            self.assertRegex(err, "MC100[12]")
            for door in ("control", "data", "http", "pages", "all"):
                self.assertIn(door, err)


class OnLoopback(unittest.TestCase):
    def test_clients_and_scrapers_need_no_key_where_there_are_no_tenants(self):
        for path in ("/health", "/livez", "/readyz", "/version", "/metrics", "/v1/models"):
            self.assertEqual(c.request("GET", path)[0], 200, path)
        self.assertEqual(c.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})[0], 200)
        for path in ("/livez", "/version", "/metrics"):
            self.assertEqual(ask(worker_port("p0"), "GET", path)[0], 200, path)

    def test_the_list_of_blocks_is_for_operators_on_loopback_too(self):
        for name in ("p0", "d0"):
            for query in ("", "?limit=1", "?sort=uses&limit=0"):
                status, body = ask(worker_port(name), "GET", "/blocks" + query)
                self.assertEqual(status, 403, body)
                self.assertNotIn(b"memory_blocks", body)
                wrong = ask(worker_port(name), "GET", "/blocks" + query, Authorization="Bearer mcadmin-wrong")
                self.assertEqual(wrong[0], 403, wrong[1])

    @attack.needs_second_user
    def test_another_user_neither_sees_requests_nor_drains_nodes(self):
        answer = c.post("/v1/completions", {"prompt": "secret", "max_tokens": 2})[2]
        script = """
import http.client, sys
port, path, method = int(sys.argv[1]), sys.argv[2], sys.argv[3]
link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
link.request(method, path, b'{"node":"p0"}' if method == "POST" else None)
answer = link.getresponse()
print(answer.status, answer.read().decode())
"""
        for method, path in (
            ("GET", "/cluster"),
            ("GET", "/requests/" + answer["id"]),
            ("POST", "/admin/drain"),
            ("POST", "/admin/undrain"),
            ("POST", "/admin/explain"),
        ):
            code, out, err = attack.as_other_user(script, c.url_port, path, method)
            self.assertEqual(code, 0, err)
            status, body = out.split(" ", 1)
            self.assertEqual((status, code_of(body)), ("403", "not_admin"), path)
            self.assertIn("--admin-key-file", body)
        self.assertEqual(c.node("p0")["state"], "ready")

    @attack.needs_second_user
    def test_another_user_cannot_use_the_socket_even_where_its_mode_allows(self):
        script = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
try:
    s.connect(sys.argv[1])
    s.sendall(b"GET /cluster HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    print("answer", s.recv(100))
except OSError as error:
    print("refused", type(error).__name__)
"""
        path = operators_socket(c)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode), 0o700)
        code, out, err = attack.as_other_user(script, path)
        self.assertEqual(out.strip(), "refused PermissionError", err)
        opened = [c.dir, os.path.dirname(path), path]
        modes = [stat.S_IMODE(os.stat(p).st_mode) for p in opened]
        try:
            for p in opened:
                os.chmod(p, 0o777)
            code, out, err = attack.as_other_user(script, path)
            self.assertIn(out.strip(), ("answer b''", "refused ConnectionResetError", "refused BrokenPipeError"), err)
        finally:
            for p, mode in zip(opened, modes):
                os.chmod(p, mode)
        self.assertEqual(c.socket_request("GET", "/cluster")[0], 200)

    def test_the_verbs_find_the_cluster_of_their_run_directory_whatever_listens_on_8000(self):
        for words in (["ps"], ["why", c.complete("Once", max_tokens=2)["id"]], ["drain", "p0"], ["undrain", "p0"]):
            code, out, err = run("mc-conductor", *words, env=c.env)
            self.assertEqual(code, 0, f"{words}: {err}")
        self.assertIn("p0", run("mc-conductor", "ps", env=c.env)[1].decode())

    def test_a_verb_without_its_cluster_says_which_directory_it_looked_in(self):
        with tempfile.TemporaryDirectory(prefix="mct-doors-") as folder:
            code, _, err = run("mc-conductor", "ps", env=dict(os.environ, MCT_RUN_DIR=folder + "/run"))
        self.assertEqual(code, 3, err)
        self.assertIn("MC2101", err)
        self.assertIn(folder, err)
        self.assertIn("MCT_RUN_DIR", err)

    def test_clients_at_the_port_and_operators_at_the_socket_are_served_at_once(self):
        count, wrong = attack.count(20, 500), []
        prompt = {"prompt": "Once upon a time " * 20, "max_tokens": 2, "temperature": 0}

        def client(path, body):
            for _ in range(count):
                status, _, answer = c.post(path, body)
                if status != 200:
                    wrong.append((path, status, answer))

        def operator(method, path, body):
            for _ in range(count):
                status, answer = c.socket_request(method, path, body)
                if status != 200:
                    wrong.append((path, status, answer))

        calls = [(client, ("/v1/completions", prompt)), (client, ("/tokenize", {"prompt": prompt["prompt"]}))]
        calls += [(operator, ("POST", "/admin/explain", prompt)), (operator, ("GET", "/cluster", None))]
        calls += [(operator, ("GET", "/metrics", None)), (operator, ("POST", "/v1/completions", prompt))]
        threads = [threading.Thread(target=call, args=args) for call, args in calls]
        for t in threads:
            t.start()
        for t in threads:
            t.join(300)
        self.assertEqual(wrong, [])

    def test_a_worker_has_no_admin_paths(self):
        for method, path in (("POST", "/admin/drain"), ("GET", "/cluster"), ("GET", "/x"), ("POST", "/v1/completions")):
            self.assertEqual(ask(worker_port("d0"), method, path)[0], 404, path)

    def test_a_second_conductor_in_one_run_directory_takes_nothing_from_the_first(self):
        second = ["mc-conductor", "--http", "127.0.0.1:0", "--listen", "tcp://127.0.0.1:0", "--check"]
        code, _, err = run(*second, env=c.env)
        self.assertNotEqual(code, 0)
        self.assertIn("MC5001", err)
        self.assertIn("MCT_RUN_DIR", err)
        self.assertEqual(c.socket_request("GET", "/cluster")[0], 200)


class WebPages(unittest.TestCase):
    def ports(self):
        return {"conductor": c.url_port, "worker": worker_port("p0")}

    def test_a_name_that_was_rebound_to_loopback_is_refused(self):
        for who, port in self.ports().items():
            strangers = ["evil.example", f"evil.example:{port}", "127.evil.example", "localhost.evil.example"]
            for host in (*strangers, "", "[::2]"):
                status, body = ask(port, "GET", "/metrics", Host=host)
                self.assertEqual((status, code_of(body)), (403, "foreign_site"), f"{who} {host!r}")
            for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1", f"127.0.0.2:{port}", f"[::1]:{port}"):
                self.assertEqual(ask(port, "GET", "/metrics", Host=host)[0], 200, f"{who} {host}")

    def test_the_refusal_comes_before_every_path(self):
        paths = (("POST", "/v1/completions"), ("GET", "/health"), ("GET", "/nothing"), ("OPTIONS", "/health"))
        for method, path in paths:
            self.assertEqual(ask(c.url_port, method, path, Host="evil.example")[0], 403, path)

    def test_a_missing_host_is_a_bad_request_and_http_1_0_needs_none(self):
        for port in self.ports().values():
            self.assertEqual(ask(port, "GET", "/livez", Host=None)[0], 400)
            with attack.dial(port) as link:
                link.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
                self.assertTrue(link.makefile("rb").read().startswith(b"HTTP/1.1 200 "))

    def test_a_page_of_another_origin_is_refused(self):
        body = {"prompt": "Once", "max_tokens": 1}
        port = c.url_port
        for origin in (
            "https://evil.example",
            "null",
            f"http://localhost:{port}.evil.example",
            f"http://localhost:{port + 1}",
            f"http://127.0.0.1:{port}",  # another site than the name that was asked
            "http://localhost",
        ):
            headers = {"Host": f"localhost:{port}", "Origin": origin}
            status, answer = ask(port, "POST", "/v1/completions", body, **headers)
            self.assertEqual((status, code_of(answer)), (403, "foreign_site"), origin)
        headers = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
        self.assertEqual(ask(port, "POST", "/v1/completions", body, **headers)[0], 200)
        self.assertEqual(ask(worker_port("p0"), "GET", "/metrics", Origin="https://evil.example")[0], 403)

    def test_names_and_origins_that_were_allowed_pass(self):
        flags = ["--allowed-host", "chat.example", "--allowed-origin", "https://chat.example,https://other.example"]
        with Cluster(roles=["conductor"], conductor=flags) as mine:
            for headers in (
                {"Host": "chat.example"},
                {"Host": "CHAT.example:443", "Origin": "https://chat.example"},
                {"Host": "localhost", "Origin": "https://other.example"},
            ):
                self.assertEqual(ask(mine.url_port, "GET", "/v1/models", **headers)[0], 200, headers)
            for headers in ({"Host": "chat.example.evil"}, {"Host": "localhost", "Origin": "http://other.example"}):
                self.assertEqual(ask(mine.url_port, "GET", "/v1/models", **headers)[0], 403, headers)


class Tenants(Folder):
    def test_a_tenant_reads_nothing_about_others(self):
        tenants, admin = self.write("keys.toml", KEYS), os.path.join(self.dir, "admin.key")
        self.assertEqual(run("mc-conductor", "keygen", "--admin", "-o", admin)[0], 0)
        with open(admin, encoding="utf-8") as file:
            admin_key = file.read().strip()
        flags = ["--api-keys", tenants, "--admin-key-file", admin]
        with Cluster("1p1d", conductor=flags, worker=SMALL) as mine:
            paths = ("/metrics", "/cluster", "/requests/x")
            for path in paths:
                self.assertEqual(ask(mine.url_port, "GET", path)[0], 401, path)
                status, body = ask(mine.url_port, "GET", path, Authorization="Bearer sk-tenant-a")
                self.assertEqual((status, code_of(body)), (403, "not_admin"), path)
                for key in ("sk-operator", admin_key):
                    status = ask(mine.url_port, "GET", path, Authorization=f"Bearer {key}")[0]
                    self.assertEqual(status, 404 if path.startswith("/requests") else 200, path)
            # Workers count every tenant's tokens.
            for node in ("p0", "d0"):
                port = int(mine.node(node)["http"].rsplit(":", 1)[1])
                for key, status in ((None, 403), ("sk-tenant-a", 403), (admin_key, 200)):
                    headers = {"Authorization": f"Bearer {key}"} if key else {}
                    self.assertEqual(ask(port, "GET", "/metrics", **headers)[0], status, (node, key))
                self.assertEqual(ask(port, "GET", "/livez")[0], 200)
            # The admin key is nobody's key for the API, and the socket neither.
            prompt = {"prompt": "Once", "max_tokens": 1}
            self.assertEqual(
                ask(mine.url_port, "POST", "/v1/completions", prompt, Authorization=f"Bearer {admin_key}")[0], 401
            )
            self.assertEqual(mine.socket_request("POST", "/v1/completions", prompt)[0], 401)
            url = f"http://127.0.0.1:{mine.url_port}"
            operator = self.write("operator.key", "sk-operator\n")
            for words in (["--admin-key-file", admin], ["--api-key-file", operator]):
                code, out, err = run("mc-conductor", "ps", "--url", url, *words)
                self.assertEqual(code, 0, err)
                self.assertNotIn("process list", err)
            code, _, err = run("mc-conductor", "ps", "--url", url, "--api-key", "sk-operator")
            self.assertEqual(code, 0, err)
            self.assertIn("process list", err)
            code, _, err = run("mc-conductor", "ps", "--url", url, env=dict(os.environ, MCT_API_KEY="sk-operator"))
            self.assertEqual(code, 0, err)
            self.assertNotIn("process list", err)


    def test_a_stranger_is_refused_before_the_body_is_read(self):
        flags = ["--api-keys", self.write("keys.toml", KEYS)]
        with Cluster(roles=["conductor"], conductor=flags) as mine:
            for path, status in (("/v1/completions", 401), ("/nowhere", 404)):
                with attack.dial(mine.url_port, timeout=60) as link:
                    link.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n".encode())
                    self.assertIn(f"HTTP/1.1 {status} ".encode(), link.recv(4096), path)

    def test_a_worker_started_by_hand_learns_that_there_are_tenants(self):
        tenants = self.write("keys.toml", KEYS)
        with Cluster(roles=["conductor", "p0", "d0"], conductor=["--api-keys", tenants], worker=SMALL) as mine:
            for node in ("p0", "d0"):
                port = int(mine.node(node)["http"].rsplit(":", 1)[1])
                # The conductor lists a node before the node has read its welcome. No request comes before that.
                def refused(port=port):
                    status, body = ask(port, "GET", "/metrics", Authorization="Bearer mcadmin-of-another")
                    return body if status == 403 else None

                answer = until(refused, 60, f"{node} locks its counts")
                self.assertIn(b"start this program with --admin-key-file", answer)
            self.assertIn(b"no API key", ask(mine.url_port, "GET", "/v1/models")[1])
            unknown = ask(mine.url_port, "GET", "/v1/models", Authorization="Bearer sk-nobody-has-it")[1]
            self.assertIn(b"unknown API key", unknown)


class KeyFiles(Folder):
    def test_keygen_makes_private_files_and_overwrites_none(self):
        for kind in ([], ["--admin"]):
            path = os.path.join(self.dir, "new" + "".join(kind))
            self.assertEqual(run("mc-conductor", "keygen", *kind, "-o", path)[0], 0)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
            before = open(path, encoding="utf-8").read()
            code, _, err = run("mc-conductor", "keygen", *kind, "-o", path)
            self.assertEqual(code, 2, err)
            self.assertIn("MC1006", err)
            self.assertEqual(open(path, encoding="utf-8").read(), before)
            link = path + ".link"
            os.symlink(path + ".elsewhere", link)
            self.assertNotEqual(run("mc-conductor", "keygen", *kind, "-o", link)[0], 0)
            self.assertFalse(os.path.exists(path + ".elsewhere"))

    def test_a_redirected_key_set_is_private_too(self):
        path = os.path.join(self.dir, "cluster.key")
        with open(path, "w", encoding="utf-8") as file:
            os.chmod(path, 0o644)
            subprocess.run([cluster.program("mc-conductor"), "keygen"], stdout=file, check=True)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)

    @attack.needs_second_user
    def test_key_files_of_another_user_are_refused(self):
        for flag, text in (("--api-keys", KEYS), ("--admin-key-file", "an-admin-key\n")):
            path = self.write("foreign" + flag, text, uid=attack.OTHER_UID)
            # Root may read everybody's files, so the program runs as the first user who is not the owner.
            code, _, err = run("mc-conductor", "--http", "127.0.0.1:0", flag, path, "--check", env=self.env)
            self.assertEqual(code, 2, err)
            self.assertIn("MC1006", err)
            self.assertIn(f"belongs to user {attack.OTHER_UID}", err)


class HalfClosedClients(unittest.TestCase):
    def exchange(self, request, port=None):
        with attack.dial(port or c.url_port, timeout=60) as link:
            link.sendall(request)
            link.shutdown(socket.SHUT_WR)
            return link.makefile("rb").read()

    def post(self, body, version="1.1"):
        data = json.dumps({"prompt": "Once", "temperature": 0, "ignore_eos": True, **body}).encode()
        head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        return head.encode() + data

    def test_a_client_that_closed_its_sending_side_gets_its_answer(self):
        for version in ("1.1", "1.0"):
            for tokens in (1, 64):
                answer = self.exchange(self.post({"max_tokens": tokens}, version))
                self.assertIn(b"HTTP/1.1 200 OK\r\n", answer)
                whole = json.loads(answer[answer.rindex(b"\r\n\r\n") :])
                self.assertEqual(whole["usage"]["completion_tokens"], tokens)
            stream = self.exchange(self.post({"max_tokens": 64, "stream": True}, version))
            self.assertIn(b"data: [DONE]", stream)

    def test_pipelined_requests_are_all_answered_after_the_end_of_input(self):
        for count in (2, 5):
            answer = self.exchange(self.post({"max_tokens": 4}) * count)
            self.assertEqual(len(re.findall(rb"HTTP/1.1 200 OK\r\n", answer)), count)

    def test_a_client_that_is_gone_is_still_noticed(self):
        for version, stream in (("1.1", False), ("1.1", True), ("1.0", False), ("1.0", True)):
            before = c.cluster()["totals"]
            for tries in range(1, 6):  # the host may not run this client until the request has ended by itself
                link = attack.dial(c.url_port)
                link.sendall(self.post({"max_tokens": 6000, "stream": stream}, version))
                until(lambda: c.cluster()["totals"]["submitted"] >= before["submitted"] + tries, 60, "the request runs")
                link.close()
                until(lambda: c.cluster()["requests_unfinished"] == 0, 60, "the request ended")
                if c.cluster()["totals"]["cancelled"] > before["cancelled"]:
                    break
            self.assertEqual(c.cluster()["totals"]["cancelled"], before["cancelled"] + 1)


class RequestIds(unittest.TestCase):
    def test_ids_are_unique_and_the_answer_bears_the_one_of_the_header(self):
        count = attack.count(200, 5000)
        seen, lock = set(), threading.Lock()

        def some():
            link = http.client.HTTPConnection("127.0.0.1", c.url_port, timeout=60)
            for _ in range(count // 4):
                link.request("GET", "/livez")
                answer = link.getresponse()
                answer.read()
                with lock:
                    seen.add(answer.headers["x-request-id"])
            link.close()

        threads = [threading.Thread(target=some) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        self.assertEqual(len(seen), count // 4 * 4)
        secrets = {i[-22:] for i in seen}
        self.assertEqual(len(secrets), len(seen))
        self.assertTrue(all(re.fullmatch(r"req_[-\w]{28}", i) for i in seen))
        _, headers, answer = c.post("/v1/completions", {"prompt": "Once", "max_tokens": 1})
        self.assertEqual("cmpl-" + headers["x-request-id"].removeprefix("req_"), answer["id"])


if __name__ == "__main__":
    unittest.main(verbosity=2)

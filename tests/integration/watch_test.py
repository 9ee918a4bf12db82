#!/usr/bin/env python3
"""A live cluster can be watched: its log names every change of membership and, at debug, the life of each request;
its verbs show requests that run and that ended."""

import fcntl
import http.server
import json
import os
import pty
import signal
import socket
import stat
import struct
import subprocess
import termios
import threading
import time
import unittest

import cluster
from cluster import Cluster, until


def rest_of(terminal):
    """All that a terminal shows whose program has ended."""
    screen = b""
    try:
        while data := os.read(terminal, 4096):
            screen += data
    except OSError:  # all was read
        os.close(terminal)
    return screen


class SlowConductor(http.server.BaseHTTPRequestHandler):
    """Takes every drain, and shows a node that stays busy. Each answer takes 0.4 s."""

    def answer(self, data):
        time.sleep(0.4)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(b"{}")

    def do_GET(self):
        self.answer(b'{"nodes":[{"id":"d0","requests":3,"running":2,"waiting":1}]}')

    def log_message(self, *_):
        pass


class Drain(unittest.TestCase):
    def test_a_drain_whose_time_passed_before_the_first_look_says_what_still_runs(self):
        server = http.server.HTTPServer(("127.0.0.1", 0), SlowConductor)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        url = f"http://127.0.0.1:{server.server_port}"
        code, out, err = cluster.run("mc-conductor", "drain", "d0", "--wait", "--timeout", "200ms", "--url", url)
        self.assertEqual((code, out), (1, b"d0 is draining\n"), err)
        self.assertIn("d0 still has 3 requests", err)


class Watched(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(
            roles=["conductor", "p0", "d0"],
            conductor=["--log-level", "debug"],
        )

    @classmethod
    def tearDownClass(cls):
        cls.c.close()

    def log(self, name="conductor"):
        return self.c.processes[name].text()

    def said(self, *texts, name="conductor"):
        """A line of the log with all of these."""
        return lambda: any(all(t in line for t in texts) for line in self.log(name).splitlines())

    def verb(self, *words, expect=0):
        code, out, err = self.c.verb(*words)
        self.assertEqual(code, expect, err)
        return out.decode() if expect == 0 else err

    def test_every_change_of_membership_is_a_line(self):
        for name, role in (("p0", "prefill"), ("d0", "decode")):
            until(self.said("info", "node joined", f"name={name}", f"role={role}"), 60, f"{name} joined")
        c0 = self.c.start("c0")
        until(self.said("node joined", "name=c0"), 60, "c0 joined")
        c0.stop()
        until(self.said("node left", "name=c0"), 60, "c0 left")
        del self.c.processes["c0"]

    def test_a_machine_that_stands_still_loses_no_node(self):
        with Cluster(roles=["conductor", "p0", "d0"]) as c:
            before = c.processes["conductor"].text()
            everyone = [process.popen for process in c.processes.values()]
            for popen in everyone:
                popen.send_signal(signal.SIGSTOP)
            time.sleep(4)
            for popen in everyone:
                popen.send_signal(signal.SIGCONT)
            self.assertEqual(c.complete(prompt="Once", max_tokens=2)["usage"]["completion_tokens"], 2)
            c.wait_quiet()  # the conductor has heard both nodes again
            log = c.processes["conductor"].text()[len(before) :]
            self.assertNotIn("node left", log)
            self.assertNotIn("node lost", log)

    def test_the_life_of_a_request_is_lines_under_one_id(self):
        status, headers, data = self.c.request(
            "POST", "/v1/completions", {"prompt": "Once upon", "max_tokens": 4}, {"x-request-id": "mine-1"}
        )
        self.assertEqual((status, headers["x-request-id"]), (200, "mine-1"))
        req = "req_" + json.loads(data)["id"].removeprefix("cmpl-")
        for event in (" request req", " first token ", " request ended "):
            until(self.said("debug", event, f"req={req}"), 60, event)
        for name in ("mine-1", req, json.loads(data)["id"]):
            self.assertIn(req, self.verb("why", name))
        self.assertIn(req, self.verb("why", "--last"))
        rows = [line for line in self.verb("why").splitlines() if req in line]
        self.assertEqual(len(rows), 1)
        self.assertRegex(rows[0], " (stop|length) +p0>d0 ")

    def test_a_running_request_shows_where_it_is(self):
        # On a busy machine the answer may be complete before the verbs look at it.
        for _ in range(10):
            stream = self.c.stream("/v1/completions", {"prompt": "Once upon", "max_tokens": 8000, "ignore_eos": True})
            first = json.loads(next(stream))
            record = json.loads(self.verb("why", first["id"], "--json"))
            rows = [json.loads(line) for line in self.verb("why", "--json").splitlines()]
            stream.close()
            shown = [r["outcome"] for r in rows if r["id"] == record["id"]]
            if shown == ["running"]:
                break
        self.assertEqual(shown, ["running"])
        self.assertEqual((record["outcome"], record["stage"]), ("running", "decode"))
        self.assertEqual((record["prefill_node"], record["decode_node"]), ("p0", "d0"))
        self.assertGreater(record["ttft_ms"], 0)

    def test_a_question_on_the_command_line_is_answered(self):
        answer = self.verb("ask", "Once upon a time", "-n", 5)
        self.assertTrue(answer.endswith("\n"))
        whole = json.loads(self.verb("ask", "Once upon a time", "-n", 5, "--json"))
        self.assertEqual(whole["usage"]["completion_tokens"], 5)
        ruled = json.loads(self.verb("ask", "Once upon a time", "--system", "Be brief.", "-n", 5, "--json"))
        self.assertGreater(ruled["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"])
        code, out, err = self.c.verb("ask", "-f", "-", "-n", 5, stdin=b"Once upon a time")
        self.assertEqual((code, out[-1:], err), (0, b"\n", ""))
        self.verb("ask", expect=2)
        self.verb("ask", "Once", "-f", "-", expect=2)
        self.assertIn("winner", self.verb("explain", "-p", "Once upon a time"))
        self.verb("explain", expect=2)
        for text, byte in ((b"{", "byte 2: "), (b'{"prompt": x}', "byte 12: ")):
            code, _, err = self.c.verb("explain", "-f", "-", stdin=text)
            self.assertEqual(code, 1)
            self.assertIn("error MC4001 malformed-json: the request is not JSON: " + byte, err)
            self.assertIn("where: -f -\n", err)

    def test_no_table_is_lost_on_a_full_disk(self):
        words = (["ps"], ["why"], ["explain", "-p", "Once"], ["top", "--once", "--interval", "100ms"])
        with open("/dev/full", "wb") as full:
            for verb in words:
                done = subprocess.run(
                    [cluster.program("mc-conductor"), *verb],
                    stdout=full,
                    stderr=subprocess.PIPE,
                    env=self.c.env,
                    timeout=60,
                )
                self.assertEqual(done.returncode, 1, verb)
                self.assertIn(b"MC5004 disk-full", done.stderr, verb)

    def test_the_screen_of_top_has_rates_nodes_and_requests(self):
        self.verb("ask", "Once upon a time", "-n", 2)
        screen = self.verb("top", "--once", "--interval", "100ms")
        rates = ("requests/s ", "tokens/s in ", "TTFT of the last ")
        for word in ("mc-tiny on cpu at http://", *rates, "p0 ", "d0 ", "req_"):
            self.assertIn(word, screen)
        self.assertLessEqual(max(map(len, screen.splitlines())), 80)
        self.assertIn(" TOTAL ms\n", screen)
        sample = json.loads(self.verb("top", "--once", "--interval", "100ms", "--json"))
        self.assertEqual((sample["type"], sample["model"]), ("sample", "mc-tiny"))
        self.assertGreaterEqual(sample["requests_per_s"], 0)
        self.assertIn("MC1002", self.verb("top", "--interval", "1ms", expect=2))

    def test_top_ends_at_an_interrupt_while_no_answer_comes(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            words = [cluster.program("mc-conductor"), "top", "--url", url]
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.c.env) as top:
                connection = server.accept()[0]
                connection.recv(1)  # the first look is under way
                top.send_signal(signal.SIGINT)
                self.assertEqual(top.wait(60), 130, top.stderr.read())
                connection.close()

    def test_top_ends_at_q_while_no_answer_comes_and_leaves_the_terminal_as_it_was(self):
        terminal, end = pty.openpty()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            words = [cluster.program("mc-conductor"), "top", "--url", url, "--interval", "100ms"]
            with subprocess.Popen(words, stdin=end, stdout=end, stderr=subprocess.PIPE, env=self.c.env) as top:
                os.close(end)
                for _ in range(2):  # the first look
                    with server.accept()[0] as connection:
                        connection.recv(4096)
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                connection = server.accept()[0]
                connection.recv(1)  # the second look is under way
                os.write(terminal, b"q")
                self.assertEqual(top.wait(60), 0, top.stderr.read())
                connection.close()
        screen = rest_of(terminal)
        self.assertNotIn(b"in time", screen)
        self.assertTrue(screen.endswith(b"\x1b[?25h\x1b[?1049l"), screen)

    def test_top_gives_a_terminal_back_that_takes_no_output(self):
        terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 500, 500, 0, 0))
        names = [{"name": f"p{number}", "role": "prefill"} for number in range(400)]
        body = json.dumps({"nodes": names, "requests": []}).encode()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            words = [cluster.program("mc-conductor"), "top", "--url", url, "--interval", "100ms"]
            with subprocess.Popen(words, stdin=end, stdout=end, stderr=subprocess.PIPE, env=self.c.env) as top:
                os.close(end)
                try:
                    while True:  # until a screen does not fit into what the terminal has not read
                        with server.accept()[0] as connection:
                            connection.recv(4096)
                            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                        server.settimeout(3)
                except TimeoutError:
                    top.send_signal(signal.SIGTERM)
                try:
                    self.assertEqual(top.wait(60), 130)
                finally:
                    top.kill()  # the end of `with` would wait for it
        screen = rest_of(terminal)
        self.assertTrue(screen.endswith(b"\x1b[?25h\x1b[?1049l"), screen[-200:])

    def test_a_failed_handshake_is_logged_with_its_other_end(self):
        def is_named():  # the log has the failures whose count is a power of two
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(os.path.join(self.c.env["MCT_RUN_DIR"], "conductor"))
            return self.said("control handshake failed", f'from="process {os.getpid()}"')()

        until(is_named, 60, "the stranger is named")

    def test_an_answer_beyond_its_time_names_the_flag_that_gives_more(self):
        err = self.verb("ask", "Once", "-n", 2000, "--timeout", "1ms", expect=1)
        self.assertIn("MC4016 deadline-exceeded", err)
        self.assertIn("next:  raise --timeout, or lower -n", err)
        self.assertIn("MC1002", self.verb("ask", "Once", "--timeout", "2h", expect=2))
        self.assertIn("an answer has at least 1 token", self.verb("ask", "Once", "-n", 0, expect=2))

    def test_a_greedy_question_has_one_answer(self):
        words = ["ask", "The pass key is 7. What is the pass key?", "-n", 8, "--temperature", 0]
        self.assertEqual(len({self.verb(*words) for _ in range(3)}), 1)

    def test_drain_waits_until_nothing_runs(self):
        # On a busy machine the answer may be complete before the verb looks at the node.
        for _ in range(10):
            stream = self.c.stream("/v1/completions", {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True})
            next(stream)
            code, _, err = self.c.verb("drain", "d0", "--wait", "--timeout", "1s")
            if code == 1:
                break
            stream.close()
            self.verb("undrain", "d0")
        self.assertEqual(code, 1, err)
        self.assertIn("d0 still has 1 request", err)
        self.assertIn("d0 is drain", self.c.unmet())
        stream.close()
        self.assertIn("--timeout means nothing without --wait", self.verb("drain", "d0", "--timeout", "1s", expect=2))
        out = self.verb("drain", "d0", "p0", "--wait")
        said = [f"{name} is {state}" for state in ("draining", "drained") for name in ("d0", "p0")]
        self.assertEqual(out.splitlines(), said)
        until(self.said("node is drain", "name=p0"), 60, "its line")
        self.assertEqual(len(self.verb("undrain", "d0", "p0").splitlines()), 2)
        self.verb("wait")

    def test_ps_gives_the_url_of_each_node(self):
        rows = [json.loads(line) for line in self.verb("ps", "--json").splitlines()]
        for row in rows[:-1]:
            self.assertEqual(row["url"], "http://" + row["http"])

    def test_the_metrics_of_a_node_that_the_conductor_named_bear_its_name(self):
        with Cluster("1p1d") as c:
            text = lambda: c.socket_request("GET", "/metrics", node=c.node("d0"))[1].decode()
            until(lambda: 'mc_build_info{' in text() and 'engine="decode"' not in text(), 60, "its labels")
            self.assertIn('engine="d0"', text())

    def test_pages_that_only_a_conductor_has_are_404_on_a_node(self):
        for method, path in (("GET", "/cluster"), ("GET", "/requests"), ("POST", "/admin/drain")):
            status, data = self.c.socket_request(method, path, {} if method == "POST" else None, node=self.c.node("p0"))
            self.assertEqual((status, json.loads(data)["error"]["code"]), (404, "not_found"), path)


class Stops(unittest.TestCase):
    def test_a_dump_is_written_whatever_the_log_level_is(self):
        quiet = ["--log-level", "error"]
        with Cluster(roles=["conductor", "p0", "d0"], conductor=quiet, worker=quiet) as c:
            c.complete("Once upon", max_tokens=2)
            for name, said in (("conductor", "node p0 prefill ready control="), ("d0", "peer p0 control=")):
                c.processes[name].popen.send_signal(signal.SIGUSR1)
                until(lambda: said in c.processes[name].text(), 60, f"dump of {name}: {c.processes[name].text()}")
                self.assertIn("state at SIGUSR1", c.processes[name].text())

    def test_a_start_takes_few_lines(self):
        with Cluster(roles=["conductor", "p0", "d0", "c0"]) as c:
            for name, process in c.processes.items():
                self.assertLessEqual(len(process.text().splitlines()), 6, f"{name}:\n{process.text()}")
        with Cluster("2p2d1c") as c:
            log = c.processes["conductor"].text()
            self.assertLessEqual(len(log.splitlines()), 30, log)

    def test_a_stop_leaves_no_socket(self):
        with Cluster(roles=["conductor", "p0", "d0", "c0"]) as c:
            c.complete("Once upon", max_tokens=2)
            sockets = lambda: [entry.name for entry in os.scandir(c.env["MCT_RUN_DIR"])
                               if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)]
            self.assertNotEqual(sockets(), [])
            for process in reversed(c.processes.values()):  # the conductor last
                self.assertEqual(process.stop(), 0, process.tail())
            self.assertEqual(sockets(), [])

    def test_a_killed_node_is_named_by_its_process_and_not_as_a_lost_message(self):
        with Cluster(roles=["conductor", "p0", "p1", "d0"]) as c:
            c.complete("Once upon", max_tokens=2, mc={"pin": {"prefill": "p1"}})
            c.processes["p1"].kill()
            log = c.processes["conductor"].text
            until(lambda: "node left name=p1" in log(), 60, lambda: f"its line in\n{log()}")
            why = r"(connection to process \d+ is closed|connection closed)"
            self.assertRegex(log(), r'node left name=p1 .*detail="' + why)
            self.assertNotIn("message lost", log())

    def test_a_stop_says_what_it_waits_for(self):
        # On a busy machine the answer may be complete before either signal.
        for _ in range(5):
            log = self.stopped_twice()
            if " stage=decode code=draining " in log:
                break
        self.assertIn("draining; another signal stops now requests=1 most_s=", log)
        self.assertIn(" stage=decode code=draining ", log)

    def stopped_twice(self):
        """The log of a conductor that gets one signal while an answer is made and another one while it waits."""
        with Cluster("1p1d") as c:
            stream = c.stream("/v1/completions", {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True})
            next(stream)
            conductor = c.processes["conductor"]
            conductor.popen.send_signal(signal.SIGTERM)
            waits = lambda: "draining; another signal stops now requests=1 most_s=" in conductor.text()
            until(lambda: waits() or conductor.popen.poll() is not None, 60, "its line")
            if conductor.popen.poll() is None:
                conductor.popen.send_signal(signal.SIGTERM)
            self.assertEqual(conductor.popen.wait(60), 0)
            self.assertIn("info mc-conductor: stopped", conductor.text())
            self.assertNotIn("message lost", conductor.text())
            stream.close()
            return conductor.text()

    def test_the_log_tells_a_sealed_data_connection(self):
        tcp = ["--transport", "tcp", "--tcp-seal", "on"]
        with Cluster(roles=["conductor", "p0", "d0"], worker=tcp) as c:
            logs = lambda: c.processes["p0"].text()
            until(lambda: 'data connection up peer=' in logs() and 'via="tcp, sealed: ' in logs(), 60, "its line")

    def test_a_data_connection_over_shared_memory_is_no_news(self):
        with Cluster(roles=["conductor", "p0", "d0"]) as c:
            c.complete(ids=[5, 6, 7] * 40, max_tokens=4)
            for name in ("p0", "d0"):
                self.assertNotIn("data connection up", c.processes[name].text())

    def test_a_data_connection_that_is_refused_is_warned_about(self):
        tcp = ["--transport", "tcp", "--tcp-seal"]
        with Cluster(roles=["conductor"]) as c:
            c.start("p0", *tcp, "on")
            c.start("d0", *tcp, "off")
            c.wait_nodes()
            logs = lambda: c.processes["p0"].text() + c.processes["d0"].text()
            until(lambda: "warn mc-" in logs() and "data connection refused peer=" in logs(), 60, "the warning")
            self.assertIn("the same --tcp-seal", logs())
            errors = lambda: [node["last_error"] for node in c.cluster()["nodes"]]
            until(lambda: any("refused: " in e and "tcp_seal on" in e for e in errors()), 60, "the error in ps")

    def test_nodes_without_a_common_transport_are_named_and_not_used(self):
        with Cluster(roles=["conductor"]) as c:
            c.start("p0", "--transport", "tcp")
            c.start("d0", "--transport", "shm")
            c.wait_nodes()
            for name, other in (("p0", "d0"), ("d0", "p0")):
                log = c.processes[name].text
                until(lambda: f"no data connection can be made peer={other} " in log(), 60, "the warning")
                self.assertIn("MC2110 transport-unusable: no transport reaches it: ", log())
            errors = lambda: [node["last_error"] for node in c.cluster()["nodes"]]
            until(lambda: all("MC2110" in e for e in errors()), 60, "the error in ps")
            began = time.monotonic()
            status, _, body = c.request("POST", "/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2})
            self.assertEqual(status, 503)
            why = "no data connection to decode node d0: MC2110 transport-unusable: no transport reaches it: "
            self.assertIn(why, body.decode())
            self.assertLess(time.monotonic() - began, 7)  # the hand-over that is never announced takes 8 s
            # A node that both reach serves.
            c.start("d1", "--transport", "tcp")
            body = {"prompt": [5, 6, 7], "max_tokens": 2}
            until(lambda: c.request("POST", "/v1/completions", body)[0] == 200, 60, "an answer of d1")

    def test_a_node_that_other_hosts_cannot_reach_is_warned_about(self):
        with Cluster() as c:
            key = os.path.join(c.dir, "cluster.key")
            self.assertEqual(c.verb("keygen", "-o", key)[0], 0)
            words = ["mc-cache", "--conductor", "tcp://192.0.2.1:7700", "--auth", key, "--http", "127.0.0.1:0"]
            node = c.processes["c0"] = c.spawn(words)
            until(lambda: "nodes of other hosts cannot reach this one" in node.text(), 60, "the warning")
            self.assertIn("give --bind an address of this host", node.text())

    @unittest.skipIf(os.geteuid() != 0, "needs another user")
    def test_the_socket_of_another_user_is_refused_at_once(self):
        with Cluster(roles=["conductor"]) as c:
            os.chmod(c.dir, 0o755)
            os.mkdir(os.path.join(c.dir, "own"), 0o700)
            os.chown(os.path.join(c.dir, "own"), 65534, 65534)
            done = subprocess.run(
                [cluster.program("mc-cache"), "--conductor", f"ipc://{c.env['MCT_RUN_DIR']}/conductor"],
                env=dict(os.environ, MCT_RUN_DIR=os.path.join(c.dir, "own")),
                user=65534,
                cwd="/",
                capture_output=True,
                timeout=60,
            )
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(b"error MC2101 peer-unreachable: no permission to use ipc://", done.stderr)


if __name__ == "__main__":
    unittest.main()

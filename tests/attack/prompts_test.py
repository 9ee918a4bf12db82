#!/usr/bin/env python3
"""Prompts made to cost: large bodies beside small requests, bodies that trickle, deadlines that pass at the door,
programs that are stopped, tokenizers that blow up. Small requests go on, every request ends by its deadline with a
reason, memory stays in proportion to the body."""

import http.client
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

import attack
from cluster import ANSWER_S, Cluster, until
from kills_test import GRACE_MS, Idle, Waits, delayed_ms

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "lib", "model", "mc-tiny")
LARGE = 15 << 20
GRACE_S = 15  # beyond a deadline, on a machine that is crowded: a generous ceiling, what came is printed
FACTOR = 12  # bytes of memory for a byte of body
CHAT_FACTOR = 6  # the same for messages that cannot fit: no template sees them
BASE = 48 << 20  # arenas of the allocator, stacks of threads
TEXT = "It's 12 small words, one after another; and a few more of them.\n"


def text(size):
    return TEXT * (size // len(TEXT))


def note(what, values):
    values = sorted(values)
    middle = values[len(values) // 2] * 1e3
    print(f"{what}: median {middle:.1f} ms, most {values[-1] * 1e3:.1f} ms of {len(values)}", file=sys.stderr)


def peak(pid):
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak(pid):
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


def code_of(answer):
    return answer["error"]["code"]


class Large(threading.Thread):
    """One large request: when its last byte was sent and when its answer came."""

    def __init__(self, cluster, path, body, headers=None):
        super().__init__()
        self.cluster, self.path, self.headers = cluster, path, headers or {}
        self.data = json.dumps(body).encode()
        self.sent = self.answered = self.status = self.answer = None
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.url_port, timeout=120)
        self.began = time.monotonic()
        try:
            connection.request("POST", self.path, self.data, self.headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before its end: its answer is here
        self.sent = time.monotonic()
        answer = connection.getresponse()
        self.status = answer.status
        self.answer = json.loads(answer.read())
        self.answered = time.monotonic()
        connection.close()


class Prompts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("1p1d1c", worker=["--kv-mem", "64MiB", "--threads", "1"])
        cls.addClassCleanup(cls.cluster.close)
        cls.pid = cls.cluster.processes["conductor"].popen.pid
        cls.cluster.complete(ids=[5, 6, 7], max_tokens=2)

    def timed(self, method, path, body=None):
        began = time.monotonic()
        status, _, _ = self.cluster.request(method, path, body)
        self.assertEqual(status, 200)
        return time.monotonic() - began, began

    def test_small_requests_are_answered_while_large_ones_are_worked_on(self):
        c = self.cluster
        small = {"prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0}
        health, completions, between, rounds = [], [], 0, 0
        # On a crowded machine the client may not run between the last byte and the answer: more rounds follow then.
        while rounds < attack.count(3, 20) or (between == 0 and rounds < 30):
            rounds += 1
            large = [Large(c, "/tokenize", {"prompt": text(LARGE)})]  # one: between two, one thread answers others too
            until(lambda: any(one.sent for one in large), 60, "a body was sent")
            ends = []
            while any(one.is_alive() for one in large):
                for kind, call in ((health, ("GET", "/health")), (completions, ("POST", "/v1/completions", small))):
                    took, began = self.timed(*call)
                    kind.append(took)
                    ends.append((began, began + took))
            for one in large:
                one.join()
                self.assertIn(one.status, (200, 400, 429), one.answer)
                between += sum(1 for began, end in ends if one.sent < began and end < one.answered)
        note("health beside large bodies", health)
        note("small completions beside large bodies", completions)
        self.assertGreater(between, 0, "nobody was answered between a large body's last byte and its answer")
        self.assertLess(max(health + completions), GRACE_S)

    def test_a_prompt_that_cannot_fit_is_refused_by_its_length(self):
        for path, body in (
            ("/v1/completions", {"prompt": text(LARGE), "max_tokens": 1}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text(LARGE)}], "max_tokens": 1}),
        ):
            status, _, answer = self.cluster.post(path, body)
            self.assertEqual((status, code_of(answer)), (400, "context_length_exceeded"), answer)
        status, _, answer = self.cluster.post("/tokenize", {"prompt": "0 " * (LARGE // 2)})
        self.assertEqual((status, code_of(answer)), (400, "context_length_exceeded"), answer)
        self.assertIn("1048576 tokens", answer["error"]["message"])
        # A prompt that fits in the end is not refused: its last tokens are asked for.
        status, _, answer = self.cluster.post(
            "/v1/completions", {"prompt": text(1 << 20), "truncate_prompt_tokens": 9, "max_tokens": 1}
        )
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["usage"]["prompt_tokens"], 9)

    @attack.counts_memory
    def test_memory_is_in_proportion_to_the_body(self):
        for body in (text(LARGE), "a" * LARGE, "\u4e2d" * (LARGE // 3)):
            for path in ("/tokenize", "/v1/completions"):
                # Non-ASCII text is sent as it is: its escapes would be another, longer body.
                data = json.dumps({"prompt": body, "max_tokens": 1}, ensure_ascii=False).encode()
                forget_peak(self.pid)
                before = peak(self.pid)
                status, _, _ = self.cluster.request("POST", path, data)
                grown = peak(self.pid) - before
                print(f"{path} {body[:1]!r} {status}: {grown / len(data):.1f} bytes for a byte", file=sys.stderr)
                self.assertLess(grown, FACTOR * len(data) + BASE)

    @attack.counts_memory
    def test_messages_that_cannot_fit_cost_no_more_than_a_few_copies(self):
        for content in (text(LARGE), "a" * LARGE, [{"type": "text", "text": text(LARGE)}]):
            # /tokenize takes a longer text than a prompt may be, so it renders these.
            for path, factor in (("/v1/chat/completions", CHAT_FACTOR), ("/tokenize", FACTOR)):
                data = json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 1}).encode()
                # A conductor of its own: freed memory of an earlier request would hide what this one takes.
                with Cluster() as c:
                    c.start("conductor")
                    pid = c.processes["conductor"].popen.pid
                    before = peak(pid)
                    status, _, answer = c.post(path, data)
                    grown = peak(pid) - before
                self.assertEqual((status, code_of(answer)), (400, "context_length_exceeded"), answer)
                print(f"{path} chat: {grown / len(data):.1f} bytes for a byte", file=sys.stderr)
                self.assertLess(grown, factor * len(data) + (BASE if path == "/tokenize" else 0))

    def test_at_its_deadline_a_large_request_ends_wherever_it_is(self):
        many = [
            Large(self.cluster, "/v1/chat/completions", {"messages": [{"role": "user", "content": text(LARGE)}]}, h)
            for h in ({"x-mc-deadline-ms": "100"}, {"x-mc-deadline-ms": "400"}, {"x-mc-deadline-ms": "1"}) * 2
        ]
        for one in many:
            one.join(120)
            self.assertIn(one.status, (400, 429, 504), one.answer)
            if one.status == 504:
                self.assertRegex(one.answer["error"]["message"], "passed in stage (body|tokenise)")
            self.assertLess(one.answered - one.began, 0.4 + GRACE_S)
        self.assertIn(504, [one.status for one in many])
        # A busy host may have kept a worker silent for so long that it left the cluster.
        until(lambda: self.cluster.request("GET", "/health")[0] == 200, 60, "ready again")

    def exchange(self, parts, wait_s):
        """Sends the parts with so much time between them; the answer's bytes, and when it came."""
        with attack.dial(self.cluster.url_port, timeout=60) as s:
            began = time.monotonic()
            for i, part in enumerate(parts):
                if i > 0 and select.select([s], [], [], wait_s)[0]:
                    break  # the answer is here
                s.sendall(part)
            data = b""
            while b"\r\n\r\n" not in data or b"}" not in data:
                piece = s.recv(65536)
                if not piece:
                    break
                data += piece
            return data, time.monotonic() - began

    def test_a_deadline_counts_from_the_first_byte(self):
        body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 1, "mc": {"deadline_ms": 300}}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(body)
        for _ in range(5):  # a server that did not run for this second reads both parts at once
            data, _ = self.exchange([head + b"\r\n" + body[:9], body[9:]], 1)
            if b"stage body" in data:
                break
        self.assertIn(b" 504 ", data)
        self.assertIn(b"stage body", data)
        # By a header it is known before the body is there, and the body is not waited for.
        data, took = self.exchange([head + b"x-mc-deadline-ms: 300\r\n\r\n" + body[:9], body[9:]], 20)
        self.assertIn(b" 504 ", data)
        self.assertIn(b"stage body", data)
        self.assertLess(took, 0.3 + GRACE_S)

    def stopped(self, pid, seconds):
        os.kill(pid, signal.SIGSTOP)
        try:
            select.select([], [], [], seconds)  # the stop itself, which nothing can end
        finally:
            os.kill(pid, signal.SIGCONT)

    def ask(self, max_tokens, deadline_ms, result):
        """One request, whose end and times go to `result`."""
        body = {"prompt": [5, 6, 7], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        data = json.dumps(body | {"mc": {"deadline_ms": deadline_ms}}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.url_port, timeout=ANSWER_S)
        try:
            began = time.monotonic()
            connection.request("POST", "/v1/completions", data)
            sent = time.monotonic()
            answer = connection.getresponse()
            data = answer.read()
            result.update(status=answer.status, data=data, id=answer.getheader("x-request-id"), began=began, sent=sent,
                          took=time.monotonic() - began)
        finally:
            connection.close()

    def ask_over_stop(self, pid, seconds, deadline_ms, before):
        """One request around a stop of a process: sent before it, or during it. A client that the host started so late
        that a deadline within the stop ends behind it asks again."""
        for _ in range(10):
            result = self.ask_once_over_stop(pid, seconds, deadline_ms, before)
            passed = result["sent"] + deadline_ms / 1e3
            if before or deadline_ms >= seconds * 1e3 or passed < result["resumed"]:
                break
            self.recovers()
        return result

    def ask_once_over_stop(self, pid, seconds, deadline_ms, before):
        result = {}
        asker = threading.Thread(target=self.ask, args=(4000 if before else 2, deadline_ms, result))
        if before:
            asker.start()
            select.select([], [], [], 0.05)
            self.stopped(pid, seconds)
            resumed = time.monotonic()
        else:
            os.kill(pid, signal.SIGSTOP)
            try:
                asker.start()
                select.select([], [], [], seconds)
            finally:
                os.kill(pid, signal.SIGCONT)
                resumed = time.monotonic()
        asker.join(120)
        result["after"] = time.monotonic() - resumed
        result["resumed"] = resumed
        return result

    def recovers(self):
        until(lambda: self.cluster.request("GET", "/health")[0] == 200, 60, "the cluster is back")

    def test_after_a_stop_a_late_request_is_a_504(self):
        for seconds in attack.count((1.0,), (0.5, 1.0, 2.0, 5.0, 10.0)):
            deadline_ms = int(seconds * 500)
            for before in (True, False):
                got = self.ask_over_stop(self.pid, seconds, deadline_ms, before)
                print(f"conductor stopped {seconds} s, {'before' if before else 'during'}: {got['status']} "
                      f"{got['after'] * 1e3:.0f} ms after it", file=sys.stderr)
                self.assertEqual(got["status"], 504, got["data"][:300])
                self.assertLess(got["after"], GRACE_S)
                self.recovers()

    def workers(self):
        """{program: pid} of the cluster's workers."""
        found = {}
        for pid in attack.children(self.pid):
            with open(f"/proc/{pid}/comm") as name:
                found[name.read().strip()] = pid
        self.assertEqual(set(found), {"mc-prefill", "mc-decode", "mc-cache"})
        return found

    def check_end(self, got, deadline_ms, host):
        """By the conductor's own record, which counts from the first byte as the deadline does, the request ended in
        time: with an answer or a reason before its deadline, or with 504 at it. Returns how long it took."""
        self.assertIn(got["status"], (200, 503, 504), got["data"][:300])
        status, data = self.cluster.socket_request("GET", f"/requests/{got['id']}")
        self.assertEqual(status, 200, data)
        total_ms = json.loads(data)["total_ms"]
        passed = got["began"] + deadline_ms / 1e3
        delayed = delayed_ms(host, passed, got["began"] + total_ms / 1e3)
        what = f"{got['status']} after {total_ms:.1f} ms of {deadline_ms}, of which the host took {delayed:.1f}"
        self.assertLessEqual(total_ms, deadline_ms + GRACE_MS + delayed, what)
        if total_ms >= deadline_ms:
            self.assertEqual(got["status"], 504, what)
        return total_ms

    def test_a_stop_of_a_worker_ends_no_request_late(self):
        workers = self.workers()
        both = ("mc-prefill", "mc-decode")
        stops = attack.count([(0.5, both), (5.0, both[1:])], [(s, both) for s in (0.5, 1.0, 2.0, 5.0, 10.0)])
        with Idle() as idle, Waits(lambda: self.pid) as waits:
            for seconds, names in stops:  # after 3 s a silent worker leaves the cluster
                for name in names:
                    for deadline_ms in (int(seconds * 500), 20_000):
                        got = self.ask_over_stop(workers[name], seconds, deadline_ms, False)
                        print(f"{name} stopped {seconds} s, deadline {deadline_ms} ms: {got['status']} in "
                              f"{got['took'] * 1e3:.0f} ms", file=sys.stderr)
                        total_ms = self.check_end(got, deadline_ms, (idle, waits))
                        # All clients in a row may have asked too late.
                        if got["sent"] + deadline_ms / 1e3 < got["resumed"]:
                            self.assertNotEqual(got["status"], 200, "the worker was stopped until after the deadline")
                        if seconds >= 5 and deadline_ms < seconds * 1e3:  # the conductor had seconds to answer in
                            self.assertLess(total_ms, seconds * 1e3, "a request waited for the stopped worker")
                        self.recovers()

    def test_a_stop_of_a_cache_node_ends_no_request(self):
        pid = self.workers()["mc-cache"]
        for seconds in attack.count((0.5,), (0.5, 1.0, 2.0, 5.0, 10.0)):
            got = self.ask_over_stop(pid, seconds, 60_000, False)
            print(f"mc-cache stopped {seconds} s: {got['status']} in {got['took'] * 1e3:.0f} ms", file=sys.stderr)
            self.assertEqual(got["status"], 200, got["data"][:300])
            if seconds >= 5:
                self.assertLess(got["took"], seconds, "a request waited for the stopped cache node")
            until(lambda: "c0" in {n["id"] for n in self.cluster.cluster()["nodes"]}, 60, "the cache node is back")


class Tenants(unittest.TestCase):
    def test_tokenising_takes_from_the_quota(self):
        folder = tempfile.mkdtemp(prefix="mct-test-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "keys.toml")
        with open(path, "w") as keys:
            keys.write('[tenant.small]\nkeys = ["sk-small-1"]\ntokens_per_s = 1\nburst_tokens = 3000\nadmin = true\n')
        os.chmod(path, 0o600)
        with Cluster() as c:
            c.start("conductor", "--api-keys", path)
            key = {"Authorization": "Bearer sk-small-1"}
            body = {"prompt": text(100_000)}  # some 1,600 tokens of the quota
            ids = {"tokens": [5, 6, 7] * 8_000}  # some 1,100
            statuses = [c.request("POST", "/tokenize", body, key)[0] for _ in range(3)]
            self.assertEqual(statuses, [200, 429, 429])
            status, headers, answer = c.post("/detokenize", ids, headers=key)
            self.assertEqual(status, 200, answer)
            chat = {"messages": [{"role": "user", "content": text(100_000)}]}
            costs = {
                "/detokenize": ids,
                "/tokenize": chat,
                "/admin/explain": body,
                "/v1/completions": body,
                "/v1/chat/completions": chat,
                "/v1/embeddings": {"input": text(100_000)},
            }
            for path, costly in costs.items():
                status, headers, data = c.request("POST", path, costly, key)
                self.assertEqual((status, code_of(json.loads(data))), (429, "tenant_quota"), path)
                self.assertGreaterEqual(int(headers["retry-after"]), 1)


class Patterns(unittest.TestCase):
    def model_with(self, pattern):
        """A copy of mc-tiny whose tokenizer cuts text by this pattern."""
        folder = tempfile.mkdtemp(prefix="mct-test-")
        self.addCleanup(shutil.rmtree, folder)
        model = os.path.join(folder, "model")
        shutil.copytree(MODEL, model)
        with open(os.path.join(model, "tokenizer.json")) as file:
            tokenizer = json.load(file)
        tokenizer["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        }
        with open(os.path.join(model, "tokenizer.json"), "w") as file:
            json.dump(tokenizer, file)
        return model

    def test_many_costly_prompts_stop_nobody_else(self):
        with Cluster() as c:
            c.start("conductor", "-m", self.model_with(r"(?:a|a)*c|[\s\S]"))
            # The longest prompt that is not refused by itself: each letter doubles its cost, to nearly 200 ms.
            letters = next(n for n in range(8, 64) if c.post("/tokenize", {"prompt": "a" * n})[0] != 200) - 1
            self.assertGreater(letters, 12)
            body = {"prompt": ["a" * (letters - 1)] * 64, "max_tokens": 1}
            took, between, rounds = [], 0, 0
            while rounds < attack.count(3, 20) or (between == 0 and rounds < 30):  # more where the client did not run
                rounds += 1
                costly = Large(c, "/v1/completions", body)
                until(lambda: costly.sent, 60, "the body was sent")
                ends = []
                while costly.is_alive():
                    began = time.monotonic()
                    self.assertEqual(c.request("GET", "/livez")[0], 200)
                    ends.append((began, time.monotonic()))
                    took.append(ends[-1][1] - began)
                costly.join()
                self.assertEqual((costly.status, code_of(costly.answer)), (400, "pattern_cost"), costly.answer)
                between += sum(1 for began, end in ends if costly.sent < began and end < costly.answered)
            note("livez beside 64 costly prompts", took)
            self.assertGreater(between, 0, "nobody was answered between the body's last byte and its answer")

    def test_a_costly_prompt_moves_to_the_pool_and_is_served(self):
        with Cluster() as c:
            c.start("conductor", "-m", self.model_with(r"(?:a|a)*c|[\s\S]"))
            letters = next(n for n in range(8, 64) if c.post("/tokenize", {"prompt": "a" * n})[0] != 200) - 2
            for body in ({"prompt": "a" * letters}, {"messages": [{"role": "user", "content": "a" * letters}]}):
                status, _, answer = c.post("/tokenize", body)
                self.assertEqual(status, 200, answer)
            # A deadline is watched there.
            status, _, answer = c.post(
                "/v1/completions", {"prompt": "a" * letters, "max_tokens": 1, "mc": {"deadline_ms": 1}}
            )
            self.assertEqual((status, code_of(answer)), (504, "deadline_exceeded"), answer)

    def test_a_pattern_that_blows_up_is_an_error_of_that_request(self):
        with Cluster() as c:
            c.start("conductor", "-m", self.model_with(r"a*b|[\s\S]"))
            status, _, answer = c.post("/tokenize", {"prompt": "a" * (1 << 20)}, timeout=120)
            self.assertEqual((status, code_of(answer)), (400, "pattern_cost"), answer)
            self.assertNotIn("UTF-8", answer["error"]["message"])
            status, _, answer = c.post("/tokenize", {"prompt": "aaab"})
            self.assertEqual(status, 200, answer)


if __name__ == "__main__":
    unittest.main()

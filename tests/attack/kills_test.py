#!/usr/bin/env python3
"""kill -9 of any process, again and again, while clients ask without a pause.

Each answer is the single process's, or its beginning followed by an error that names a reason of the server; a
connection closes without one only when the conductor died. No request outlives its deadline by more than 100 ms, by the
conductor's own record of it, less what this host delayed an idle process at that time (measured beside) and what the
conductor's control loop waited for a processor. When the clients rest, nothing is leased, queued or leaked, those that
were not killed hold about as many descriptors and threads and as much memory as before, and the cluster serves.

MC_ATTACK_KILLS: how many (8, in the full tier 1,000). MC_ATTACK_SEED: whom, when and what is asked.
"""

import collections
import http.client
import json
import os
import subprocess
import sys
import threading
import time
import unittest

from attack import count, resident, seeded
from cluster import Cluster, Random, oracle, token_ids, until
from liar import GROWTH

KILLS = int(os.environ.get("MC_ATTACK_KILLS", count(8, 1000)))
CLIENTS = 5
REST = 12  # kills between two looks at what is left
ROLES = ["conductor", "c0", "p0", "p1", "d0", "d1"]
WORKER = ["--dtype", "f32", "--threads", "1", "--drain-timeout", "1s"]
ANSWER = 60  # tokens at most
GRACE_MS = 100
# Descriptors and threads that a survivor may have more of than at its first look: a connection that is being closed, a
# thread of a pool that starts when it is first used. One leaked at each kill is more.
FDS_MORE, THREADS_MORE = 4, 4
# Ends that a request may have when processes die: never an error of the client, never an internal one.
REASONS = {
    "no_prefill", "no_decode", "deadline_exceeded", "peer_lost", "node_failed", "kv_transfer", "draining", "queue_full",
    "conductor_lost",
}

# Prints how late a sleep of 5 ms ended, with the time, when that was more than 10 ms.
IDLE = """
import select, time
while True:
    began = time.monotonic()
    select.select([], [], [], 0.005)
    now = time.monotonic()
    if now - began > 0.015:
        print(now, now - began - 0.005, flush=True)
"""


class Idle:
    """An idle process that this host should never keep waiting: what it was delayed by, and when."""

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE, text=True)
        self.delays = collections.deque(maxlen=100_000)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        return self

    def read(self):
        for line in self.process.stdout:
            at, late = line.split()
            self.delays.append((float(at), float(late)))

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(60)
        self.reader.join(10)
        self.process.stdout.close()

    def delayed_ms(self, begin, end):
        """All delays that ended between the two, in sum: a conductor was kept as long at most by the same cause."""
        return 1e3 * sum(late for at, late in list(self.delays) if begin <= at <= end + late)


class Waits:
    """How long the control loop of a process waited for a processor, by the kernel's count. The loop is the process's
    first thread. `pid` is a function, as processes are killed and started again."""

    def __init__(self, pid):
        self.pid, self.end = pid, threading.Event()
        self.samples = collections.deque(maxlen=100_000)  # (time, pid, ms waited since its start)
        self.reader = threading.Thread(target=self.read, daemon=True)

    def __enter__(self):
        self.reader.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.reader.join(10)

    def read(self):
        while not self.end.wait(0.02):
            self.sample()

    def sample(self):
        pid = self.pid()
        try:
            with open(f"/proc/{pid}/task/{pid}/schedstat") as counts:
                waited_ms = int(counts.read().split()[1]) / 1e6
        except (OSError, IndexError):
            return  # it has ended, or the kernel does not count
        self.samples.append((time.monotonic(), pid, waited_ms))

    def waited_ms(self, begin, end):
        """From the last sample before `begin` to the first one after `end`, of the process that ran at `begin`."""
        self.sample()
        samples = list(self.samples)
        earlier = [sample for sample in samples if sample[0] <= begin] or samples[:1]
        if not earlier:
            return 0.0
        _, ran, before = earlier[-1]
        counts = [(at, waited) for at, pid, waited in samples if pid == ran]
        return next((waited for at, waited in counts if at >= end), counts[-1][1]) - before


class Held:
    """Descriptors, threads and memory of a process, which grow where those of a dead peer are never given back."""

    def __init__(self, pid):
        self.fds = len(os.listdir(f"/proc/{pid}/fd"))
        self.threads = len(os.listdir(f"/proc/{pid}/task"))
        self.memory = resident(pid)

    def more_than(self, before):
        """Names those that grew beyond their bound; "" when none did."""
        bounds = (("fds", FDS_MORE), ("threads", THREADS_MORE), ("memory", GROWTH))
        return ", ".join(f"{getattr(before, what)} {what} became {getattr(self, what)}" for what, most in bounds
                         if getattr(self, what) > getattr(before, what) + most)


def delayed_ms(host, begin, end):
    """Most that this host can have taken of the time from `begin` to `end`: its delays of an idle process, and the
    waits of the conductor, which may have another processor."""
    idle, waits = host
    return idle.delayed_ms(begin - 0.05, end + 0.05) + waits.waited_ms(begin - 0.05, end + 0.05)


class Client(threading.Thread):
    """Asks one request after the other; each becomes (request, tokens, end, times)."""

    def __init__(self, test, seed):
        super().__init__(daemon=True)
        self.test, self.draw = test, Random(seed)
        self.record = {}

    def run(self):
        while not self.test.resting.is_set():
            which, want = self.draw.below(len(self.test.prompts)), 1 + self.draw.below(ANSWER)
            deadline_ms = 300 + self.draw.below(8000)
            one = {"which": which, "want": want, "deadline_ms": deadline_ms, "tokens": [], "end": None, "late_ms": None}
            one["began"] = time.monotonic()
            try:
                self.ask(one)
            except (OSError, http.client.HTTPException) as error:
                one["end"] = ("closed", repr(error))
            one["ended"] = time.monotonic()
            if one["end"][0] != "closed":
                self.look_up(one)
            else:
                self.test.resting.wait(0.05)  # the conductor is gone: not a busy loop of refused connections
            self.test.ended.append(one)

    def ask(self, one):
        body = {"prompt": self.test.prompts[one["which"]], "max_tokens": one["want"], "temperature": 0}
        body.update(ignore_eos=True, stream=True, return_token_ids=True, mc={"deadline_ms": one["deadline_ms"]})
        connection = http.client.HTTPConnection("127.0.0.1", self.test.c.url_port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body).encode())
            self.read(connection.getresponse(), one)
        finally:
            connection.close()

    def read(self, answer, one):
        one["id"], one["status"] = answer.getheader("x-request-id"), answer.status
        if answer.status != 200:
            one["end"] = ("error", json.loads(answer.read())["error"])
            return
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                one["end"] = one["end"] or ("done", None)
                continue
            event = json.loads(line[6:])
            if "error" in event:
                one["end"] = ("error", event["error"])
                continue
            one["answer"] = event["id"]
            for choice in event["choices"]:
                one["tokens"] += choice.get("token_ids") or []
        one["end"] = one["end"] or ("closed", "no [DONE]")

    def look_up(self, one):
        """How long the request took by the conductor's record; a conductor that died since has none."""
        try:
            status, data = self.test.c.socket_request("GET", f"/requests/{one.get('answer') or one['id']}")
        except (OSError, http.client.HTTPException):
            return
        if status == 200:
            one["late_ms"] = json.loads(data)["total_ms"] - one["deadline_ms"]


class Kills(unittest.TestCase):
    def test_kills_cost_only_work_in_flight(self):
        draw = seeded("kills")
        pool = Random(draw.randrange(1 << 30))
        stem = pool.ids(300)
        self.prompts = [stem[: 64 * pool.below(5)] + pool.ids(20 + pool.below(200)) for _ in range(6)]
        self.expected = [oracle(ids, ANSWER) for ids in self.prompts]
        self.resting, self.ended, self.killed = threading.Event(), [], []
        totals = collections.Counter()
        worst = (0.0, None)
        with Idle() as idle, Cluster(roles=ROLES[:2]) as self.c, Waits(self.conductor_pid) as waits:
            for name in ROLES[2:]:
                self.c.start(name, *WORKER)
            self.c.wait_nodes()
            self.held = {}  # {process: what it held when it was first looked at}
            self.look_around()
            done = 0
            while done < KILLS:
                self.resting.clear()
                clients = [Client(self, draw.randrange(1 << 30)) for _ in range(CLIENTS)]
                for client in clients:
                    client.start()
                for _ in range(min(REST, KILLS - done)):
                    self.kill(ROLES[draw.randrange(len(ROLES))], draw)
                    done += 1
                self.resting.set()
                for client in clients:
                    client.join(90)
                    self.assertFalse(client.is_alive(), "a client hangs")
                for one in self.ended:
                    worst = max(worst, self.judge(one, (idle, waits), totals), key=lambda w: w[0])
                self.ended, self.killed = [], []
                self.look_around()
        print(f"{KILLS} kills, {sum(totals.values())} requests:", dict(totals))
        print(f"latest end {worst[0]:.1f} ms after its deadline, host's delay taken off: {worst[1]}")

    def conductor_pid(self):
        return self.c.processes["conductor"].popen.pid

    def kill(self, victim, draw):
        threading.Event().wait(draw.random() * 0.3)  # the moment is what the seed draws
        process = self.c.processes[victim]
        before = time.monotonic()
        process.kill()
        process.stop()
        self.c.start(victim, *([] if victim in ("conductor", "c0") else WORKER))
        if victim != "conductor":
            process = self.c.processes[victim]
            process.wait_ready()
        self.killed.append((victim, before, time.monotonic()))

    def judge(self, one, host, totals):
        """Counts how the request ended, and gives (ms after its deadline, why)."""
        kind, detail = one["end"]
        what = f"{one['end']} of {one['want']} tokens, deadline {one['deadline_ms']} ms, kills {self.killed}"
        expected = self.expected[one["which"]]
        self.assertEqual(one["tokens"], expected[: len(one["tokens"])], "wrong tokens: " + what)
        if kind == "done":
            self.assertEqual(len(one["tokens"]), one["want"], what)
            totals["done"] += 1
        elif kind == "error":
            self.assertIn(detail["code"], REASONS, what)
            self.assertGreaterEqual(one["status"] if one["status"] != 200 else 503, 429, what)
            totals[detail["code"]] += 1
        else:
            conductors = [k for k in self.killed if k[0] == "conductor"]
            self.assertTrue(any(b <= one["ended"] and one["began"] <= e for _, b, e in conductors), what)
            totals["closed"] += 1
        if one["late_ms"] is None:
            return 0.0, None
        begin = one["began"] + one["deadline_ms"] / 1e3
        delayed = delayed_ms(host, begin, begin + one["late_ms"] / 1e3) if one["late_ms"] > 0 else 0
        late = one["late_ms"] - delayed
        self.assertLessEqual(late, GRACE_MS, f"late: {what}; the host took {delayed:.0f} ms")
        return late, f"{one['late_ms']:.1f} ms late, {delayed:.1f} ms of them the host's"

    def look_around(self):
        self.c.wait_nodes()
        until(lambda: self.c.request("GET", "/health")[0] == 200, 60, "healthy")
        self.c.wait_quiet()
        answer = self.c.complete(ids=self.prompts[0], max_tokens=8)
        self.assertEqual(token_ids(answer), self.expected[0][:8])
        self.c.wait_quiet()
        self.look_for_leaks()

    def look_for_leaks(self):
        """Compares each process with itself at its first look, at which all of them rested as they do now."""
        for name, process in self.c.processes.items():
            pid = process.popen.pid
            before = self.held.setdefault(process, Held(pid))  # numbers of processes come again, after 32,768 others
            # A connection to a process that died closes when its end is read.
            until(lambda: not Held(pid).more_than(before), 60, lambda: f"{name}: {Held(pid).more_than(before)}")


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""Drives the real programs: start, ask, kill, look. Python standard library only.

Every wait has a deadline and waits for a condition, never for a while. A Cluster owns a run directory and
its processes, and ends them when it is left:

    with Cluster("2p2d1c", worker=["--dtype", "f32"]) as c:
        answer = c.complete(ids=[5, 17, 9], max_tokens=8)
"""

import atexit
import functools
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

BUILD = os.environ.get("MC_BUILD", os.path.join(os.path.dirname(__file__), "..", "..", "build"))
SKIP = 77
FULL = os.environ.get("MC_TEST_FULL") == "1"
# A folder that keeps the logs of every process of a test: they tell why a test failed that fails rarely.
LOGS = os.environ.get("MC_TEST_LOGS")
START_S = 300  # most that a start takes on a machine whose processors others use


def is_sanitized():
    """Were the programs under test built with a sanitizer?"""
    cache = os.path.join(BUILD, "CMakeCache.txt")
    if not os.path.exists(cache):
        return False
    with open(cache, encoding="utf-8") as lines:
        return any(line.startswith("MC_SANITIZE:") and line.strip().partition("=")[2] for line in lines)


# Most that one answer takes, below the server's default deadline of 10 minutes. Programs compute ten times as long
# under ThreadSanitizer.
ANSWER_S = 600 if is_sanitized() else 300


def count(quick, full):
    """How often: `quick` in the tier that CI runs, `full` in scripts/test --full, which sets MC_TEST_FULL=1."""
    return full if FULL else quick


def program(name):
    path = os.path.join(BUILD, name)
    if not os.access(path, os.X_OK):
        print(f"{path} is not built", file=sys.stderr)
        sys.exit(SKIP)
    return path


def run(*words, stdin=None, timeout=300, env=None):
    """One command to its end: (exit code, stdout bytes, stderr text)."""
    done = subprocess.run(
        [program(words[0]), *map(str, words[1:])], input=stdin, capture_output=True, timeout=timeout, env=env
    )
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


@functools.cache
def shallow_model():
    """The folder of a model of three layers of random weights, for tests that compute in the emulator: their time grows
    with each width, and mc-tiny takes four times as long. The inner width is no multiple of a kernel's tile."""
    folder = tempfile.mkdtemp(prefix="mct-shallow-")
    atexit.register(shutil.rmtree, folder)
    shape = "--layers 3 --hidden 128 --intermediate 136 --heads 4 --kv-heads 2 --head-dim 64 --tied".split()
    code, _, err = run("mc-bench", "mkmodel", *shape, "-o", folder)
    assert code == 0, err
    return folder


def until(condition, timeout, what):
    """Polls a condition that has no event of its own; fails by name. `what` may be a function, called on failure."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")
        select.select([], [], [], 0.02)


class Process:
    def __init__(self, words, env, log, **popen):
        self.words = words
        self.log = open(log, "ab")
        self.log_path = log
        self.popen = subprocess.Popen(
            [program(words[0]), *words[1:]],
            **{"stdout": subprocess.PIPE, "stderr": self.log, "env": env, **popen},
        )
        self.ready = None

    def wait_ready(self, timeout=START_S):
        """Reads the ready line."""
        deadline = time.monotonic() + timeout
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.popen.stdout], [], [], left)[0]:
                raise AssertionError(f"{self.words[0]} not ready within {timeout} s\n{self.tail()}")
            byte = os.read(self.popen.stdout.fileno(), 1)
            if not byte:
                raise AssertionError(
                    f"{self.words[0]} ended with {self.popen.wait()} before it was ready\n{self.tail()}"
                )
            line += byte
        self.ready = json.loads(line)
        return self.ready

    def text(self):
        """The log of the process so far."""
        with open(self.log_path, errors="replace") as log:
            return log.read()

    def tail(self):
        return "".join(self.text().splitlines(keepends=True)[-15:])

    def kill(self):
        self.popen.kill()
        self.popen.wait(60)

    def stop(self, timeout=60):
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(60)
            raise AssertionError(f"{self.words[0]} did not stop within {timeout} s of SIGTERM\n{self.tail()}")
        finally:
            self.close()

    def close(self):
        """Closes what this side holds of a process that has ended."""
        self.popen.stdout.close()
        self.log.close()


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path, timeout=ANSWER_S):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Cluster:
    """`shape` None starts nothing; start() adds single processes, in any order.

    Workers start with a cost profile, so that they begin to serve earlier, and what other processes of this host do
    moves no request to another node. `measures`: they measure their costs, as workers do without --cost.
    """

    def __init__(self, shape=None, conductor=(), worker=(), roles=(), measures=False):
        self.dir = tempfile.mkdtemp(prefix="mct-test-")
        self.env = dict(os.environ, MCT_RUN_DIR=os.path.join(self.dir, "run"))
        os.mkdir(self.env["MCT_RUN_DIR"], 0o700)
        if not measures:
            self.env["MCT_COST"] = os.path.join(self.dir, "cost.toml")
            with open(self.env["MCT_COST"], "w", encoding="utf-8") as file:
                file.write(quick_profile(1e-4, 4e-4, 1e-4))  # near to mc-tiny's on a slow processor
        self.processes = {}
        self.count = 0
        try:
            if shape:
                words = ["mc-conductor", "--local", shape, "--http", "127.0.0.1:0", "--json", *conductor, *worker]
                self.processes["conductor"] = self.spawn(words)
                self.url_port = int(self.processes["conductor"].wait_ready()["http"].rsplit(":", 1)[1])
            for name in roles:
                self.start(name, *(conductor if name == "conductor" else worker))
            if roles:
                self.wait_nodes()
        except BaseException:
            self.close()
            raise

    def spawn(self, words, **popen):
        """`popen` reaches subprocess.Popen: another stderr, limits of the process."""
        self.count += 1
        return Process(words, self.env, os.path.join(self.dir, f"{self.count}-{words[0]}.log"), **popen)

    def start(self, name, *flags):
        """conductor, p0, d1, c0, ...: one process by hand."""
        role = {"p": "mc-prefill", "d": "mc-decode", "c": "mc-cache"}
        if name == "conductor":
            self.start_conductor(getattr(self, "url_port", 0), flags)
        else:
            words = [role[name[0]], "--name", name, "--http", "127.0.0.1:0", "--json", *flags]
            self.processes[name] = self.spawn(words)
        return self.processes[name]

    def start_conductor(self, port, flags):
        process = self.spawn(["mc-conductor", "--http", f"127.0.0.1:{port}", "--json", *flags])
        self.processes["conductor"] = process
        try:
            self.url_port = int(process.wait_ready()["http"].rsplit(":", 1)[1])
        except AssertionError:
            if port == 0 or "MC5001" not in process.text():
                raise
            process.close()  # a connection of another test has the port of the conductor that ended
            self.start_conductor(0, flags)

    def wait_nodes(self, timeout=START_S):
        names = {n for n in self.processes if n != "conductor"}

        def all_there():
            try:
                return names <= {n["id"] for n in self.cluster()["nodes"]}
            except OSError:
                return False

        until(all_there, timeout, f"nodes {sorted(names)} registered")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        order = [n for n in self.processes if n == "conductor"] + [n for n in self.processes if n != "conductor"]
        try:
            for name in order:
                if self.processes[name].popen.poll() is None:
                    self.processes[name].stop()
        finally:
            for process in self.processes.values():
                if process.popen.poll() is None:
                    process.kill()
            if LOGS and os.path.exists(self.dir):
                here = os.path.join(LOGS, os.path.basename(self.dir))
                shutil.copytree(self.dir, here, ignore=shutil.ignore_patterns("run"), dirs_exist_ok=True)
            shutil.rmtree(self.dir, ignore_errors=True)

    # ---- asking ----
    def request(self, method, path, body=None, headers=None, timeout=ANSWER_S):
        """(status, headers, body bytes) of one call."""
        connection = http.client.HTTPConnection("127.0.0.1", self.url_port, timeout=timeout)
        try:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path):
        return json.loads(self.request("GET", path)[2])

    def post(self, path, body, **kwargs):
        status, headers, data = self.request("POST", path, body, **kwargs)
        return status, headers, json.loads(data)

    def complete(self, prompt=None, ids=None, expect=200, **fields):
        """A greedy completion with token ids; returns the JSON answer."""
        body = {
            "prompt": ids if ids is not None else prompt,
            "temperature": 0,
            "return_token_ids": True,
            "ignore_eos": True,
            **fields,
        }
        body.setdefault("mc", {}).setdefault("explain", True)
        deadline = time.monotonic() + 60
        while True:
            status, _, answer = self.post("/v1/completions", body)
            # A node that gets no processor for 3 s is not there for a moment. Nothing was computed for the request.
            absent = status == 503 != expect and answer["error"]["code"] in ("no_prefill", "no_decode")
            if not absent or time.monotonic() > deadline:
                break
            self.wait_nodes()
            select.select([], [], [], 0.05)
        assert status == expect, f"HTTP {status}: {answer}"
        return answer

    def stream(self, path, body, timeout=ANSWER_S):
        """Yields the data of each event; "[DONE]" last. An aborted stream raises."""
        connection = http.client.HTTPConnection("127.0.0.1", self.url_port, timeout=timeout)
        connection.request("POST", path, json.dumps(dict(body, stream=True)).encode())
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            for line in answer:
                line = line.decode().rstrip("\n")
                if line.startswith("data: "):
                    yield line[6:]
        finally:
            connection.close()

    def socket_request(self, method, path, body=None, headers=None, node=None):
        """(status, body bytes) of one call over the operators' socket of the conductor, or of a node."""
        name = f"node-{node['instance'][:12]}.http" if node else "conductor.http"
        connection = SocketConnection(os.path.join(self.env["MCT_RUN_DIR"], name))
        try:
            connection.request(method, path, json.dumps(body).encode() if body is not None else None, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def operate(self, method, path, body=None):
        """JSON of one operators' page."""
        status, data = self.socket_request(method, path, body)
        assert status == 200, f"HTTP {status}: {data}"
        return json.loads(data)

    def verb(self, *words, **kwargs):
        """One verb of mc-conductor, which finds the conductor by its run directory: as run()."""
        return run("mc-conductor", *words, env=self.env, **kwargs)

    def cluster(self):
        return self.operate("GET", "/cluster")

    def node(self, name):
        """The conductor's view of a node. A node that missed heartbeats is away until it joins again."""
        here = lambda: next((n for n in self.cluster()["nodes"] if n["id"] == name), None)
        return until(here, 60, f"{name} is a member")

    def unmet(self, *words):
        """The error of `mc-conductor wait` with conditions that do not come true. A conductor that gets no processor
        for the whole time is out of reach, so the next try has more time."""
        for timeout in ("300ms", "3s", "30s"):
            code, _, err = self.verb("wait", *words, "--timeout", timeout)
            assert code == 3, f"exit code {code}: {err}"
            if "MC2101" not in err:
                return err
        raise AssertionError(f"the conductor did not answer: {err}")

    def metric(self, name, family, *labels):
        """Sum of a metric's samples with all these labels (k="v") at one node's own /metrics. The first page of a node
        that has just started has no samples yet."""

        def samples():
            lines = self.socket_request("GET", "/metrics", node=self.node(name))[1].decode().splitlines()
            lines = [line for line in lines if all(label in line for label in labels)]
            return [float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == family]

        return sum(until(samples, 60, f"{name} has {family}"))

    def leftovers(self):
        """Counts that are above 0 although nothing should be in use; empty when quiet."""
        state = self.cluster()
        found = []
        if state["requests_unfinished"]:
            found.append(f"{state['requests_unfinished']} requests unfinished")
        for node in state["nodes"]:
            for key in ("pages_private", "pages_pinned", "leases", "running", "waiting"):
                if node[key]:
                    found.append(f"{node['id']} {key}={node[key]}")
        return found

    def write_to_disk(self, node, prompts, least):
        """Serves prompts until `least` blocks are on the disk of `node`. A block that is evicted before it is written
        is lost, so a slow disk needs more than one turn."""

        def written():
            if self.node(node)["disk_blocks"] >= least:
                return True
            for ids in prompts:
                self.complete(ids=ids, max_tokens=1)
            return False

        until(written, 600, f"{least} blocks on the disk of {node}")

    def wait_quiet(self, timeout=60):
        """Every page and lease is free, by heartbeats younger than this call; returns the seconds it took."""
        began = time.monotonic()
        beats = {n["instance"]: n["heartbeats"] for n in self.cluster()["nodes"]}

        def beat_twice(node):
            """A node that joined during this call, or again, counts its heartbeats from the start."""
            if node["heartbeats"] < beats.get(node["instance"], 0):
                beats[node["instance"]] = -1
            return node["heartbeats"] > beats.get(node["instance"], -1) + 1

        until(lambda: all([beat_twice(n) for n in self.cluster()["nodes"]]), timeout, "heartbeats")
        try:
            until(lambda: not self.leftovers(), timeout, "quiet")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.leftovers()}") from None
        return time.monotonic() - began


def quick_profile(prefill_s, step_s, row_s):
    """A cost profile (mc-profile(5)) of small, fast nodes: seconds a prompt token, a decode step and a row of it."""
    return f"""
name = "quick"
[node]
layers = 8
kv_bytes_per_token = 4096
kv_capacity_tokens = 65536
dram_bytes = 268435456
context_tokens = 20000
chunk_tokens = 512
[paths.net]
bytes_per_s = 1e9
[prefill]
fixed_s = 5e-3
s_per_token = {prefill_s}
[decode]
fixed_s = {step_s}
s_per_row = {row_s}
"""


def token_ids(answer):
    return answer["choices"][0]["token_ids"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def oracle(ids, count, *flags, dtype="f32"):
    """Token ids of the single process, which is asked once for each set of arguments."""
    return list(ask_oracle(tuple(ids), count, flags, dtype))


@functools.cache
def ask_oracle(ids, count, flags, dtype):
    code, out, err = run(
        "mc-prefill",
        "once",
        "--prompt-ids",
        ",".join(map(str, ids)),
        "-n",
        count,
        "--temperature",
        "0",
        "--ignore-eos",
        "--dtype",
        dtype,
        "--json",
        *flags,
    )
    assert code == 0, err
    return json.loads(out.splitlines()[-1])["output_ids"]


class Random:
    """A small generator of our own, so that a seed means the same in every Python."""

    def __init__(self, seed):
        self.state = (seed * 2862933555777941757 + 3037000493) & (2**64 - 1)

    def below(self, bound):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        return (self.state >> 33) % bound

    def ids(self, count, vocab=1900, first=10):
        return [first + self.below(vocab - first) for _ in range(count)]

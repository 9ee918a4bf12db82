"""Strangers and neighbours use something up: descriptors, memory, the disk, the reader of a log. A process may refuse
what it has no room for. It must not end, hang or forget what it was doing, and afterwards it must work as before.
"""

import ctypes
import fcntl
import functools
import glob
import http.client
import json
import os
import re
import resource
import select
import signal
import socket
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integration"))

import attack
import cluster
from cluster import Cluster, until
from members import HEARTBEAT
from zmtp import Dealer

F_SETPIPE_SZ = 1031
PATIENCE_S = 60


HOLD_THREADS = """
import sys, threading
threading.stack_size(65536)
end = threading.Event()
try:
    while True:
        threading.Thread(target=end.wait).start()
except RuntimeError:
    print("no more", flush=True)
sys.stdin.read()
end.set()
"""


def limited(**limits):
    """A preexec_fn that lowers limits, soft and hard: limited(NOFILE=128)."""

    def lower():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))

    return lower


def descriptors(process):
    return len(os.listdir(f"/proc/{process.popen.pid}/fd"))


def port_of(uri):
    return int(uri.rsplit(":", 1)[1])


class Crowd:
    """Idle connections: opened, and held until they are closed."""

    def __init__(self, target, count):
        self.sockets = []
        family = socket.AF_UNIX if isinstance(target, str) else socket.AF_INET
        for _ in range(count):
            one = socket.socket(family)
            one.setblocking(False)
            try:
                one.connect(target)
            except OSError:
                pass  # under way, or the backlog is full: both are pressure
            self.sockets.append(one)

    def close(self):
        for one in self.sockets:
            one.close()


class Siege(threading.Thread):
    """Crowds at several doors, made anew as they are thrown out, until it is closed."""

    COUNT = 150

    def __init__(self, doors):
        super().__init__(daemon=True)
        self.doors = doors
        self.end = threading.Event()
        self.start()

    def run(self):
        old = []
        while not self.end.is_set():
            new = [Crowd(door, self.COUNT) for door in self.doors]
            for crowd in old:
                crowd.close()
            old = new
            self.end.wait(0.3)
        for crowd in old:
            crowd.close()

    def close(self):
        self.end.set()
        self.join()


class Client:
    """One kept-alive HTTP connection."""

    def __init__(self, port):
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def status(self, path="/livez"):
        self.http.request("GET", path)
        answer = self.http.getresponse()
        answer.read()
        return answer.status

    def close(self):
        self.http.close()


def is_answered(port, path="/livez"):
    """True when a new connection gets 200."""
    client = Client(port)
    try:
        return client.status(path) == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()


class Exhaust(unittest.TestCase):
    def cluster(self, **options):
        c = Cluster(**options)
        self.addCleanup(c.close)
        return c

    def wait_members(self, c, names):
        """Waits until these nodes are members: one that the host kept silent for 3 s has left for a while."""
        until(lambda: sorted(n["id"] for n in c.cluster()["nodes"]) == names, PATIENCE_S, f"the members are {names}")

    def is_tokenised(self, c):
        try:
            return c.request("POST", "/tokenize", {"prompt": "hello"})[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def conductor(self, c, *flags, **popen):
        process = c.spawn(["mc-conductor", "--http", "127.0.0.1:0", "--json", *flags], **popen)
        c.processes["conductor"] = process
        process.wait_ready()
        c.url_port = port_of(process.ready["http"])
        return process

    def crowd(self, target, count):
        crowd = Crowd(target, count)
        self.addCleanup(crowd.close)
        return crowd

    def assert_lives(self, process):
        self.assertIsNone(process.popen.poll(), process.tail())


class Descriptors(Exhaust):
    CROWD = attack.count(400, 4000)
    LIMITS = attack.count([128], [80, 128, 256])

    def attack_doors(self, process, http_port, doors):
        """Crowds at `doors` while a connection made before goes on; then everything is as it was."""
        before = Client(http_port)
        self.assertEqual(before.status(), 200)
        old = descriptors(process)
        for target in doors:
            crowd = self.crowd(target, self.CROWD)
            for _ in range(20):
                self.assertEqual(before.status(), 200, f"a connection made before, during a crowd at {target}")
            self.assert_lives(process)
            if target != ("127.0.0.1", http_port):  # each door has a share of its own
                until(lambda: is_answered(http_port), PATIENCE_S, f"HTTP is answered during a crowd at {target}")
            crowd.close()
            until(lambda: is_answered(http_port), PATIENCE_S, f"a new connection is answered after a crowd at {target}")
            until(lambda: descriptors(process) <= old, PATIENCE_S, f"{old} descriptors again, after {target}")
        self.assert_lives(process)
        before.close()

    def test_a_crowd_at_any_door_of_a_conductor(self):
        for limit in self.LIMITS:
            c = self.cluster()
            process = self.conductor(
                c, "--listen", "ipc://$MCT_RUN_DIR/conductor,tcp://127.0.0.1:0", preexec_fn=limited(NOFILE=limit)
            )
            ports = {port for _, port in attack.listeners(process.popen.pid)} - {c.url_port}
            self.assertEqual(len(ports), 1)
            ipc = os.path.join(c.env["MCT_RUN_DIR"], "conductor")
            doors = [("127.0.0.1", c.url_port), ("127.0.0.1", ports.pop()), ipc]
            self.attack_doors(process, c.url_port, doors)
            # All at once, and a worker that joins in the end.
            crowds = [self.crowd(target, self.CROWD) for target in doors]
            self.assert_lives(process)
            for crowd in crowds:
                crowd.close()
            c.start("c0", "--dram", "16MiB")
            c.wait_nodes()
            self.assertEqual(process.stop(), 0)
            c.close()

    def test_a_crowd_at_any_door_of_a_worker(self):
        for name in attack.count(["c0", "p0"], ["c0", "p0", "d0"]):
            c = self.cluster()
            conductor = self.conductor(c, "--listen", "tcp://127.0.0.1:0")
            words = [{"c": "mc-cache", "p": "mc-prefill", "d": "mc-decode"}[name[0]], "--name", name, "--json"]
            words += ["--http", "127.0.0.1:0", "--conductor", conductor.ready["control"], "--transport", "tcp"]
            process = c.spawn(words, preexec_fn=limited(NOFILE=128))
            c.processes[name] = process
            http_port = port_of(process.wait_ready()["http"])
            ports = [port for _, port in attack.listeners(process.popen.pid)]
            self.assertEqual(len(ports), 3)  # HTTP, control, data
            self.attack_doors(process, http_port, [("127.0.0.1", port) for port in ports])
            until(lambda: [n["id"] for n in c.cluster()["nodes"]] == [name], PATIENCE_S, "it is listed")
            c.close()

    def test_a_worker_whose_doors_are_all_full_finds_its_conductor_again(self):
        for program in ("mc-cache", "mc-prefill", "mc-decode"):
            c = self.cluster()
            conductor = self.conductor(c)
            words = [program, "--name", "w0", "--json", "--http", "127.0.0.1:0", "--transport", "tcp"]
            process = c.spawn(words, preexec_fn=limited(NOFILE=128))
            c.processes["w0"] = process
            before = Client(port_of(process.wait_ready()["http"]))
            self.assertEqual(before.status(), 200)
            doors = [("127.0.0.1", port) for _, port in attack.listeners(process.popen.pid)]
            doors += glob.glob(os.path.join(c.env["MCT_RUN_DIR"], "node-*"))
            self.assertEqual(len(doors), 4)  # HTTP and data over tcp, control and operators' pages over Unix sockets
            old = descriptors(process)
            siege = Siege(doors)
            self.addCleanup(siege.close)
            until(lambda: descriptors(process) >= old + 15, PATIENCE_S, "strangers are inside")
            # The process keeps the remaining descriptors for itself, and needs them now.
            conductor.kill()
            conductor.close()
            until(lambda: before.status("/readyz") == 503, PATIENCE_S, "the loss is noticed")
            self.conductor(c)
            until(lambda: before.status("/readyz") == 200, PATIENCE_S, "it is registered again, during the siege")
            self.assert_lives(process)
            until(lambda: [n["id"] for n in c.cluster()["nodes"]] == ["w0"], PATIENCE_S, "it is listed")
            siege.close()
            self.assertEqual(process.stop(), 0)
            before.close()
            c.close()

    def test_a_limit_below_what_is_needed_is_refused_in_words(self):
        c = self.cluster()
        for program in ("mc-conductor", "mc-prefill", "mc-decode", "mc-cache"):
            process = c.spawn([program, "--http", "127.0.0.1:0"], preexec_fn=limited(NOFILE=16))
            self.assertEqual(process.popen.wait(PATIENCE_S), 1, process.tail())
            self.assertIn("MC5006", process.text())
            self.assertIn("at most 16 files", process.text())
            self.assertIn("ulimit -n", process.text())

    def test_the_soft_limit_is_raised_to_the_hard_one(self):
        def lower_soft():
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1000))

        process = self.conductor(self.cluster(), preexec_fn=lower_soft)
        self.assertEqual(resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE), (1000, 1000))


class Threads(Exhaust):
    """Limits on processes do not bind root, and count all processes of a user: each test runs as a user of its own."""

    ENOUGH = 64

    def stranger(self, c, threads):
        """Popen options: a user that nobody else is, with room for `threads` threads in all its processes."""
        uid = 50_000 + os.getpid() % 10_000
        folder = os.path.join(c.dir, "run")
        os.chmod(c.dir, 0o755)
        os.chown(folder, uid, uid)
        return {"user": uid, "group": uid, "extra_groups": [], "preexec_fn": limited(NPROC=threads)}

    def hold_all_threads(self, user):
        """A program of the user takes all the threads that the user may still have, until the test ends."""
        words = [attack.others_python(), "-c", HOLD_THREADS]
        pipe = cluster.subprocess.PIPE
        holder = cluster.subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd="/", text=True, **user)
        self.addCleanup(holder.wait, PATIENCE_S)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.stdin.close)
        self.assertEqual(holder.stdout.readline(), "no more\n")

    @attack.needs_second_user
    def test_a_daemon_that_gets_too_few_threads_ends_in_words(self):
        programs = [
            ["mc-conductor", "--json"],
            ["mc-prefill", "--check", "--threads", "3"],
            ["mc-decode", "--check", "--threads", "3"],
            ["mc-cache", "--check", "--dram", "16MiB"],
        ]
        for words in programs:
            c = self.cluster()
            for threads in range(1, self.ENOUGH):
                user = self.stranger(c, threads)
                process = c.spawn([*words, "--http", "127.0.0.1:0"], stdin=cluster.subprocess.DEVNULL, **user)
                started = process.popen.stdout.readline() if words[0] == "mc-conductor" else b""
                code = process.stop() if started else process.popen.wait(PATIENCE_S)
                process.close()
                if code == 0:
                    break
                text = process.text()
                self.assertEqual(code, 1, f"{words[0]} with {threads} threads\n{text}")
                self.assertIn("MC5006", text)
                self.assertIn("RLIMIT_NPROC", text)
                self.assertIn("ulimit -u", text)
            self.assertLess(3, threads, words[0])
            self.assertLess(threads, self.ENOUGH - 1, f"{words[0]} starts in the end")
            c.close()

    @attack.needs_second_user
    def test_a_cluster_that_gets_no_more_threads_goes_on(self):
        c = self.cluster()
        user = self.stranger(c, 300)
        process = self.conductor(c, "--local", "1p1d1c", **user)
        pids = [process.popen.pid, *attack.children(process.popen.pid)]
        self.assertEqual(len(pids), 4)
        prompt = [5 + i % 90 for i in range(100)]
        expected = cluster.token_ids(c.complete(ids=prompt, max_tokens=16))
        self.hold_all_threads(user)
        self.assertEqual(cluster.token_ids(c.complete(ids=prompt, max_tokens=16)), expected)
        body = json.dumps({"prompt": "hello world " * 200_000}).encode()
        self.assertIn(c.request("POST", "/tokenize", body)[0], (200, 400, 413))
        for name in (signal.SIGHUP, signal.SIGUSR1):
            for pid in pids:
                os.kill(pid, name)
        worker = c.spawn(["mc-cache", "--name", "c9", "--dram", "16MiB"], **user)
        self.assertEqual(worker.popen.wait(PATIENCE_S), 1)
        self.assertIn("RLIMIT_NPROC", worker.text())
        worker.close()
        crowd = self.crowd(("127.0.0.1", c.url_port), 100)
        self.assertEqual(cluster.token_ids(c.complete(ids=prompt, max_tokens=16)), expected)
        crowd.close()
        self.wait_members(c, ["c0", "d0", "p0"])
        self.assertEqual(process.stop(), 0)


class LogReaders(Exhaust):
    SIGNALS = 150  # each is a line and more; the pipe takes 4096 bytes
    SIGNALS_MAX = 60_000  # a busy machine merges signals; the queue takes 1 MiB, about 15,000 lines

    def stopped_reader(self):
        read, write = os.pipe()
        fcntl.fcntl(write, F_SETPIPE_SZ, 4096)
        self.addCleanup(os.close, read)
        return read, write

    def lost_lines(self, cluster):
        metrics = cluster.request("GET", "/metrics")[2].decode()
        return sum(float(n) for n in re.findall(r"^mc_log_lines_lost_total{.*} (\S+)$", metrics, re.M))

    def drain(self, read, process):
        """The lines that the reader has missed, until the process ends."""
        data = b""
        while True:
            self.assertTrue(select.select([read], [], [], PATIENCE_S)[0], "the log ends with the process")
            piece = os.read(read, 65536)
            if not piece:
                return data.decode()
            data += piece

    def test_a_conductor_whose_log_nobody_reads_goes_on(self):
        read, write = self.stopped_reader()
        c = self.cluster()
        process = self.conductor(c, stderr=write)
        os.close(write)
        for sent in range(self.SIGNALS_MAX if attack.FULL else self.SIGNALS):
            process.popen.send_signal(signal.SIGUSR1)  # prints its state
            self.assertEqual(c.request("GET", "/readyz", timeout=PATIENCE_S)[0], 503)  # answered by the control loop
            if sent % 1000 == 999 and self.lost_lines(c) > 0:
                break
        self.assertEqual(c.request("GET", "/livez")[0], 200)
        self.assertEqual(self.lost_lines(c) > 0, attack.FULL)
        process.popen.send_signal(signal.SIGTERM)
        text = self.drain(read, process)
        self.assertEqual(process.popen.wait(PATIENCE_S), 0)
        self.assertGreater(text.count("state at SIGUSR1: 0 requests unfinished"), 30)
        if attack.FULL:
            self.assertIn("log lines were dropped: the reader of stderr is slow", text)

    def test_processes_whose_log_is_never_read_stop(self):
        read, write = self.stopped_reader()
        os.set_blocking(write, False)
        while True:  # there is not even room for the first line
            try:
                os.write(write, b"." * 512)
            except BlockingIOError:
                break
        os.set_blocking(write, True)
        c = self.cluster()
        process = self.conductor(c, stderr=write)
        words = ["mc-cache", "--name", "c0", "--http", "127.0.0.1:0", "--json", "--dram", "16MiB"]
        worker = c.spawn(words, stderr=write)
        os.close(write)
        c.processes["c0"] = worker
        worker.wait_ready()
        c.wait_nodes()
        for one in (worker, process):
            self.assertEqual(one.stop(timeout=PATIENCE_S), 0)

    def test_a_log_on_a_full_disk_is_counted(self):
        c = self.cluster()
        with open("/dev/full", "wb") as full:
            process = self.conductor(c, stderr=full)

        def lost():
            lines = c.request("GET", "/metrics")[2].decode().splitlines()
            return sum(float(l.rsplit(" ", 1)[1]) for l in lines if l.startswith("mc_log_lines_lost_total{"))

        until(lambda: lost() > 0, PATIENCE_S, "a lost line is counted")
        self.assertEqual(process.stop(), 0)


class Loops(Exhaust):
    """A control loop that hangs, while the threads of HTTP go on: a supervisor learns it from /livez."""

    def hold(self, on):
        with open(self.held, "r+b") as file:
            file.write(bytes([on]))

    def livez(self, process):
        client = http.client.HTTPConnection("127.0.0.1", port_of(process.ready["http"]), timeout=PATIENCE_S)
        try:
            client.request("GET", "/livez")
            answer = client.getresponse()
            return answer.status, answer.read().decode()
        finally:
            client.close()

    def flood(self, dealer):
        """Messages until no more go out for a while, then the end of the connection."""
        dealer.socket.settimeout(1)
        try:
            while True:
                dealer.send("heartbeat", HEARTBEAT, **{"from": "c9"})
        except TimeoutError:
            dealer.close()

    def test_livez_is_503_while_the_control_loop_of_a_daemon_hangs(self):
        """Meanwhile a peer of each sends more than there is room for, and hangs up."""
        c = self.cluster()
        self.held = os.path.join(c.dir, "held")
        with open(self.held, "wb") as file:
            file.write(b"\0")
        attack.preload(self, c, "hold_shim.c")
        c.env["MC_HOLD"] = self.held
        programs = [self.conductor(c), c.start("p0", "--kv-mem", "64MiB", "--threads", "1"),
                    c.start("c0", "--dram", "16MiB")]
        for process in programs[1:]:
            process.wait_ready()
        c.wait_nodes()
        for process in programs:
            self.assertEqual(self.livez(process), (200, ""), process.words[0])
        peers = [Dealer(process.ready["control"]) for process in programs]
        self.hold(True)
        for peer in peers:
            self.flood(peer)
        for process in programs:
            until(lambda: self.livez(process)[0] == 503, PATIENCE_S, f"{process.words[0]} says that it hangs")
            self.assertRegex(self.livez(process)[1], r"^the control loop has not run for [\d.]+ s$")
        self.hold(False)
        for process in programs:
            until(lambda: self.livez(process) == (200, ""), PATIENCE_S, f"{process.words[0]} says that it goes on")
        c.wait_nodes()
        for process in reversed(programs):
            self.assertEqual(process.stop(), 0, process.words[0])


@attack.counts_memory
class Memory(Exhaust):
    ROOM = 200 << 20  # beside what the process has at rest
    TOGETHER = attack.count(2, 4)

    def bodies(self):
        """Wide, nested and long requests of up to 16 MiB, the most that a body may have."""
        words = "hello world " * 1_300_000
        message = '{"role":"user","content":"a"}'
        quick = [
            ("/v1/completions", '{"prompt":[' + ",".join(["1"] * 1_000_000) + "]}"),
            ("/v1/completions", '{"prompt":[' + ",".join(['"ab"'] * 800_000) + "]}"),
            ("/v1/completions", '{"prompt":' + "[" * 31 + "1" + "]" * 31 + "}"),
            ("/v1/chat/completions", '{"messages":[' + ",".join([message] * 250_000) + "]}"),
            ("/tokenize", json.dumps({"prompt": words})),
        ]
        full = [
            ("/v1/chat/completions", '{"messages":[' + ",".join(['{"a":1}'] * 500_000) + "]}"),
            ("/v1/completions", json.dumps({"prompt": words})),
            ("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": words}]})),
        ]
        return quick + attack.count([], full)

    def test_a_conductor_at_its_limit_fails_requests_alone(self):
        c = self.cluster()
        process = self.conductor(c)
        attack.leave_memory(process.popen.pid, self.ROOM)
        for path, body in self.bodies():
            answers = []

            def ask():
                try:
                    answers.append(c.request("POST", path, body.encode(), timeout=300)[0])
                except (OSError, http.client.HTTPException) as error:
                    answers.append(error)

            threads = [threading.Thread(target=ask) for _ in range(self.TOGETHER)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assert_lives(process)
            for answer in answers:  # an answer, or a connection for which there was no memory
                if isinstance(answer, int):
                    self.assertIn(answer, (200, 400, 413, 429, 503), (path, body[:40]))
            until(lambda: self.is_tokenised(c), PATIENCE_S, "a good request works")
        self.assertEqual(process.stop(), 0)


def needs_own_disk(test):
    """Decorator: skips where this process may not give a child a file system of its own."""

    @functools.wraps(test)
    def checked(self):
        with tempfile.TemporaryDirectory() as folder:
            done = cluster.subprocess.run(["true"], preexec_fn=own_disk(folder, 1 << 20), timeout=PATIENCE_S)
        if done.returncode != 0:
            self.skipTest("a file system of its own for a child needs root")
        test(self)

    return checked


def own_disk(folder, size, fill=False):
    """A preexec_fn: the child, and nobody else, has a tmpfs of `size` bytes at `folder`. `fill`: no byte is free."""
    CLONE_NEWNS, MS_PRIVATE, MS_REC = 0x20000, 1 << 18, 1 << 14
    libc = ctypes.CDLL(None)
    options = b"mode=700,size=%d" % size

    def mount():
        if (
            libc.unshare(CLONE_NEWNS) != 0
            or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0
            or libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, options) != 0
        ):
            os._exit(1)
        if fill:
            take_space(folder, 0)

    return mount


def free_space(folder):
    at = os.statvfs(folder)
    return at.f_bavail * at.f_frsize


def take_space(folder, left):
    """A file that leaves so many bytes of the file system; returns its path."""
    path = os.path.join(folder, "filler")
    with open(path, "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, free_space(folder) - left)
    return path


class DiskOfANode(Exhaust):
    """The file system under a node that serves is full: the node goes on, and uses the disk again when there is room.
    Only the node has that file system, which is looked at by its root folder in /proc."""

    DISK = 32 << 20
    LEFT = 5 << 20  # of it, when the filler is there: less than two segments
    VALUE = 2 << 20
    WORKER = ["--dtype", "f32", "--transport", "shm", "--threads", "1"]

    def start_on_disk(self, c, name, words):
        """The process, and the folder of its disk as this process sees it."""
        folder = tempfile.mkdtemp(prefix="mct-test-")
        self.addCleanup(os.rmdir, folder)
        words = [word.replace("FOLDER", folder) for word in words]
        process = c.spawn([*words, "--name", name, "--http", "127.0.0.1:0", "--json"],
                          preexec_fn=own_disk(folder, self.DISK))
        c.processes[name] = process
        process.wait_ready()
        return process, f"/proc/{process.popen.pid}/root{folder}"

    def put(self, c, key, value):
        return cluster.run("mc-cache", "put", "c0", key, "-", "--durability", "d2", stdin=value, env=c.env)

    def status_of_put(self, c, key, value):
        name = f"node-{c.node('c0')['instance'][:12]}.http"
        door = cluster.SocketConnection(os.path.join(c.env["MCT_RUN_DIR"], name))
        try:
            door.request("PUT", f"/v1/store/{key}?durability=d2", value)
            return door.getresponse().status
        finally:
            door.close()

    @needs_own_disk
    def test_durable_values_are_refused_while_the_disk_is_full(self):
        c = self.cluster(roles=["conductor"])
        words = ["mc-cache", "--dram", "24MiB", "--values", "8MiB"]
        words += ["--values-disk", "40MiB", "--ssd", "FOLDER/kv:100MiB"]
        process, disk = self.start_on_disk(c, "c0", words)
        c.wait_nodes()
        filler = take_space(disk, self.LEFT)
        kept = {}
        for n in range(self.DISK // self.VALUE):
            key, value = f"k{n}", os.urandom(self.VALUE)
            code, _, err = self.put(c, key, value)
            if code != 0:
                break
            kept[key] = value
        self.assertGreater(len(kept), 0)
        self.assertIn("MC5008", err)
        self.assertEqual(self.status_of_put(c, "full", value), 507)
        self.assertTrue(is_answered(port_of(process.ready["http"])))
        for key, value in kept.items():
            self.assertEqual(cluster.run("mc-cache", "get", "c0", key, env=c.env)[1], value)
        os.unlink(filler)
        value = os.urandom(self.VALUE)
        until(lambda: self.put(c, "later", value)[0] == 0, PATIENCE_S, "a durable value is taken again")
        kept["later"] = value
        for key, value in kept.items():
            self.assertEqual(cluster.run("mc-cache", "get", "c0", key, env=c.env)[1], value)
        self.assert_lives(process)
        self.assertEqual(process.stop(), 0)

    @needs_own_disk
    def test_blocks_go_to_what_there_is_of_a_full_disk(self):
        c = self.cluster(roles=["conductor"])
        words = ["mc-prefill", *self.WORKER, "--kv-mem", "5600KiB", "--ssd", "FOLDER/kv:48MiB"]
        process, disk = self.start_on_disk(c, "p0", words)
        c.start("d0", *self.WORKER)
        c.wait_nodes()
        prompts = [cluster.Random(n).ids(384) for n in range(8)]
        expected = [cluster.oracle(ids, 4) for ids in prompts]  # eight processes, which the limits below leave out

        def written():
            for ids, right in zip(prompts, expected):
                self.assertEqual(cluster.token_ids(c.complete(ids=ids, max_tokens=4)), right)
            return c.metric("p0", "mc_ssd_moved_bytes_total", 'direction="write"')

        filler = take_space(disk, self.LEFT)
        until(lambda: written() > 2 * self.LEFT, 10 * PATIENCE_S, "blocks take the place of older ones")
        self.assertGreater(c.metric("p0", "mc_ssd_failures_total"), 0)
        few = c.node("p0")["disk_blocks"]
        os.unlink(filler)
        until(
            lambda: written() and c.node("p0")["disk_blocks"] > few + 16, 10 * PATIENCE_S, "blocks take the new space"
        )
        self.assertEqual(c.metric("p0", "mc_ssd_lost"), 0)
        self.assertIn("No space left on device", process.text())
        self.wait_members(c, ["d0", "p0"])
        c.wait_quiet()
        self.assertEqual(process.stop(), 0)

    @needs_own_disk
    def test_a_start_with_a_full_run_directory_says_so(self):
        for words in (["mc-conductor"], ["mc-prefill"], ["mc-decode"], ["mc-cache", "--dram", "16MiB"]):
            c = self.cluster()
            mount = own_disk(c.env["MCT_RUN_DIR"], 1 << 16, fill=True)
            listing = os.path.join(c.dir, "listing")
            # The shell has the file system too, and outlives the program: it shows what is left there.
            script = '"$@"; code=$?; ls "$MCT_RUN_DIR" >"$0"; exit $code'
            done = cluster.subprocess.run(
                ["sh", "-c", script, listing, cluster.program(words[0]), *words[1:], "--http", "127.0.0.1:0"],
                env=c.env, preexec_fn=mount, capture_output=True, text=True, timeout=PATIENCE_S,
            )
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, "MC5004 disk-full: .*local.key.*No space left on device")
            with open(listing) as names:
                self.assertEqual(names.read().split(), ["filler"])
            c.close()

    @needs_own_disk
    def test_a_ready_file_that_the_disk_cannot_take_is_logged(self):
        c = self.cluster()
        folder = tempfile.mkdtemp(prefix="mct-test-")
        self.addCleanup(os.rmdir, folder)
        process = self.conductor(c, "--ready-file", folder + "/ready", preexec_fn=own_disk(folder, 1 << 16, fill=True))
        until(lambda: "ready file not written" in process.text(), PATIENCE_S, "the log names the ready file")
        self.assertRegex(process.text(), "ready file not written .*MC5004 disk-full: .*No space left on device")
        self.assertEqual(os.listdir(f"/proc/{process.popen.pid}/root{folder}"), ["filler"])
        self.assertTrue(is_answered(c.url_port))
        self.assertEqual(process.stop(), 0)


class Disk(unittest.TestCase):
    def once(self, path, **limits):
        words = [cluster.program("mc-prefill"), "once", "-p", "Once upon a time", "--kv-out", path]
        return cluster.subprocess.run(
            words, capture_output=True, text=True, timeout=PATIENCE_S, preexec_fn=limited(**limits)
        )

    def test_a_stream_that_the_disk_cannot_take_leaves_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.mckv")
            done = self.once(path, FSIZE=5000)
            self.assertEqual(done.returncode, 1)
            self.assertIn("MC5004", done.stderr)
            self.assertIn(path, done.stderr)
            self.assertEqual(os.listdir(folder), [])

    def test_a_device_that_is_full_is_named_and_stays(self):
        done = self.once("/dev/full")
        self.assertEqual(done.returncode, 1)
        self.assertIn("MC5004", done.stderr)
        self.assertTrue(os.path.exists("/dev/full"))

    def test_results_on_a_full_disk_have_a_number(self):
        words = ["xfer", "--transport", "shm", "--size", "64KiB", "-t", "10ms", "--json"]
        code, _, err = cluster.run("mc-bench", *words, "-o", "/dev/full")
        self.assertEqual(code, 1)
        self.assertIn("MC5004", err)
        with open("/dev/full", "wb") as full:
            done = cluster.subprocess.run(
                [cluster.program("mc-bench"), *words], stdout=full, stderr=cluster.subprocess.PIPE, timeout=PATIENCE_S
            )
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"MC5004", done.stderr)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Identities that may join the data and control planes of one host: another user gets no byte of any worker, takes
nobody's place, and finds no shm name to squat on; programs of one user share keys without a flag."""

import glob
import itertools
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import unittest

import attack
from cluster import Cluster, Random, run, until

STRANGER = attack.in_one("stranger", "frames")
GUESSES = ("none", "guess")


def stranger(*words):
    """One call of the stranger as another user, its answer."""
    code, out, err = attack.as_other_user(STRANGER, *words)
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


def stranger_stays(*words):
    """A stranger that stays: (process, its first answer). It leaves when its stdin is closed."""
    process = subprocess.Popen(
        [attack.others_python(), "-c", STRANGER, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        user=attack.OTHER_UID,
        group=attack.OTHER_UID,
        extra_groups=[],
        env={"PATH": "/usr/bin:/bin"},
    )
    return process, process.stdout.readline()


class Strangers(unittest.TestCase):
    def data_ports(self, cluster, pids):
        """Ports of the workers that are not their pages."""
        pages = {int(node["http"].rsplit(":", 1)[1]) for node in cluster.cluster()["nodes"]}
        ports = {port for pid in pids for _, port in attack.listeners(pid)} - pages - {cluster.url_port}
        self.assertGreaterEqual(len(ports), 3)
        return sorted(ports)

    def assert_refused(self, got):
        """Refused for want of a proof or as the listener's own instance, and not for another protocol version."""
        self.assertRegex(got["refused"] or "", "secret|^the dialler is this process$", got)

    def attacked(self, cluster, pids):
        prompt = Random(3).ids(200)
        right = cluster.complete(ids=prompt, max_tokens=6)["choices"][0]["token_ids"]
        instances = [node["instance"] for node in cluster.cluster()["nodes"]] + ["42" * 16]
        ports = self.data_ports(cluster, pids)
        every = ",".join(map(str, ports)), ",".join(instances)
        answers = stranger("read", *every, ",".join(GUESSES))
        self.assertEqual(len(answers), len(ports) * len(instances) * len(GUESSES))
        for got in answers:
            self.assert_refused(got)
            self.assertEqual((got["descriptor"], got["bytes"]), (0, 0))
        with Cluster() as theirs:  # an own run directory, as another user has
            for port, more in itertools.product(ports, ([], ["--insecure", "data"])):
                words = ["mc-bench", "xfer", f"tcp://127.0.0.1:{port}", "--op", "read", "--size", "64KiB"]
                code, _, err = run(*words, "--time", "0.1s", *attack.PATIENT, *more, env=theirs.env)
                self.assertEqual(code, 3, err)
                self.assertIn("MC2103", err)
        process, said = stranger_stays("claim", *every)
        try:
            claims = json.loads(said)
            self.assertEqual(len(claims), len(ports) * len(instances))
            for got in claims:
                self.assert_refused(got)
            for i in range(attack.count(8, 29)):
                fresh = Random(100 + i).ids(200)
                self.assertEqual(len(cluster.complete(ids=fresh, max_tokens=4)["choices"][0]["token_ids"]), 4)
            self.assertEqual(cluster.complete(ids=prompt, max_tokens=6)["choices"][0]["token_ids"], right)
        finally:
            process.communicate(timeout=60)

    @attack.needs_second_user
    def test_the_stranger_reads_where_the_door_is_open(self):
        """Else it would prove nothing that it reads nothing elsewhere."""
        with Cluster() as cluster:
            words = ["mc-bench", "xfer", "--server", "--transport", "tcp", "--port", "0", "--insecure", "data"]
            server = cluster.spawn([*words, *attack.PATIENT])
            port = server.wait_ready()["uri"].rsplit(":", 1)[1]
            self.addCleanup(server.stop)
            got = stranger("read", port, "42" * 16, "none")[0]
            self.assertEqual((got["refused"], got["bytes"]), (None, 4096), got)
            self.assertGreater(got["descriptor"], 40)

    @attack.needs_second_user
    def test_another_user_gets_no_byte_of_a_local_cluster_and_takes_nobodys_place(self):
        with Cluster("1p1d1c") as cluster:
            self.attacked(cluster, attack.children(cluster.processes["conductor"].popen.pid))

    @attack.needs_second_user
    def test_another_user_gets_no_byte_of_roles_started_by_hand(self):
        with Cluster(roles=["d0", "conductor", "c0", "p0"]) as cluster:  # in any order
            self.attacked(cluster, [p.popen.pid for n, p in cluster.processes.items() if n != "conductor"])


class Squatters(unittest.TestCase):
    def names(self, pids=None):
        """Abstract names of the shm transport, as every user of the host sees them; only those of the processes."""
        with open("/proc/net/unix") as table:
            found = {inode: name for inode, name in re.findall(r" (\d+) @(mc-[\w-]+)", table.read())}
        if pids is None:
            return set(found.values())
        held = set()
        for link in (link for pid in pids for link in glob.glob(f"/proc/{pid}/fd/*")):
            try:
                held.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
            except OSError:
                pass  # closed meanwhile
        return {name for inode, name in found.items() if inode in held}

    @attack.needs_second_user
    def test_after_kill_9_no_name_of_a_worker_can_be_bound_by_another_user(self):
        with Cluster("1p1d1c") as cluster:
            cluster.complete(ids=Random(1).ids(100), max_tokens=4)
            folder = cluster.env["MCT_RUN_DIR"]
            workers = attack.children(cluster.processes["conductor"].popen.pid)
            names = self.names(workers)
            sockets = glob.glob(folder + "/data-*")
            victim = workers[0]
            process, said = stranger_stays("squat", 300, *names)
            self.assertEqual(said, "squatting\n")
            os.kill(victim, 9)
            for i in range(3):  # the survivors look for it, or do without it
                ids = Random(50 + i).ids(150)
                cluster.post("/v1/completions", {"prompt": ids, "max_tokens": 4, "timeout_ms": 3000})
            got = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
            self.assertEqual(got, {"bound": 0, "bytes": 0, "descriptors": 0})
            self.assertFalse(names)
            self.assertEqual(len(sockets), 3)
            for path, answer in stranger("bind", *sockets, folder + "/data-new").items():
                self.assertEqual(answer, "PermissionError", path)

    @attack.needs_second_user
    def test_a_dialler_says_nothing_to_another_users_socket(self):
        name = f"mc-squat-{os.getpid()}"
        process, said = stranger_stays("squat", 300, name)
        self.assertEqual(said, "squatting\n")
        until(lambda: name in self.names(), 60, "the name is bound")
        self.assertEqual(self.names([process.pid]), {name})
        words = ["mc-bench", "xfer", f"shm://{name}", "--op", "read", "--size", "64KiB", "--time", "0.1s"]
        with Cluster() as cluster:
            code, _, err = run(*words, "--insecure", "data", *attack.PATIENT, env=cluster.env)
        self.assertEqual(code, 3, err)
        self.assertIn("another user", err)
        got = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
        self.assertEqual((got["bytes"], got["descriptors"]), (0, 0))


class OpenDirectory(unittest.TestCase):
    @attack.needs_second_user
    def test_sockets_that_another_user_can_reach_give_it_no_descriptor_and_no_word_of_control(self):
        """The private directory keeps others out. This test opens it: the programs look at the user themselves."""
        with Cluster("1p1d1c") as cluster:
            cluster.complete(ids=Random(1).ids(100), max_tokens=4)
            folder = cluster.env["MCT_RUN_DIR"]
            paths = [path for path in glob.glob(folder + "/*") if stat.S_ISSOCK(os.stat(path).st_mode)]
            paths = [path for path in paths if not path.endswith(".http")]  # those are in doors_test
            data = [path for path in paths if os.path.basename(path).startswith("data-")]
            reach = folder
            while reach != "/":  # the folders above it are temporary, too
                os.chmod(reach, os.stat(reach).st_mode | 0o755)
                reach = os.path.dirname(reach) if reach.startswith(tempfile.gettempdir() + "/") else "/"
            for path in paths:
                os.chmod(path, 0o777)
            control = next(path for path in paths if path not in data)

            def is_answered():  # our own user, whose connection stays open until these 10 s are over
                words = [sys.executable, "-c", STRANGER, "knock", "10", control]
                done = subprocess.run(words, capture_output=True, check=True)
                return json.loads(done.stdout)[control]["bytes"] > 0

            until(is_answered, 60, "our own user is answered")
            answers = stranger("knock", 60, *paths)
            self.assertEqual((len(data), len(paths)), (3, 7), paths)
            for path, got in answers.items():
                self.assertTrue(got["closed"], (path, got))
                self.assertEqual(got["descriptors"], 0, (path, got))
                if path in data:
                    self.assertEqual(got["frames"], ["challenge", "refuse"], path)
                else:
                    self.assertEqual(got["bytes"], 0, path)
            self.assertEqual(len(cluster.complete(ids=Random(2).ids(100), max_tokens=4)["choices"][0]["token_ids"]), 4)


class LocalKeys(unittest.TestCase):
    def test_control_over_loopback_needs_the_keys_of_the_run_directory(self):
        with Cluster() as ours, Cluster() as theirs:
            ours.start("conductor", "--listen", "tcp://127.0.0.1:0")
            control = ours.processes["conductor"].ready["control"]
            ours.start("p0", "--conductor", control)
            ours.start("d0", "--conductor", control)
            ours.wait_nodes()
            self.assertEqual(len(ours.complete(ids=Random(2).ids(100), max_tokens=4)["choices"][0]["token_ids"]), 4)
            other = theirs.spawn(["mc-cache", "--name", "c9", "--http", "127.0.0.1:0", "--conductor", control])
            self.addCleanup(other.popen.kill)
            self.assertEqual(other.popen.wait(60), 3, other.tail())
            self.assertIn("MC2103", other.text())
            self.assertIn("share MCT_RUN_DIR", other.text())
            self.assertEqual([n["id"] for n in ours.cluster()["nodes"] if n["id"] == "c9"], [])

    def test_a_benchmark_of_another_run_directory_is_refused_and_says_why(self):
        with Cluster() as ours, Cluster() as theirs:
            server = ours.spawn(["mc-bench", "xfer", "--server", "--transport", "tcp", "--port", "0", *attack.PATIENT])
            uri = server.wait_ready()["uri"]
            self.addCleanup(server.stop)
            words = ["mc-bench", "xfer", uri, "--op", "read", "--size", "64KiB", "--time", "0.1s", *attack.PATIENT]
            code, _, err = run(*words, env=ours.env)
            self.assertEqual(code, 0, err)
            code, _, err = run(*words, env=theirs.env)
            self.assertEqual(code, 3, err)
            self.assertIn("MC2103", err)
            self.assertIn("share MCT_RUN_DIR", err)

    def test_a_local_key_that_others_may_read_is_refused(self):
        with Cluster() as cluster:
            path = os.path.join(cluster.env["MCT_RUN_DIR"], "local.key")
            code, _, err = run("mc-cache", "--check", "--http", "127.0.0.1:0", env=cluster.env)
            self.assertEqual(code, 0, err)
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            os.chmod(path, 0o644)
            code, _, err = run("mc-cache", "--check", "--http", "127.0.0.1:0", env=cluster.env)
            self.assertEqual(code, 2, err)
            self.assertIn("MC1006", err)


class Leftovers(unittest.TestCase):
    def sockets(self, cluster):
        names = os.listdir(cluster.env["MCT_RUN_DIR"])
        return sorted(n for n in names if n.startswith(("node-", "data-")) and not n.endswith(".http"))

    def test_a_clean_stop_leaves_no_socket_and_a_killed_node_s_are_swept_at_the_next_start(self):
        with Cluster(roles=["conductor", "p0", "d0", "c0"]) as cluster:
            self.assertEqual(len(self.sockets(cluster)), 6)
            cluster.processes.pop("c0").stop()
            self.assertEqual(len(self.sockets(cluster)), 4)
            cluster.processes.pop("d0").kill()
            dead = self.sockets(cluster)
            self.assertEqual(len(dead), 4)
            for name in dead:  # nothing younger than a minute is swept
                os.utime(os.path.join(cluster.env["MCT_RUN_DIR"], name), (1, 1))
            cluster.start("d0").wait_ready()
            self.assertEqual(len(self.sockets(cluster)), 4)
            self.assertEqual(len(set(self.sockets(cluster)) & set(dead)), 2)

    def test_half_written_ready_files_of_the_killed_go_when_the_next_is_written(self):
        with Cluster() as cluster:
            ready = os.path.join(cluster.dir, "ready")
            old, young, foreign = ready + ".tmp.aB3xY9", ready + ".tmp.zzzzzz", ready + ".tmp.notours"
            for path in (old, young, foreign):
                with open(path, "w") as half:
                    half.write("http://127")
            for path in (old, foreign):
                os.utime(path, (1, 1))
            cluster.start("conductor", "--ready-file", ready)
            until(lambda: os.path.exists(ready), 60, "ready")
            self.assertFalse(os.path.exists(old))
            self.assertTrue(os.path.exists(young))
            self.assertTrue(os.path.exists(foreign))


if __name__ == "__main__":
    unittest.main()

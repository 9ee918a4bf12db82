"""Two hosts of one cluster whose nodes announce one loopback address: a verb acts on the node that it names or on none.

Each host has a run directory of its own. The loopback of a host leads to the node of that host.
"""

import glob
import os
import signal
import subprocess
import tempfile
import unittest

import cluster
import hosts
from cluster import until

PAGES = "127.0.0.1:8300"


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class Namesakes(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.key, self.value = (os.path.join(self.dir.name, name) for name in ("cluster.key", "value"))
        code, _, err = cluster.run("mc-conductor", "keygen", "-o", self.key)
        self.assertEqual(code, 0, err)
        with open(self.value, "w", encoding="utf-8") as file:
            file.write("a value")
        self.hosts, _ = hosts.two_hosts(self)
        self.endpoint = f"tcp://{self.hosts[0].address}:7700"
        self.start(0, "mc-conductor", "--listen", self.endpoint, "--http", "127.0.0.1:0")
        self.node(0, "c0", PAGES)

    def env(self, number):
        run = os.path.join(self.dir.name, f"run{number}")
        os.makedirs(run, mode=0o700, exist_ok=True)
        return dict(os.environ, MCT_RUN_DIR=run)

    def start(self, number, *words):
        """A program on a host, until the test ends; returns when it is ready."""
        log = os.path.join(self.dir.name, "log")
        with open(log, "ab") as out:
            words = self.hosts[number].words(*words, "--auth", self.key, "--json")
            child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=out, env=self.env(number))

        def end():
            child.send_signal(signal.SIGKILL)
            child.wait(60)
            child.stdout.close()

        self.addCleanup(end)
        if not child.stdout.readline():  # at its end, or when it is ready
            with open(log, encoding="utf-8") as text:
                self.fail(text.read())

    def node(self, number, name, pages, *words):
        self.start(number, "mc-cache", "--name", name, "--conductor", self.endpoint, "--bind",
                   self.hosts[number].address, "--http", pages, "--dram", "64MiB", *words)  # fmt: skip

        def is_listed():
            code, out, _ = self.verb(0, "mc-conductor", "ps", "--json")
            return code == 0 and f'"{name}"' in out

        until(is_listed, cluster.START_S, f"{name} registers")

    def verb(self, number, *words):
        done = subprocess.run(self.hosts[number].words(*words), capture_output=True, text=True, timeout=300,
                              env=self.env(number))  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def has(self, number, node, key):
        code, out, err = self.verb(number, "mc-cache", "exist", node, key)
        self.assertIn(code, (0, 1), out + err)
        return code == 0

    def test_a_verb_for_a_node_on_the_loopback_of_another_host_reaches_no_node_of_this_one(self):
        self.node(1, "c1", PAGES)
        code, _, err = self.verb(0, "mc-cache", "put", "c1", "meant-for-c1", self.value)
        self.assertNotEqual(code, 0)
        self.assertIn("MC2101", err)
        self.assertIn(f"on the loopback of {self.hosts[1].address}", err)
        self.assertFalse(self.has(0, "c0", "meant-for-c1"))
        (pages,) = glob.glob(os.path.join(self.env(1)["MCT_RUN_DIR"], "node-*.http"))  # the socket on its own host
        code, _, err = self.verb(1, "mc-cache", "put", pages, "meant-for-c1", self.value)
        self.assertEqual(code, 0, err)
        self.assertTrue(self.has(1, pages, "meant-for-c1"))
        self.assertFalse(self.has(0, "c0", "meant-for-c1"))

    def test_a_node_that_serves_pages_to_other_hosts_is_reached_by_its_name(self):
        self.node(1, "c1", f"{self.hosts[1].address}:8300", "--insecure", "pages")
        code, _, err = self.verb(0, "mc-cache", "put", "c1", "meant-for-c1", self.value)
        self.assertEqual(code, 0, err)
        self.assertTrue(self.has(0, "c1", "meant-for-c1"))
        self.assertFalse(self.has(0, "c0", "meant-for-c1"))


if __name__ == "__main__":
    unittest.main()

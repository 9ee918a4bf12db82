#!/usr/bin/env python3
"""Blocks on disk: greedy tokens equal the single process's from memory, from disk, after a kill and after damage."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import cluster
from cluster import Cluster, Random, oracle, run, token_ids, until

BLOCK = 64
LENGTH = 384
COUNT = 8
MEMORY = "5600KiB"  # two prompts, in pages of 392 KiB
WORKER = ["--dtype", "f32", "--transport", "shm"]


class Disk(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mct-ssd-", dir=cluster.BUILD)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.ssd = ["--ssd", f"{self.folder}/kv:128MiB"]
        self.prompts = [Random(n).ids(LENGTH) for n in range(6)]

    def check_all(self, c):
        """Asks every prompt; returns the tokens that came from disk."""
        from_disk = 0
        for ids in self.prompts:
            answer = c.complete(ids=ids, max_tokens=COUNT)
            self.assertEqual(token_ids(answer), oracle(ids, COUNT), answer["mc"])
            from_disk += answer["mc"]["cached_disk_tokens"]
        return from_disk

    def start_prefill(self, c, *flags):
        return c.start("p0", *WORKER, "--kv-mem", MEMORY, *self.ssd, *flags)

    def cluster(self):
        c = Cluster()
        self.addCleanup(c.close)
        c.start("conductor")
        self.start_prefill(c)
        c.start("d0", *WORKER)
        c.wait_nodes()
        return c

    def blocks(self, c, node="p0"):
        return next((n["disk_blocks"] for n in c.cluster()["nodes"] if n["id"] == node), 0)

    def wait_written(self, c, least=18):
        c.write_to_disk("p0", self.prompts, least)

    def wait_back(self, c, killed, least=1, name="p0"):
        """Waits until the conductor knows the new process and its blocks; it may still show those of `killed`."""

        def is_back(node):
            return node["id"] == name and node["instance"] != killed and node["disk_blocks"] >= least

        until(lambda: any(map(is_back, c.cluster()["nodes"])), 60, f"a new {name} with {least} blocks on disk")

    def test_tokens_are_equal_from_memory_from_disk_and_after_a_kill_in_the_middle_of_writes(self):
        c = self.cluster()
        self.assertEqual(self.check_all(c), 0)
        self.wait_written(c)
        self.assertGreater(self.check_all(c), 2 * LENGTH)
        known, killed = self.blocks(c), c.node("p0")["instance"]
        more = [Random(n).ids(LENGTH) for n in range(20, 23)]
        for ids in more:
            c.complete(ids=ids, max_tokens=1)
        c.processes["p0"].kill()  # the last prompts are being written
        c.processes["p0"].close()
        self.start_prefill(c)
        self.wait_back(c, killed, known // 2)
        self.assertGreater(self.check_all(c), 2 * LENGTH)
        for ids in more:
            self.assertEqual(token_ids(c.complete(ids=ids, max_tokens=COUNT)), oracle(ids, COUNT))
        c.wait_quiet()
        self.assertGreater(c.metric("p0", "mc_ssd_moved_bytes_total", 'direction="read"'), 0)
        self.assertGreater(c.metric("p0", "mc_kv_block_hits_total", 'tier="disk"'), 0)

    def test_kv_bytes_are_equal_when_computed_from_memory_from_disk_and_after_a_kill(self):
        c = self.cluster()
        ids = self.prompts[0]
        c.complete(ids=ids, max_tokens=1)
        c.wait_quiet()
        last = self.last(c)
        computed = self.export(c, last)
        self.assertGreater(len(computed), LENGTH // BLOCK * 256 << 10)
        tiers = lambda: {b["tier"] for b in self.chain(c, last)}
        self.assertEqual(tiers(), {"host"})
        c.complete(ids=ids, max_tokens=1)  # reads the blocks in memory
        c.wait_quiet()
        self.assertEqual(self.export(c, last), computed)

        def is_on_disk_alone():  # other prompts take the memory
            for other in self.prompts[1:]:
                c.complete(ids=other, max_tokens=1)
            return len(self.chain(c, last)) == LENGTH // BLOCK and tiers() == {"disk"}

        until(is_on_disk_alone, 600, "the prompt is on disk alone")
        self.assertEqual(self.export(c, last), computed)
        killed = c.node("p0")["instance"]
        c.processes["p0"].kill()
        c.processes["p0"].close()
        self.start_prefill(c)
        self.wait_back(c, killed, LENGTH // BLOCK)
        self.assertEqual(tiers(), {"disk"})
        answer = c.complete(ids=ids, max_tokens=COUNT)
        self.assertEqual(token_ids(answer), oracle(ids, COUNT))
        self.assertGreater(answer["mc"]["cached_disk_tokens"], 0)
        c.wait_quiet()
        self.assertEqual(self.export(c, last), computed)
        run("mc-cache", "evict", "p0", "--all", env=c.env)
        c.complete(ids=ids, max_tokens=1)
        c.wait_quiet()
        self.assertEqual(self.export(c, last), computed)  # computed a second time

    def rows(self, c):
        code, out, err = run("mc-cache", "ls", "p0", "--limit", 1000, "--json", env=c.env)
        self.assertEqual(code, 0, err)
        return [json.loads(line) for line in out.splitlines()][:-1]

    def last(self, c):
        """The id of the block that ends a prompt, the only one on p0."""
        return next(b["id"] for b in self.rows(c) if b["first_position"] == LENGTH - BLOCK)

    def chain(self, c, last):
        """The rows of the blocks from the first one of a prompt to `last`."""
        rows = {b["id"]: b for b in self.rows(c)}
        out = []
        while last in rows:
            out.append(rows[last])
            last = rows[last]["parent"]
        return out

    def export(self, c, last):
        """The blocks of a prompt as p0 gives them, byte by byte."""
        code, out, err = run("mc-cache", "export", "p0", "--prefix", last, env=c.env)
        self.assertEqual(code, 0, err)
        return out

    def test_damaged_bytes_on_disk_cost_a_computation_and_no_token(self):
        c = self.cluster()
        self.check_all(c)
        self.wait_written(c)
        killed = c.node("p0")["instance"]
        c.processes["p0"].kill()
        c.processes["p0"].close()
        for path in glob.glob(f"{self.folder}/kv/seg.*"):
            with open(path, "r+b") as segment:
                size = os.fstat(segment.fileno()).st_size
                for at in range(9000, size * 7 // 8, 30011):  # in all values, and in some fronts and headers
                    segment.seek(at)
                    byte = segment.read(1)
                    segment.seek(at)
                    segment.write(bytes([byte[0] ^ 16]))
        self.start_prefill(c)
        self.wait_back(c, killed)
        self.check_all(c)
        until(lambda: c.metric("p0", "mc_checksum_failures_total") > 0, 60, "failures counted")

    def fsck(self, *flags):
        code, out, err = run("mc-cache", "fsck", f"{self.folder}/kv", "--json", *flags)
        return code, json.loads(out.splitlines()[-1]) if out else err

    def test_fsck_finds_a_sound_disk_sound_names_damage_and_repairs_it(self):
        c = self.cluster()
        self.check_all(c)
        self.wait_written(c)
        self.assertIn("MC6007", self.fsck()[1])  # the node uses it
        c.close()
        code, report = self.fsck()
        self.assertEqual((code, report["damaged"], report["lost"]), (0, [], []))
        self.assertGreaterEqual(report["blocks"], 18)
        segment = min(glob.glob(f"{self.folder}/kv/seg.*"))
        with open(segment, "r+b") as file:
            file.seek(3 * 4096 + 1000)  # within the first value's page
            byte = file.read(1)
            file.seek(3 * 4096 + 1000)
            file.write(bytes([byte[0] ^ 1]))
        code, report = self.fsck()
        self.assertEqual((code, len(report["damaged"])), (1, 1))
        text = run("mc-cache", "fsck", f"{self.folder}/kv")[1].decode()
        self.assertIn(f"\nnext: repair with: mc-cache fsck {self.folder}/kv --repair. It drops", text)
        self.assertEqual((self.fsck("--repair")[0], self.fsck()[1]["damaged"]), (0, []))

    def test_ls_lists_the_blocks_of_a_node_in_memory_and_on_disk(self):
        c = self.cluster()
        self.check_all(c)
        self.wait_written(c)
        c.wait_quiet()
        code, out, err = run("mc-cache", "ls", "p0", "--json", "--limit", 1000, env=c.env)
        self.assertEqual(code, 0, err)
        *blocks, end = [json.loads(line) for line in out.splitlines()]
        in_memory = [b for b in blocks if b["tier"] == "host"]
        self.assertEqual(len(in_memory), end["memory_blocks"])
        self.assertEqual(len(blocks) - len(in_memory), end["disk_only_blocks"])
        self.assertEqual(len({b["id"] for b in blocks}), len(blocks))
        self.assertGreater(end["disk_only_blocks"], 10)
        self.assertEqual(in_memory, sorted(in_memory, key=lambda b: -b["uses"]))
        footer = run("mc-cache", "ls", "p0", env=c.env)[1].decode().splitlines()[-1]
        self.assertRegex(
            footer,
            r"^in memory: \d+ blocks, [\d.]+ \w+ in all; on disk: \d+ blocks, [\d.]+ \w+ in all, "
            r"of which \d+ blocks are not in memory$",
        )
        code, _, err = run("mc-cache", "ls", "p7", env=c.env)
        self.assertIn("there are: d0, p0", err)

    def test_ls_asks_a_node_by_its_socket_without_a_conductor(self):
        c = self.cluster()
        self.check_all(c)
        sockets = glob.glob(c.env["MCT_RUN_DIR"] + "/node-*.http")
        self.assertEqual(len(sockets), 2)
        alone = dict(c.env, MCT_RUN_DIR=self.folder + "/elsewhere")
        blocks = 0
        for socket in sockets + ["unix:" + sockets[0]]:
            code, out, err = run("mc-cache", "ls", socket, "--json", env=alone)
            self.assertEqual(code, 0, err)
            blocks += json.loads(out.splitlines()[-1])["memory_blocks"]
        self.assertGreater(blocks, 0)
        code, _, err = run("mc-cache", "ls", "p0", env=alone)
        self.assertEqual(code, 3)
        self.assertIn("next:  start the conductor, or set MCT_RUN_DIR to its run directory;", err)
        code, _, err = run("mc-cache", "ls", self.folder + "/nobody.http", env=alone)
        self.assertEqual(code, 3)
        self.assertIn("start the node", err)
        c.processes["conductor"].kill()
        code, out, err = run("mc-cache", "ls", "p0", "--json", env=c.env)
        self.assertEqual(code, 0, err)
        self.assertGreater(json.loads(out.splitlines()[-1])["memory_blocks"], 0)
        code, _, err = run("mc-cache", "ls", "p7", env=c.env)
        self.assertEqual(code, 3)
        self.assertIn("nodes that answer without a conductor: d0, p0;", err)

    def test_a_disk_that_fails_while_the_node_runs_costs_the_tier_and_no_request(self):
        c = self.cluster()
        self.prompts = [Random(n).ids(640) for n in range(4)]  # each has more blocks than a disk may fail in a row
        self.check_all(c)
        self.wait_written(c)

        def is_lost():
            # The other node may have blocks in memory. Then p0 reads fewer from its disk, and may write them again.
            for path in glob.glob(f"{self.folder}/kv/seg.*"):
                os.truncate(path, 0)
            self.check_all(c)
            return c.node("p0")["disk_lost"]

        until(is_lost, 60, "the tier is given up")
        self.assertIn("goes on without it", c.node("p0")["last_error"])
        self.assertIn("lost", c.verb("ps")[1].decode())
        until(lambda: "the tier on disk is lost" in c.processes["p0"].text(), 60, "the log says so")
        until(lambda: c.metric("p0", "mc_ssd_lost") == 1, 60, "the metrics say so")

    def test_a_cache_node_keeps_demoted_blocks_on_its_disk_over_a_restart(self):
        c = Cluster()
        self.addCleanup(c.close)
        c.start("conductor", "--fetch-rule", "threshold")
        c.start("p0", *WORKER, "--kv-mem", MEMORY)
        c.start("d0", *WORKER)
        c.start("c0", "--dram", "8MiB", "--transport", "shm", *self.ssd)
        c.wait_nodes()
        self.prompts = [Random(n).ids(LENGTH) for n in range(12)]
        self.check_all(c)
        c.write_to_disk("c0", self.prompts, 20)
        killed = c.node("c0")["instance"]
        c.processes["c0"].kill()
        c.processes["c0"].close()
        c.start("c0", "--dram", "8MiB", "--transport", "shm", *self.ssd)
        self.wait_back(c, killed, 20, "c0")
        remote = 0
        for ids in self.prompts:
            answer = c.complete(ids=ids, max_tokens=COUNT)
            self.assertEqual(token_ids(answer), oracle(ids, COUNT), answer["mc"])
            remote += answer["mc"]["cached_remote_tokens"]
        self.assertGreater(remote, 0)

    def test_a_cache_node_that_is_told_to_stop_has_all_its_blocks_after_a_restart(self):
        c = Cluster()
        self.addCleanup(c.close)
        c.start("conductor")
        c.start("p0", *WORKER)
        c.start("d0", *WORKER)
        c.start("c0", "--dram", "8MiB", "--transport", "shm", *self.ssd)
        c.wait_nodes()
        words = ["warm", "c0", "-f", "-", "--json"]
        code, out, err = run("mc-cache", *words, env=c.env, stdin=b"Read the whole page. " * 60)
        self.assertEqual(code, 0, err)
        blocks = json.loads(out)["blocks"]
        self.assertGreater(blocks, 3)
        self.assertEqual(self.blocks(c, "c0"), 0)  # most of its 20 pages are free, so nothing was written
        stopped = c.node("c0")["instance"]
        self.assertEqual(c.processes["c0"].stop(), 0)
        self.assertIn(f"blocks_to_disk={blocks}", c.processes["c0"].text())
        c.start("c0", "--dram", "8MiB", "--transport", "shm", *self.ssd)
        self.wait_back(c, stopped, blocks, "c0")
        self.assertEqual(self.blocks(c, "c0"), blocks)

    def test_a_local_cluster_waits_for_its_nodes_writes_and_a_second_signal_ends_them(self):
        c = Cluster()
        self.addCleanup(c.close)
        c.env["MCT_SSD"] = f"{self.folder}:128MiB"
        c.env["MCT_SSD_WRITE_BUDGET"] = "100KiB/s"  # a block in four seconds
        words = ["mc-conductor", "--local", "1p1d", "--dtype", "f32", "--http", "127.0.0.1:0", "--json"]
        c.processes["conductor"] = conductor = c.spawn(words)
        c.url_port = int(conductor.wait_ready()["http"].rsplit(":", 1)[1])
        c.complete(ids=self.prompts[0], max_tokens=1)
        conductor.popen.send_signal(signal.SIGTERM)
        with self.assertRaises(subprocess.TimeoutExpired):  # a node that only ends takes less
            conductor.popen.wait(7)
        self.assertIn("blocks_to_disk=", conductor.text())
        self.assertNotIn("not all blocks", conductor.text())
        conductor.popen.send_signal(signal.SIGTERM)
        self.assertEqual(conductor.popen.wait(60), 0)
        warned = re.findall(r"not all blocks of the memory are on disk left=(\d+) of=(\d+) "
                            r'why="another signal stopped the node" next="[^"]*--drain-timeout', conductor.text())
        self.assertTrue(warned, conductor.text())
        at_first = re.findall(r"blocks_to_disk=(\d+)", conductor.text())
        for left, of in warned:
            self.assertLessEqual(1, int(left))
            self.assertLessEqual(int(left), int(of))
            self.assertIn(of, at_first)
        conductor.close()
        code, out, err = run("mc-cache", "fsck", f"{self.folder}/p0", "--json")
        self.assertEqual(code, 0, err)
        self.assertGreater(json.loads(out.splitlines()[-1])["blocks"], 0)

    def refused(self, *flags):
        code, _, err = run("mc-cache", "--dram", "8MiB", "--check", *flags, env=self.env)
        self.assertNotEqual(code, 0)
        self.assertIn("next:", err)
        return err

    def test_a_check_leaves_no_folder_and_compares_the_size_with_the_free_space(self):
        self.env = dict(os.environ, MCT_RUN_DIR=os.path.join(self.folder, "run"))
        place = os.path.join(self.folder, "new/kv")
        size = 2 * shutil.disk_usage(self.folder).free
        code, _, err = run("mc-cache", "--check", "--dram", "8MiB", "--ssd", f"{place}:{size}", env=self.env)
        self.assertEqual(code, 0, err)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "new")))
        self.assertRegex(err, "--ssd asks for more than its file system has free.*asked=.*free=")

    def test_memory_below_a_slab_is_refused_and_what_other_memory_becomes_is_logged(self):
        self.env = dict(os.environ, MCT_RUN_DIR=os.path.join(self.folder, "run"))
        for size in ("10", "8388607"):
            code, _, err = run("mc-cache", "--check", "--dram", size, env=self.env)
            self.assertEqual(code, 2, err)
            self.assertRegex(err, "MC1002 bad-value: a cache of .* holds no slab of blocks, which has 8MiB")
        code, _, err = run("mc-cache", "--check", "--dram", "20MiB", "--values", "3MiB", env=self.env)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"memory of the cache asked_bytes=20971520 block_bytes=16777216 value_bytes=3145728 ")
        code, _, err = run("mc-cache", "--check", "--dram", "8MiB", env=self.env)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, r"memory of the cache asked_bytes=8388608 block_bytes=8388608 value_bytes=0 ")
        code, _, err = run("mc-cache", "--check", "--dram", "8MiB", "--values", "1MiB", env=self.env)
        self.assertEqual(code, 2, err)
        self.assertIn("values of 1MiB leave no slab of 8MiB for KV blocks of --dram 8MiB", err)
        code, _, err = run("mc-cache", "--check", "--dram", "16MiB", "--values", "0B", env=self.env)
        self.assertNotIn("memory of the cache", err)

    def read_only(self, *flags):
        """(exit code, stderr) of mc-cache on a mount of self.folder that cannot be written to."""
        mounts = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounts, "sh", self.folder]
        words += [cluster.program("mc-cache"), *flags]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    def test_a_disk_that_is_mounted_read_only_is_refused_with_the_next_step(self):
        probe = ["unshare", "--mount", "mount", "--bind", self.folder, self.folder]
        if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
            self.skipTest("this user cannot mount in a namespace of its own")
        runs = tempfile.TemporaryDirectory(prefix="mct-run-")
        self.addCleanup(runs.cleanup)
        self.env = dict(os.environ, MCT_RUN_DIR=runs.name)
        memory = ["--dram", "8MiB", "--http", "127.0.0.1:0"]
        with Cluster() as c:
            c.start("conductor")
            c.start("c0", "--dram", "8MiB", *self.ssd)
            c.wait_nodes()
            c.processes["c0"].stop()
        before = sorted(os.listdir(f"{self.folder}/kv"))
        for place in ("kv", "new/kv"):  # a store that is there, and one that would be made
            for flags in (["--check"], []):
                code, err = self.read_only(*memory, "--ssd", f"{self.folder}/{place}:128MiB", *flags)
                self.assertEqual(code, 1, err)
                self.assertRegex(err, f"MC5005 .*{self.folder}.*Read-only file system")
                self.assertIn("next:  mount the file system for writing", err)
        code, err = self.read_only("fsck", f"{self.folder}/kv")
        self.assertEqual(code, 0, err)
        code, err = self.read_only("fsck", f"{self.folder}/kv", "--repair")
        self.assertEqual(code, 1, err)
        self.assertRegex(err, "MC5005 .*Read-only file system")
        self.assertEqual(sorted(os.listdir(f"{self.folder}/kv")), before)
        self.assertFalse(os.path.exists(f"{self.folder}/new"))

    def test_a_directory_that_cannot_be_used_is_refused_with_the_cause_and_the_next_step(self):
        self.env = dict(os.environ, MCT_RUN_DIR=os.path.join(self.folder, "run"))
        os.mkdir(self.env["MCT_RUN_DIR"], 0o700)
        foreign = os.path.join(self.folder, "foreign")
        os.mkdir(foreign)
        with open(os.path.join(foreign, "thesis.tex"), "w") as file:
            file.write("x")
        err = self.refused("--ssd", f"{foreign}:64MiB")
        self.assertIn("MC5005", err)
        self.assertIn("thesis.tex", err)
        self.assertEqual(os.listdir(foreign), ["thesis.tex"])
        self.assertIn("MC5005", self.refused("--ssd", f"{foreign}/thesis.tex:64MiB"))
        self.assertIn("MC1002", self.refused("--ssd", "nowhere"))
        self.assertIn("too small", self.refused("--ssd", f"{self.folder}/kv:1MiB"))
        ssd = ("--dram", "8MiB", "--ssd", f"{self.folder}/no/such/kv:16MiB")
        code, _, err = run("mc-cache", "--check", *ssd, env=self.env)
        self.assertEqual(code, 0, err)
        self.assertFalse(os.path.exists(f"{self.folder}/no"))
        made = []
        for _ in range(2):
            with Cluster(roles=["conductor"]) as c:
                c.start("c0", *ssd)
                c.wait_nodes()
                c.processes["c0"].stop()  # the line may come after the node has joined
                made.append(f"folders are made for --ssd folders={self.folder}/no/such\n" in c.processes["c0"].text())
        self.assertEqual(made, [True, False])
        c = self.cluster()
        err = self.refused(*self.ssd)
        self.assertIn("MC6007", err)
        self.assertIn(f"{c.processes['p0'].popen.pid}", err)
        with open(f"{self.folder}/kv/super.a", "rb") as file:
            super_a = bytearray(file.read())
        c.close()
        super_a[4] = 99  # the version
        for name in ("super.a", "super.b"):
            with open(f"{self.folder}/kv/{name}", "r+b") as file:
                file.write(super_a)
        self.assertRegex(self.refused(*self.ssd), "MC600[89]")


if __name__ == "__main__":
    unittest.main()

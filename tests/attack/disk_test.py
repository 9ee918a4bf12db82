#!/usr/bin/env python3
"""The directory of --ssd: it belongs to the user of the node alone, and no link in it leads out of it.

Attackers here are other users of the host. One of them reads the directory, which holds everybody's prompts, plants
blocks in it, takes its lock, or puts links into a directory that is then named to a node or to fsck.
"""

import fcntl
import os
import resource
import shutil
import stat
import subprocess
import tempfile
import unittest

import cluster
from cluster import run, until

NOBODY = 65534


def needs_root(test):
    return unittest.skipUnless(os.geteuid() == 0, "only root can give files to another user")(test)


class Directory(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="mct-attack-", dir=cluster.BUILD)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.kv = os.path.join(self.folder, "kv")
        self.env = dict(os.environ, MCT_RUN_DIR=os.path.join(self.folder, "run"))
        os.mkdir(self.env["MCT_RUN_DIR"], 0o700)

    def words(self, directory):
        return ["mc-cache", "--dram", "8MiB", "--http", "127.0.0.1:0", "--ssd", f"{directory}:16MiB"]

    def make(self):
        """A node makes the directory, or opens it, and stops."""
        with tempfile.NamedTemporaryFile(dir=self.folder) as log:
            node = cluster.Process(self.words(self.kv), self.env, log.name)
            try:
                until(lambda: ": started " in node.text() or node.popen.poll() is not None, 60, "a node has started")
            finally:
                code = node.stop()
            self.assertEqual(code, 0, node.text())

    def refused(self, *words, directory=None):
        """A check, a node and fsck, with and without --repair, all refuse the directory and name each of `words`."""
        directory = directory or self.kv
        answers = [run(*self.words(directory), *flags, env=self.env) for flags in (["--check"], [])]
        answers += [run("mc-cache", "fsck", directory, *flags, env=self.env) for flags in ([], ["--repair"])]
        for code, _, err in answers:
            self.assertNotEqual(code, 0)
            for word in words:
                self.assertIn(word, err)

    def test_a_new_directory_and_all_its_files_are_closed_to_other_users(self):
        before = os.umask(0)
        self.addCleanup(os.umask, before)
        self.make()
        self.assertEqual(stat.S_IMODE(os.stat(self.kv).st_mode), 0o700)
        modes = {name: stat.S_IMODE(os.stat(f"{self.kv}/{name}").st_mode) for name in os.listdir(self.kv)}
        self.assertIn("lock", modes)
        self.assertIn("super.a", modes)
        self.assertEqual(set(modes.values()), {0o600}, modes)

    def test_a_directory_that_others_may_enter_is_refused_with_its_mode_and_the_command_that_closes_it(self):
        self.make()
        for mode in (0o755, 0o701, 0o770):
            os.chmod(self.kv, mode)
            self.refused("MC5005", f"{mode:04o}", f"chmod 700 {self.kv}")
        os.chmod(self.kv, 0o700)
        self.make()

    def test_an_empty_directory_that_others_may_enter_is_refused(self):
        os.mkdir(self.kv)
        os.chmod(self.kv, 0o755)
        for flags in (["--check"], []):
            code, _, err = run(*self.words(self.kv), *flags, env=self.env)
            self.assertNotEqual(code, 0, flags)
            self.assertIn("MC5005", err)
            self.assertIn("0755", err)

    def test_a_link_to_a_directory_is_refused_with_and_without_a_slash_behind_it(self):
        self.make()
        link = os.path.join(self.folder, "link")
        os.symlink(self.kv, link)
        self.refused("MC5005", "symbolic link", directory=link)
        self.refused("MC5005", "symbolic link", directory=link + "/")

    def test_a_lock_that_is_a_link_does_not_overwrite_the_file_behind_it(self):
        self.make()
        victim = os.path.join(self.folder, "victim")
        with open(victim, "w") as file:
            file.write("years of work")
        for link in (os.symlink, os.link):
            os.remove(f"{self.kv}/lock")
            link(victim, f"{self.kv}/lock")
            self.refused("MC5005", "lock")
            with open(victim) as file:
                self.assertEqual(file.read(), "years of work")

    def test_a_lock_that_is_a_fifo_does_not_hang_the_start(self):
        self.make()
        os.remove(f"{self.kv}/lock")
        os.mkfifo(f"{self.kv}/lock")
        self.refused("MC5005", "no regular file")

    def test_a_segment_with_a_second_name_outside_of_the_directory_is_refused(self):
        self.make()
        os.link(f"{self.kv}/seg.000000", f"{self.folder}/outside")
        self.refused("MC5005", "seg.000000", "hard links")

    @needs_root
    def test_a_directory_of_another_user_is_refused_even_by_root(self):
        self.make()
        for name in os.listdir(self.kv):
            os.chown(f"{self.kv}/{name}", NOBODY, NOBODY)
        os.chown(self.kv, NOBODY, NOBODY)
        self.refused("MC5005", f"belongs to user {NOBODY}")

    @needs_root
    def test_a_segment_of_another_user_is_refused(self):
        self.make()
        os.chown(f"{self.kv}/seg.000000", NOBODY, NOBODY)
        self.refused("MC5005", f"seg.000000 belongs to user {NOBODY}")

    @needs_root
    def test_another_user_cannot_take_the_lock(self):
        self.make()
        os.chmod(self.folder, 0o755)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                fcntl.flock(os.open(f"{self.kv}/lock", os.O_RDONLY), fcntl.LOCK_EX)
                os._exit(0)
            except PermissionError:
                os._exit(13)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 13)

    def seen(self):
        """Name, size, time of the last change and content of every file of the store."""
        out = {}
        for name in sorted(os.listdir(self.kv)):
            path = os.path.join(self.kv, name)
            status = os.stat(path)
            with open(path, "rb") as file:
                out[name] = (status.st_size, status.st_mtime_ns, hash(file.read()))
        return out

    def test_fsck_without_repair_changes_nothing_in_a_sound_store_or_a_damaged_one(self):
        self.make()
        cut = f"{self.kv}/seg.000001"

        def damage():
            os.truncate(cut, 5000)
            os.truncate(f"{self.kv}/super.b", 10)
            with open(f"{self.kv}/seg.000009.part", "w") as file:
                file.write("x")

        for change, expected in ((lambda: None, 0), (damage, 1)):
            change()
            before = self.seen()
            code, out, err = run("mc-cache", "fsck", self.kv, env=self.env)
            self.assertEqual(code, expected, err)
            self.assertEqual(self.seen(), before)
        self.assertIn(b"seg.000001: 5000 bytes", out)
        self.assertEqual(run("mc-cache", "fsck", self.kv, "--repair", env=self.env)[0], 0)
        self.assertNotEqual(self.seen(), before)
        self.assertFalse(os.path.exists(cut))
        self.assertEqual(run("mc-cache", "fsck", self.kv, env=self.env)[0], 0)

    def test_the_root_of_a_fresh_file_system_is_accepted(self):
        os.mkdir(self.kv, 0o700)
        os.mkdir(f"{self.kv}/lost+found", 0o700)
        self.make()
        self.assertEqual(run("mc-cache", "fsck", self.kv, env=self.env)[0], 0)

    def test_a_disk_with_more_segments_than_files_may_be_open_is_refused_before_it_is_made(self):
        words = [cluster.program("mc-cache"), "--dram", "8MiB", "--check", "--ssd", f"{self.kv}:16GiB"]

        def limited():
            resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))

        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60, preexec_fn=limited)
        self.assertEqual(done.returncode, 1)
        self.assertIn("MC5006", done.stderr)
        self.assertIn("at most 300 files may be open, at least 432 are needed, 352 of them", done.stderr)
        self.assertFalse(os.path.exists(self.kv))


if __name__ == "__main__":
    unittest.main()

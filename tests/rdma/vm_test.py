"""scripts/rdma-vm keeps its word: what the command prints and how it ends comes back, and a machine that
does not answer is never taken for one that passed. Each boot takes 4 s of CPU, so a case looks at much. programs_test,
whose machine ends well, checks that a command's status is that of the script."""

import os
import subprocess
import sys
import tempfile
import unittest

import cluster

SCRIPT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "rdma-vm"))


def machine(*words, env=None):
    done = subprocess.run([SCRIPT, "--cpus", "1", *words], capture_output=True, text=True, timeout=900, env=env)
    if done.returncode == cluster.SKIP and env is None:
        print(done.stderr, file=sys.stderr)
        sys.exit(cluster.SKIP)
    return done.returncode, done.stdout, done.stderr


class Machine(unittest.TestCase):
    def test_output_arguments_and_files_come_through_and_the_machine_that_follows_a_soft_lockup_dies(self):
        """Two boots: the first one reports a soft lockup, so the command runs once more, and the second one panics."""
        note = "a b\n"
        with tempfile.TemporaryDirectory(prefix="mct-vm-") as folder:
            disk, log, file = (os.path.join(folder, name) for name in ("disk", "log", "note"))
            with open(disk, "wb") as made:
                made.truncate(1 << 20)
            open(log, "wb").close()
            with open(file, "w", encoding="utf-8") as made:
                made.write(note)
            line = (
                "read -r met </dev/vda; if test \"$met\" = met; then "
                "echo written | dd of=/dev/vda conv=fsync 2>/dev/null; echo c >/proc/sysrq-trigger; fi; "
                "echo met | dd of=/dev/vda conv=fsync 2>/dev/null; "
                "echo '<0>watchdog: BUG: soft lockup - CPU#0 stuck' >/dev/kmsg; "
                'printf "one\\n\\n\\n  two\\n"; echo "$WORDS"; cat note; cat /etc/deep/note; printf "%s|" "$@"; echo; '
                "test -t 1 && echo terminal; "
                "echo to stderr >&2; sleep 1000 & printf unfinished; exit 42"
            )
            words = ["--env", "WORDS=it's \"quoted\" $HOME", "--add", file, "--add", file + ":/etc/deep/note"]
            arguments = ["-c", line, "sh", "a b", "", "it's", "$x"]
            code, out, err = machine("--pairs", "0", "--disk", f"{disk}:{log}", *words, "--", "/bin/dash", *arguments)
            with open(disk, "rb") as made:
                self.assertEqual(made.read(8), b"written\n", err)
            with open(log, "rb") as made:
                record = made.read()
        self.assertEqual(
            out, f"one\n\n\n  two\nit's \"quoted\" $HOME\n{note}{note}a b||it's|$x|\nto stderr\nunfinished\n"
        )
        self.assertIn("the command ended with '42' on a processor that the kernel held: once more", err)
        self.assertEqual(code, 125)
        self.assertIn("without a result", err)
        self.assertEqual(err.count("complained"), 2)
        self.assertEqual(record[:8], (0x6A736677736872).to_bytes(8, "little"))
        self.assertIn(b"written\n", record)

    def test_a_machine_that_hangs_has_failed(self):
        code, _, err = machine("--pairs", "0", "--timeout", "1", "--", "sleep 1000")
        self.assertEqual(code, 124)
        self.assertIn("no result within 1 s", err)

    def test_wrong_use_is_told_before_anything_is_started(self):
        for words in (["--pairs", "9", "--", "true"], ["--nosuch"], [], ["--add"], ["--", "no-such-program", "x"]):
            code, out, err = machine(*words)
            self.assertEqual((code, out), (2, ""), words)
            self.assertIn("--help", err)

    def test_what_is_missing_is_the_reason_to_skip(self):
        with tempfile.TemporaryDirectory(prefix="mct-vm-") as folder:
            for name in ("sh", "dirname", "uname"):
                os.symlink("/usr/bin/" + name, os.path.join(folder, name))
            code, _, err = machine("--", "true", env={"PATH": folder, "HOME": folder})
        self.assertEqual(code, cluster.SKIP)
        self.assertIn("skipped: qemu-system-x86_64 is not installed; package qemu-system-x86 has it", err)


if __name__ == "__main__":
    unittest.main()

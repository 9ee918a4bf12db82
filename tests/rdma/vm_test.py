"""scripts/rdma-vm keeps its word: what the command prints and how it ends comes back, and a machine that
does not answer is never taken for one that passed. Each boot takes 4 s of CPU, so a case looks at much."""

import os
import subprocess
import sys
import tempfile
import unittest

import cluster

SCRIPT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "rdma-vm"))


def machine(*words, env=None, cwd=None):
    script = os.path.relpath(SCRIPT, cwd) if cwd else SCRIPT
    command = [script, "--cpus", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env, cwd=cwd)
    if done.returncode == cluster.SKIP and env is None:
        print(done.stderr, file=sys.stderr)
        sys.exit(cluster.SKIP)
    return done.returncode, done.stdout, done.stderr


class Machine(unittest.TestCase):
    def test_output_arguments_files_and_status_come_through_also_after_a_machine_that_died_of_a_soft_lockup(self):
        """Two boots: the first machine reports a soft lockup and panics, so the command runs once more. Both machines
        print as much. The second one reports a soft lockup too, and its status counts. The marker of the status stands
        behind a text without a newline, as it does where the serial line loses one."""
        note = "a b\n"
        text = f"one\n\n\n  two\nit's \"quoted\" $HOME\n{note}{note}a b||it's|$x|\nto stderr\n"
        with tempfile.TemporaryDirectory(prefix="mct-vm-") as folder:
            disk, log, file = (os.path.join(folder, name) for name in ("disk", "log", "note"))
            with open(disk, "wb") as made:
                made.write(b"empty\n")
                made.truncate(1 << 20)
            open(log, "wb").close()
            with open(file, "w", encoding="utf-8") as made:
                made.write(note)
            line = (
                "read -r met </dev/vda; "
                "echo '<0>watchdog: BUG: soft lockup - CPU#0 stuck' >/dev/kmsg; "
                'printf "one\\n\\n\\n  two\\n"; echo "$WORDS"; cat note; cat /etc/deep/note; printf "%s|" "$@"; echo; '
                "test -t 1 && echo terminal; "
                "echo to stderr >&2; "
                'if test "$met" = empty; then echo met | dd of=/dev/vda conv=fsync 2>/dev/null; '
                # A panic cuts off what the serial line has not sent, so the machine waits for the last byte.
                "for try in $(seq 600); do sent=$(sed -n 's/^1:.* tx:\\([0-9]*\\).*/\\1/p' /proc/tty/driver/serial); "
                f'test "$sent" -lt {len(text)} || break; sleep 0.1; done; echo c >/proc/sysrq-trigger; fi; '
                "echo written | dd of=/dev/vda conv=fsync 2>/dev/null; "
                "sleep 1000 & printf 'unfinishedMC-VM-RESULT rc=7'; exit 42"
            )
            words = ["--env", "WORDS=it's \"quoted\" $HOME", "--add", "note", "--add", "note:/etc/deep/note"]
            words += ["--pairs", "0", "--disk", "disk:log"]
            arguments = ["-c", line, "sh", "a b", "", "it's", "$x"]
            code, out, err = machine(*words, "--", "/bin/dash", *arguments, cwd=folder)
            with open(disk, "rb") as made:
                self.assertEqual(made.read(8), b"written\n", err)
            with open(log, "rb") as made:
                record = made.read()
        self.assertEqual(out, text + text + "unfinished\n", err)
        self.assertEqual(code, 42, err)
        self.assertEqual(err.count("the command ended with '' on a processor that the kernel held: once more"), 1, err)
        self.assertEqual(err.count("complained"), 2, err)
        self.assertEqual(record[:8], (0x6A736677736872).to_bytes(8, "little"))
        self.assertIn(b"written\n", record)

    def test_a_machine_that_ends_without_a_result_has_failed(self):
        with tempfile.TemporaryDirectory(prefix="mct-vm-") as folder:
            disk = os.path.join(folder, "disk")
            open(disk, "wb").close()
            words = ["--pairs", "0", "--disk", f"{disk}:{folder}/no-such-log"]  # which QEMU does not open
            code, out, err = machine(*words, "--", "true")
        self.assertEqual((code, out), (125, ""), err)
        self.assertIn("without a result", err)

    def test_a_machine_that_hangs_has_failed(self):
        code, _, err = machine("--pairs", "0", "--timeout", "1", "--", "sleep 1000")
        self.assertEqual(code, 124)
        self.assertIn("no result within 1 s", err)

    def test_wrong_use_is_told_before_anything_is_started(self):
        for words in (["--pairs", "9", "--", "true"], ["--nosuch"], [], ["--add"], ["--", "no-such-program", "x"],
                      ["--cpus", "2", "--counted", "--", "true"]):
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

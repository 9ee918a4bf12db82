"""The texts of every program about itself: help, version, errors, settings, completion; and how it refuses."""

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import tempfile
import termios
import unittest

import cluster

TOOLS = [
    t
    for t in ["mc-conductor", "mc-prefill", "mc-decode", "mc-cache", "mc-bench"]
    if os.access(os.path.join(cluster.BUILD, t), os.X_OK)
]
DAEMONS = [t for t in TOOLS if t != "mc-bench"]


def clean_environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MCT_")}
    return dict(env, **more)


def text_of(*words, **kwargs):
    code, out, err = cluster.run(*words, **kwargs)
    assert code == 0, f"{words}: exit {code}: {err}"
    return out.decode()


def terminal_output(columns, *words):
    """The output of a command on a terminal of so many columns."""
    child, master = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execv(cluster.program(words[0]), words)
    out = b""
    with contextlib.suppress(OSError):  # the end of the child's side of a terminal is EIO
        while more := os.read(master, 65536):
            out += more
    os.close(master)
    _, status = os.waitpid(child, 0)
    assert status == 0, out
    return out.decode().replace("\r\n", "\n")


def verbs(tool):
    listed = re.search(r"^Verbs .*?:\n(.*?)\n\n", text_of(tool, "--help"), re.S | re.M)
    return re.findall(r"^  ([a-z][a-z-]*)", listed.group(1), re.M) if listed else []


class Help(unittest.TestCase):
    def setUp(self):
        if not TOOLS:
            self.skipTest("nothing is built")

    def test_help_fits_a_screen_and_ends_with_an_example(self):
        for tool in TOOLS:
            lines = text_of(tool, "--help").splitlines()
            self.assertTrue(12 <= len(lines) <= 60, f"{tool} --help has {len(lines)} lines")
            self.assertRegex(lines[-1], r"^Example: .*\bmc-", tool)
            self.assertLessEqual(max(map(len, lines)), 100, tool)

    def test_every_verb_has_help_that_ends_with_an_example(self):
        for tool in TOOLS:
            for verb in verbs(tool):
                text = text_of(tool, verb, "--help")
                self.assertEqual(text, text_of(tool, "help", verb))
                self.assertTrue(text.startswith(f"{tool} {verb}: "), text)
                self.assertLessEqual(len(text.splitlines()), 60, f"{tool} {verb}")
                self.assertRegex(text.splitlines()[-1], r"^Example: ", f"{tool} {verb}")

    def test_help_is_as_wide_as_a_narrow_terminal(self):
        # A terminal of 80 columns, as script(1) makes one: the longest line of its output.
        for words in (["--help"], ["help", "common"]):
            out = terminal_output(80, TOOLS[0], *words)
            widest = max(out.splitlines(), key=len)
            self.assertLessEqual(len(widest), 80, f"{words}: {widest}")

    def test_version_is_name_version_and_commit(self):
        for tool in TOOLS:
            self.assertRegex(text_of(tool, "--version"), rf"^{tool} \d+\.\d+\.\d+ \(\w+(-dirty)?\)\n$")

    def test_every_error_number_is_explained(self):
        for tool in TOOLS:
            numbers = re.findall(r"^(MC\d{4}) ([a-z0-9-]+) +(\S.*)$", text_of(tool, "help", "errors"), re.M)
            self.assertGreater(len(numbers), 50)
            # One tool asks for each; the others share the table.
            for number, slug, meaning in numbers if tool == TOOLS[0] else numbers[:3]:
                text = text_of(tool, "help", number)
                self.assertTrue(text.startswith(f"{number} {slug}\n"), text)
                self.assertIn(meaning, text)
                self.assertRegex(text, r"\n  next: .+\n  exit code: (1|2|3|4|130)\n")
                # A slug may also be a reason of requests, which follows.
                self.assertTrue(text_of(tool, "help", slug).startswith(text), slug)

    def test_an_unknown_topic_is_refused(self):
        code, out, err = cluster.run(TOOLS[0], "help", "MC9999")
        self.assertEqual((code, out), (2, b""))
        self.assertIn("MC1001", err)

    def test_completion_is_a_valid_script(self):
        for tool in TOOLS:
            script = text_of(tool, "--completion", "bash")
            done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""), tool)
            for verb in verbs(tool):
                self.assertIn(verb, script)
            self.assertTrue(text_of(tool, "--completion", "zsh").startswith(f"#compdef {tool}\n"))

    def test_bash_completes_flags_and_verbs(self):
        tool = "mc-prefill"
        if tool not in TOOLS:
            self.skipTest("mc-prefill is not built")
        for words, wanted in (
            (["--block-to"], "--block-tokens"),
            (["on"], "once"),
            (["once", "--kv-o"], "--kv-out"),
            (["--dtype", "b"], "bf16"),
        ):
            line = " ".join(f"'{w}'" for w in [tool, *words])
            script = text_of(tool, "--completion", "bash")
            script += f"\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; _mc_prefill; echo \"${{COMPREPLY[@]}}\""
            done = subprocess.run(["bash", "-c", script], text=True, capture_output=True, timeout=60)
            self.assertIn(wanted, done.stdout.split(), done.stderr)


class Refusals(unittest.TestCase):
    def refused(self, number, exit_code, *words, **kwargs):
        code, out, err = cluster.run(*words, **kwargs)
        self.assertEqual(code, exit_code, f"{words}: {err}")
        self.assertEqual(out, b"", words)
        self.assertTrue(err.startswith(f"{words[0]}: error {number} "), f"{words}: {err}")
        self.assertRegex(err, rf"\n  next:  .+; details: {words[0]} help {number}\n$")
        return err

    def test_an_unknown_flag_names_the_nearest_one(self):
        for tool in TOOLS:
            self.assertIn("--log-levle", self.refused("MC1001", 2, tool, "--log-levle", "info"))
        for tool in DAEMONS:
            self.assertIn("did you mean --transport?", self.refused("MC1001", 2, tool, "--tranport", "tcp"))

    def test_an_unknown_verb_lists_the_verbs(self):
        for tool in TOOLS:
            err = self.refused("MC1001", 2, tool, "frobnicate")
            for verb in verbs(tool):
                self.assertIn(verb, err)

    def test_a_bad_value_names_its_source(self):
        for tool in DAEMONS:
            self.assertIn("--transport", self.refused("MC1002", 2, tool, "--transport", "pigeon"))
            env = clean_environment(MCT_TRANSPORT="pigeon")
            self.assertIn("MCT_TRANSPORT", self.refused("MC1002", 2, tool, env=env))

    def test_a_bad_config_file_is_refused(self):
        with tempfile.TemporaryDirectory(prefix="mct-help-") as directory:
            path = os.path.join(directory, "c.toml")
            for text in ("no-such-flag = 1\n", "transport = \n", "\x00\x01"):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                for tool in DAEMONS:
                    self.refused("MC1003", 2, tool, "--config", path)
            for tool in DAEMONS:
                self.refused("MC1003", 2, tool, "--config", os.path.join(directory, "none.toml"))

    def test_verbs_without_a_conductor_say_who_did_not_answer(self):
        if "mc-conductor" not in TOOLS:
            self.skipTest("mc-conductor is not built")
        url = "http://127.0.0.1:1"
        for words in (["ps"], ["drain", "p0"], ["undrain", "p0"], ["wait", "--timeout", "200ms"]):
            self.assertIn(url, self.refused("MC2101", 3, "mc-conductor", *words, "--url", url))
        with tempfile.TemporaryDirectory(prefix="mct-help-") as folder:
            for words in (["ps"], ["drain", "p0"], ["wait", "--timeout", "200ms"]):
                env = clean_environment(MCT_RUN_DIR=folder + "/run")
                self.assertIn(folder, self.refused("MC2101", 3, "mc-conductor", *words, env=env))
        self.refused("MC1001", 2, "mc-conductor", "explain", "--url", url)
        self.refused("MC1001", 2, "mc-conductor", "drain")

    def test_words_of_other_programs_get_a_hint(self):
        if not {"mc-conductor", "mc-prefill"} <= set(TOOLS):
            self.skipTest("mc-conductor or mc-prefill is not built")
        for word, hint in (("status", "mc-conductor ps"), ("list", "mc-conductor ps"), ("stop", "SIGTERM")):
            self.assertIn(hint, self.refused("MC1001", 2, "mc-conductor", word))
        for word, hint in (("ls", "mc-cache ls NODE"), ("ask", "mc-conductor ask TEXT"), ("top", "mc-conductor top")):
            if word != "ask":  # mc-prefill has a verb of that name
                self.assertIn(hint, self.refused("MC1001", 2, "mc-prefill", word))
            if "mc-decode" in TOOLS:
                self.assertIn(hint, self.refused("MC1001", 2, "mc-decode", word))
        for flag in ("--port", "--host"):
            err = self.refused("MC1001", 2, "mc-conductor", flag, "8000")
            self.assertIn("--http ADDR:PORT", err)
            self.assertNotIn("did you mean", err)
        for flag, hint in (("--tensor-parallel-size", "--device cuda:0-3 splits each layer over GPUs"),
                           ("--gpu-memory-utilization", "--device-mem takes a size or a share, as in 8GiB or 90%")):
            self.assertIn(hint, self.refused("MC1001", 2, "mc-prefill", flag, "2"))
        self.assertIn("did you mean --block-tokens?", self.refused("MC1001", 2, "mc-prefill", "--blok-tokens", "64"))

    def test_the_next_step_of_a_bad_value_names_no_flag_that_the_verb_lacks(self):
        for tool, verb, number, *words in (
            ("mc-prefill", "ask", "MC1002", "p0", "--prompt-ids", "5,x"),
            ("mc-prefill", "ask", "MC1002", "p0", "-p", "a", "--timeout", "2h"),
            ("mc-prefill", "ask", "MC1002", "", "-p", "a"),
            ("mc-prefill", "once", "MC1002", "--prompt-ids", "5,x"),
            ("mc-cache", "ls", "MC1002", "https://h:1"),
            ("mc-cache", "get", "MC1002", "h:99999", "k"),
            ("mc-conductor", "ps", "MC1001", "--port", "8000"),
            ("mc-cache", "ls", "MC1001", "c0", "--port", "8300"),
        ):
            if tool not in TOOLS:
                continue
            step = self.refused(number, 2, tool, verb, *words).split("  next:  ")[1]
            known = re.findall(r"--[a-z][a-z-]*", text_of(tool, "help", verb)) + ["--help"]
            self.assertLessEqual(set(re.findall(r"--[a-z][a-z-]*", step)), set(known), (tool, verb, step))

    def test_addresses_that_are_none_are_refused_by_their_flag(self):
        if "mc-prefill" not in TOOLS:
            self.skipTest("mc-prefill is not built")
        err = self.refused("MC1002", 2, "mc-prefill", "--conductor", "10.0.0.1:7700")
        self.assertIn("where: --conductor", err)
        self.assertIn("next:  write tcp://10.0.0.1:7700", err)
        for wrong in ("http://127.0.0.1:7700", "foo", "shm://x", "sim:"):
            err = self.refused("MC1002", 2, "mc-prefill", "--conductor", wrong)
            self.assertIn(f"'{wrong}' is no control endpoint", err)
        self.assertIn("where: --bind", self.refused("MC1002", 2, "mc-prefill", "--bind", "nohost:1"))
        for flag in ("--allowed-host", "--insecure"):
            self.assertIn(f"where: {flag}", self.refused("MC1002", 2, "mc-prefill", flag, ""))

    def test_verbs_that_take_no_files_complete_none(self):
        if "mc-conductor" not in TOOLS:
            self.skipTest("mc-conductor is not built")
        script = text_of("mc-conductor", "--completion", "bash")
        with tempfile.TemporaryDirectory(prefix="mct-help-") as folder:
            open(os.path.join(folder, "a-file"), "w").close()
            asked = 'COMP_WORDS=(mc-conductor %s ""); COMP_CWORD=2; _mc_conductor; echo "${COMPREPLY[*]}"'
            for verb in ("drain", "why"):
                done = subprocess.run(
                    ["bash", "-c", script + asked % verb], cwd=folder, capture_output=True, text=True, timeout=60
                )
                self.assertEqual((done.stdout, done.stderr), ("\n", ""), verb)

    def test_a_cluster_shape_must_be_one(self):
        if "mc-conductor" not in TOOLS:
            self.skipTest("mc-conductor is not built")
        for shape in ("2x", "p", "0p0d", "1p", "1d", "1p1p1d", "999p1d", "1p1d "):
            self.refused("MC1002", 2, "mc-conductor", "--local", shape, "--print-commands")

    def test_the_commands_of_a_local_cluster_can_be_pasted(self):
        if "mc-conductor" not in TOOLS:
            self.skipTest("mc-conductor is not built")
        with tempfile.TemporaryDirectory(prefix="mct-$HOME-") as folder:
            env = dict(os.environ, MCT_RUN_DIR=folder, MCT_SSD=folder + "/kv:1GiB")
            words = ["mc-conductor", "--local", "1p1d1c", "--print-commands"]
            code, out, err = cluster.run(*words, env=env)
            self.assertEqual(code, 0, err)
            for name, line in zip(("p0", "d0", "c0"), out.decode().splitlines(), strict=True):
                words = shlex.split(line)
                self.assertEqual(words[words.index("--conductor") + 1], f"ipc://{folder}/conductor")
                self.assertEqual(words[words.index("--ssd") + 1], f"{folder}/kv/{name}:{1 << 30}")
                self.assertNotIn("--die-with-parent", words)

    def test_text_that_is_not_utf8_is_refused_before_anything_is_asked(self):
        if not {"mc-conductor", "mc-cache"} <= set(TOOLS):
            self.skipTest("not all tools are built")
        bad = "caf\udce9"  # the byte e9
        with tempfile.NamedTemporaryFile(prefix="mct-help-") as file:
            file.write(b"caf\xe9")
            file.flush()
            for words, where in (
                (["mc-conductor", "ask", bad], "TEXT"),
                (["mc-conductor", "ask", "-f", file.name], "-f"),
                (["mc-conductor", "ask", "--system", bad, "hello"], "--system"),
                (["mc-conductor", "explain", "-p", bad], "-p"),
                (["mc-cache", "warm", "c0", "-f", file.name], "-f"),
                (["mc-cache", "warm", "c0", "--system", bad], "--system"),
                (["mc-cache", "lookup", "c0", "-f", file.name], "-f"),
                (["mc-cache", "put", "c0", bad, file.name], "KEY"),
                (["mc-cache", "copy", "c0", "a", bad], "TO"),
            ):
                err = self.refused("MC1004", 2, *words)
                self.assertIn("not valid UTF-8 at byte 3", err, words)
                self.assertIn("where: " + where, err, words)

    def test_a_store_that_cannot_be_read_is_not_called_absent(self):
        if "mc-cache" not in TOOLS:
            self.skipTest("mc-cache is not built")
        with tempfile.TemporaryDirectory(prefix="mct-help-") as folder:
            self.assertIn("No such file or directory", self.refused("MC5005", 1, "mc-cache", "fsck", folder + "/none"))
            self.assertIn("has no block store", self.refused("MC5005", 1, "mc-cache", "fsck", folder))
            os.chmod(folder, 0)
            other = {"user": 65534} if os.geteuid() == 0 else {}
            words = [cluster.program("mc-cache"), "fsck", folder]
            done = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=60, **other)
            os.chmod(folder, 0o700)
            self.assertEqual(done.returncode, 1)
            self.assertIn("Permission denied", done.stderr)

    def test_help_explains_the_codes_of_http_errors(self):
        if "mc-conductor" not in TOOLS:
            self.skipTest("mc-conductor is not built")
        for code, number in (("not_admin", "MC4026"), ("foreign_site", "MC4027"), ("invalid_value", "MC4002")):
            self.assertIn(number, text_of("mc-conductor", "help", code))

    def test_what_admission_does_not_look_at_is_refused_and_so_are_values_out_of_range(self):
        if "mc-conductor" not in TOOLS:
            self.skipTest("mc-conductor is not built")
        check = ["mc-conductor", "--http", "127.0.0.1:0", "--check"]
        for words, what in (
            (["--slack", "0"], "'0' is not above 0"),
            (["--slack", "nan"], "--slack"),
            (["--slow-start", "-1s"], "--slow-start"),
            (["--t-d", "soon"], "--t-d"),
            (["--aggregate", "sum"], "mean|max"),
            (["--t-d", "5s"], "--t-d 5s applies to --admission predict; this run has --admission committed"),
            (["--aggregate", "max", "--admission", "early"], "--admission predict; this run has --admission early"),
            (["--slack", "1.2", "--admission", "none"], "choose --admission early"),
            (["--slack", "1.2", "--admission", "baseline"], "early, predict, committed, goodput"),
        ):
            self.assertIn(what, self.refused("MC1002", 2, *check, *words))
        with tempfile.TemporaryDirectory(prefix="mct-help-") as folder:
            words = [
                "--admission",
                "predict",
                "--t-d",
                "5s",
                "--slack",
                "1.2",
                "--aggregate",
                "max",
                "--slow-start",
                "1m",
            ]
            code, _, err = cluster.run(*check, *words, env=clean_environment(MCT_RUN_DIR=folder))
        self.assertEqual(code, 0, err)

    def test_a_flag_of_a_rule_that_is_not_chosen_is_refused(self):
        if "mc-conductor" not in TOOLS:
            self.skipTest("mc-conductor is not built")
        check = ["mc-conductor", "--http", "127.0.0.1:0", "--check"]
        for words, what, rule in (
            (["--fetch-threshold", "2"], "--fetch-threshold 2 means nothing with --fetch-rule cost", "threshold"),
            (["--replicate-rate", "1GiB"], "--replicate-rate 1GiB means nothing with --replicate off", "3"),
        ):
            err = self.refused("MC1002", 2, *check, *words)
            self.assertIn(what, err)
            chooser = what.split()[-2]
            self.assertIn(f"choose {chooser} {rule}", err)
            with tempfile.TemporaryDirectory(prefix="mct-help-") as folder:
                env = clean_environment(MCT_RUN_DIR=folder)
                code, _, err = cluster.run(*check, *words, chooser, rule, env=env)
            self.assertEqual(code, 0, err)

    def test_what_the_environment_says_of_transfers_reaches_the_workers_of_a_local_cluster(self):
        if not {"mc-conductor", "mc-prefill", "mc-decode"} <= set(TOOLS):
            self.skipTest("not all tools are built")
        with tempfile.TemporaryDirectory(prefix="mct-help-") as folder:
            env = dict(clean_environment(MCT_RDMA_PACE="slowly"), MCT_RUN_DIR=folder)
            words = ["mc-conductor", "--local", "1p1d", "--http", "127.0.0.1:0"]
            code, _, err = cluster.run(*words, env=env)
        self.assertEqual(code, 1, err)
        self.assertIn("MC5007", err)  # a worker ended early,
        self.assertRegex(err, r"mc-(prefill|decode): error MC1002")  # because it heard of this:
        self.assertIn("MCT_RDMA_PACE", err)


class Settings(unittest.TestCase):
    def settings(self, tool, *words, **env):
        lines = text_of(tool, "--print-config", "--json", *words, env=clean_environment(**env)).splitlines()
        found = {}
        for line in lines:
            setting = json.loads(line)
            self.assertEqual(setting["type"], "setting")
            found[setting["key"]] = (setting["value"], setting["origin"])
        return found

    def test_flag_beats_environment_beats_file_beats_default(self):
        with tempfile.TemporaryDirectory(prefix="mct-help-") as directory:
            path = os.path.join(directory, "c.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write('seed = 1\nlog-level = "warn"\nlog-format = "json"\n')
            for tool in DAEMONS:
                got = self.settings(tool, "--config", path, "--seed", "3", MCT_SEED="2", MCT_LOG_LEVEL="error")
                self.assertEqual(got["seed"], ("3", "flag"))
                self.assertEqual(got["log-level"], ("error", "environment MCT_LOG_LEVEL"))
                self.assertEqual(got["log-format"], ("json", f"file {path}:3"))
                self.assertEqual(got["transport"], ("auto", "default"))

    def test_printed_settings_read_back_the_same(self):
        with tempfile.TemporaryDirectory(prefix="mct-help-") as directory:
            path = os.path.join(directory, "c.toml")
            for tool in DAEMONS:
                printed = text_of(
                    tool, "--print-config", "--seed", "7", "--transport", "tcp", env=clean_environment()
                )
                with open(path, "w", encoding="utf-8") as file:
                    file.write(printed)
                before = self.settings(tool, "--seed", "7", "--transport", "tcp")
                after = self.settings(tool, "--config", path)
                for one_only in (before, after):
                    one_only.pop("config", None)
                self.assertEqual({k: v[0] for k, v in before.items()}, {k: v[0] for k, v in after.items()}, tool)
                self.assertEqual(after["seed"][1].split(":")[0], f"file {path}")

    def test_printed_defaults_are_settings_that_run(self):
        runs = [(tool, "--http", "127.0.0.1:0", "--check") for tool in DAEMONS]
        runs += [("mc-prefill", "once", "-p", "a", "-n", "1")]
        with tempfile.TemporaryDirectory(prefix="mct-help-") as directory:
            path = os.path.join(directory, "c.toml")
            env = dict(clean_environment(), MCT_RUN_DIR=os.path.join(directory, "run"))
            for tool, *words in runs:
                if tool not in TOOLS:
                    continue
                verb = words[:1] if words[0] == "once" else []
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text_of(tool, *verb, "--print-config", env=env))
                code, _, err = cluster.run(tool, *words, "--config", path, env=env)
                self.assertEqual(code, 0, err)


if __name__ == "__main__":
    unittest.main()

"""The manual pages and the README against the programs: what they say about flags and errors is what the table says.

OPTIONS is made from the output of `help mdoc-options`, the list in DIAGNOSTICS of mc.7 is that of `help mdoc-errors`,
the metrics in mc.7 are those of `mc-conductor help mdoc-metrics`, and the lists of reasons in mc-conductor(1) are those
of `mc-conductor help mdoc-reasons`; `man_test.py --write` pastes them. Everything else in the pages is written by hand.
mc-bench has a page for each family of verbs; a flag that several verbs of a page share is listed once.
"""

import functools
import glob
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

import cluster

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
MAN = os.path.join(ROOT, "man")
TOOLS = ["mc-conductor", "mc-prefill", "mc-decode", "mc-cache", "mc-bench"]
ORDER = [
    "NAME",
    "SYNOPSIS",
    "DESCRIPTION",
    "OPTIONS",
    "OUTPUT",
    "ENVIRONMENT",
    "FILES",
    "SIGNALS",
    "EXIT STATUS",
    "EXAMPLES",
    "SEE ALSO",
]
REQUIRED = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "OUTPUT", "EXAMPLES", "SEE ALSO"]
FAMILIES = {
    "mc-bench-serve": ["serve", "replay"],
    "mc-bench-trace": ["trace"],
    "mc-bench-sim": ["sim", "advise"],
    "mc-bench-route": ["route"],
    "mc-bench-model": ["model", "recall", "tok", "grammar", "mkmodel", "diff-kv"],
    "mc-bench-attn": ["attn", "ops"],
    "mc-bench-gpu": ["gpu"],
    "mc-bench-xfer": ["xfer"],
    "mc-bench-rfp": ["rfp"],
    "mc-bench-disk": ["disk"],
    "mc-bench-kv": ["kv"],
    "mc-bench-doctor": ["doctor"],
    "mc-bench-plot": ["plot"],
}
WIDTH = 80
ERRORS = re.compile(r'(?<=\.\\" begin mdoc-errors\n).*?(?=\.\\" end mdoc-errors\n)', re.S)
METRICS = re.compile(r'(?<=\.\\" begin mdoc-metrics\n).*?(?=\.\\" end mdoc-metrics\n)', re.S)
REASONS = re.compile(r'(?<=\.\\" begin mdoc-reasons\n).*?(?=\.\\" end mdoc-reasons\n)', re.S)
OPTIONS = re.compile(r"(?<=\n\.Sh OPTIONS\n).*?(?=\.Sh OUTPUT\n)", re.S)


def page(name):
    with open(os.path.join(MAN, name), encoding="utf-8") as file:
        return file.read()


def pages():
    return sorted(glob.glob(os.path.join(MAN, "*.[157]")))


def tools():
    """Those that are built and have a page."""
    return [
        t
        for t in TOOLS
        if os.access(os.path.join(cluster.BUILD, t), os.X_OK) and os.path.exists(os.path.join(MAN, t + ".1"))
    ]


def pasted():
    """Pages with OPTIONS from the table, and the program and the verbs whose flags each lists."""
    for tool in tools():
        if tool == "mc-bench":
            yield tool, tool, []
            for family, words in FAMILIES.items():
                yield family, tool, words
        else:
            yield tool, tool, verbs(tool)


def text_of(*words, **kwargs):
    code, out, err = cluster.run(*words, **kwargs)
    assert code == 0, f"{words}: exit {code}: {err}"
    return out.decode()


@functools.cache
def help_of(*words):
    """The help of a program or of one of its verbs, which several tests compare with pages."""
    return text_of(*words, "--help")


def long_flags(text):
    return set(re.findall(r"(?<![-\w])--([a-z][a-z0-9-]*)", text))


class Table:
    """The output of `help mdoc-options`: the program's own list, and heading, summary and flags of each verb."""

    def __init__(self, tool):
        text = text_of(tool, "help", "mdoc-options")
        lines = [part for line in text.splitlines() for part in textwrap.wrap(line, 116, break_on_hyphens=False)]
        self.program, *sections = re.split(r"^\.Ss ", "\n".join(lines) + "\n", flags=re.M)
        self.verbs = {}
        for section in sections:
            heading, rest = section.split("\n", 1)
            summary = rest.split(".Bl", 1)[0]
            flags = re.findall(r"^\.It .*?(?=^\.It |^\.El)", rest, re.S | re.M)
            self.verbs[heading.split()[0].replace("\\-", "-")] = (heading, summary, flags)


def options(table, names, whole):
    """OPTIONS of a page: the program's flags if whole, each verb with its own flags, then those that verbs share."""
    users = {}
    for name in names:
        for flag in table.verbs[name][2]:
            users.setdefault(flag, []).append(name)
    text = table.program if whole else ""
    for name in names:
        heading, summary, flags = table.verbs[name]
        text += f".Ss {heading}\n{summary}" + listed([f for f in flags if users[f] == [name]])
    groups = {}
    for flag, by in users.items():
        if len(by) > 1:
            groups.setdefault(tuple(by), []).append(flag)
    for by, flags in groups.items():
        text += f".Ss {', '.join(by[:-1])} and {by[-1]}\n".replace("-", "\\-") + listed(flags)
    return text


def listed(flags):
    return ".Bl -tag -width Ds\n" + "".join(flags) + ".El\n" if flags else ""


@functools.cache
def rendered(path):
    """A page as a terminal shows it, without the marks for bold and underlined."""
    words = ["groff", "-mandoc", "-ww", "-Tutf8", "-P-cbou", "-rLL=78n", "-rLT=78n", path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), f"{path}: {done.stderr}"
    return done.stdout


def table_flags(help_text):
    """Flags a help text defines: the heads of its rows and the line of common ones; not those in prose."""
    found = set()
    for line in help_text.splitlines():
        row = re.match(r"\s+(?:-\w, )?--([a-z][a-z0-9-]*)", line)
        if row:
            found.add(row.group(1))
    common = re.search(r"^Common \(.*?\):(.*?)(?:\n\n|\Z)", help_text, re.S | re.M)
    return found | (long_flags(common.group(1)) if common else set())


def verbs(tool):
    listed = re.search(r"^Verbs .*?:\n(.*?)\n\n", help_of(tool), re.S | re.M)
    return re.findall(r"^  ([a-z][a-z-]*)", listed.group(1), re.M) if listed else []


def examples(text):
    """Commands of the literal displays in EXAMPLES, unescaped, each on one line."""
    part = text[text.index(".Sh EXAMPLES\n") : text.index(".Sh SEE ALSO")]
    for display in re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed", part, re.S | re.M):
        display = display.replace("\\-", "-").replace("\\(dq", '"').replace("\\e", "\\")
        yield from re.sub(r"\\\n *", "", display).splitlines()


def readme():
    """The shell commands that the README shows, block by block."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        return re.findall(r"^```sh\n(.*?)^```", file.read(), re.S | re.M)


def readme_output(command):
    """The output that the README shows after the block of shell that ends with the command."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        return re.search(rf"^{command}[^\n]*\n```\n```\n(.*?)^```", file.read(), re.S | re.M)[1]


def keys(value):
    """Every key of an object and of what is in it; of a list, those of its first item."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list) and value:
        yield from keys(value[0])


def output_words(name):
    """The words of a page's OUTPUT, among them every key of its JSON."""
    text = page(name + ".1")
    start = text.index(".Sh OUTPUT")
    return set(re.findall(r"[a-z_0-9]+", text[start : text.index("\n.Sh ", start)]))


class Pages(unittest.TestCase):
    def test_every_page_renders_without_a_warning_within_80_columns(self):
        for path in pages():
            for line in rendered(path).splitlines():
                self.assertLessEqual(len(line), WIDTH, f"{path}: {line}")

    def test_no_quotation_opens_inside_another(self):
        for path in pages():
            text = rendered(path)
            for found in (re.search("‘[^’]*‘", text), re.search("“[^”]*“", text)):
                self.assertIsNone(found, f"{path}: {found and found.group(0)}")

    def test_every_page_names_the_project(self):
        for path in pages():
            first, *_, last = rendered(path).strip().splitlines()
            self.assertRegex(first, "Mooncake", path)
            self.assertRegex(last, "^Mooncake", path)

    def test_sections_come_in_order(self):
        for path in pages():
            if path.endswith(".1"):
                found = re.findall(r"^\.Sh (.*)$", page(os.path.basename(path)), re.M)
                self.assertEqual(found, [s for s in ORDER if s in found], path)
                part = os.path.basename(path)[:-2] in FAMILIES
                self.assertLessEqual(set(REQUIRED if part else ORDER), set(found), path)

    def test_every_verb_of_mc_bench_has_one_page(self):
        if "mc-bench" in tools():
            self.assertEqual(sorted(verbs("mc-bench")), sorted(v for words in FAMILIES.values() for v in words))
            for family, words in FAMILIES.items():
                for verb in words:
                    self.assertRegex(page("mc-bench.1"), rf"(?m)^\.It Cm {verb}\b".replace("-", r"\\?-"), verb)
                self.assertIn(f".Xr {family} 1", page("mc-bench.1"))

    def test_every_built_tool_has_a_page(self):
        for tool in TOOLS:
            if os.access(os.path.join(cluster.BUILD, tool), os.X_OK):
                self.assertTrue(os.path.exists(os.path.join(MAN, tool + ".1")), tool)

    def test_options_are_those_of_the_table(self):
        for name, tool, words in pasted():
            found = OPTIONS.search(page(name + ".1"))
            self.assertIsNotNone(found, name)
            self.assertEqual(
                found.group(0).strip(),
                options(Table(tool), words, name == tool).strip(),
                f"man/{name}.1: run tests/cli/man_test.py --write",
            )

    def test_errors_are_those_of_the_table(self):
        found = ERRORS.search(page("mc.7")).group(0).strip()
        self.assertEqual(
            found, text_of("mc-prefill", "help", "mdoc-errors").strip(), "man/mc.7: run tests/cli/man_test.py --write"
        )

    def test_metrics_are_those_of_the_table(self):
        found = METRICS.search(page("mc.7")).group(0).strip()
        table = text_of("mc-conductor", "help", "mdoc-metrics").strip()
        self.assertEqual(found, table, "man/mc.7: run tests/cli/man_test.py --write")
        self.assertIn("vllm:time_to_first_token_seconds", text_of("mc-conductor", "help", "metrics"))
        self.assertIn("histogram", text_of("mc-conductor", "help", "mc_xfer_seconds"))

    def test_reasons_are_those_of_the_table(self):
        found = REASONS.search(page("mc-conductor.1")).group(0).strip()
        table = text_of("mc-conductor", "help", "mdoc-reasons").strip()
        self.assertEqual(found, table, "man/mc-conductor.1: run tests/cli/man_test.py --write")

    def test_help_on_a_reason_has_its_row(self):
        for word in re.findall(r"^\.It Cm (\S+)$", REASONS.search(page("mc-conductor.1")).group(0), re.M):
            self.assertRegex(text_of("mc-conductor", "help", word), rf"(?m)^{re.escape(word)} +\w", word)

    def test_flags_of_help_and_of_the_page_are_the_same(self):
        for name, tool, words in pasted():
            told = table_flags(help_of(tool))
            if tool != "mc-bench":
                told |= table_flags(text_of(tool, "help", "common"))
            own = set().union(*(table_flags(help_of(tool, verb)) for verb in words))
            text = page(name + ".1").replace("\\-", "-")
            defined = set(re.findall(r"^\.It (?:Fl \w , )?Fl -([a-z][a-z0-9-]*)", text, re.M))
            self.assertEqual(told | own if name == tool else own - told, defined, name)
            mentioned = set(re.findall(r"Fl -([a-z][a-z0-9-]*)", text))
            self.assertLessEqual(mentioned, told | own, f"{name}: the page names flags that do not exist")

    def test_flags_in_examples_exist(self):
        shown = [line for name, _, _ in pasted() for line in examples(page(name + ".1"))]
        shown += [line.split("#")[0] for block in readme() for line in block.splitlines()]
        for line in shown:
            for command in re.split(r"[|&;]", line):
                words = [w for w in command.split() if "=" not in w or w.startswith("--")]
                if not words or words[0] not in tools():
                    continue
                verb = next((w for w in words[1:2] if w in verbs(words[0])), None)
                known = table_flags(help_of(words[0], verb) if verb else help_of(words[0]))
                used = {w[2:].split("=")[0] for w in words[1:] if w.startswith("--")}
                self.assertLessEqual(used, known, line)

    def test_the_two_hosts_of_the_readme_form_a_cluster(self):
        if not {"mc-prefill", "mc-decode", "mc-conductor"} <= set(tools()):
            self.skipTest("not all tools are built")
        [block] = [b for b in readme() if "keygen" in b]
        path = os.path.abspath(cluster.BUILD) + os.pathsep + os.environ["PATH"]
        for _ in range(4):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            script = re.sub(r"10\.0\.0\.\d", "127.0.0.1", block).replace("7700", str(port))
            script = script.replace("mc-conductor --auth", "mc-conductor --http 127.0.0.1:0 --auth")
            script += "mc-conductor wait --timeout 60s; status=$?\nkill $(jobs -p); wait\nexit $status\n"
            with tempfile.TemporaryDirectory(prefix="mct-readme-") as folder:
                run_dir = os.path.join(folder, "run")
                os.mkdir(run_dir, 0o700)
                environment = dict(os.environ, PATH=path, MCT_RUN_DIR=run_dir)
                words = ["bash", "-c", script]
                done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
            if "MC5001" not in done.stderr:  # else another program took the port in the meantime
                break
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_readme_stays_short(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            text = file.read()
        self.assertLessEqual(len(text.splitlines()), 200)
        self.assertLessEqual(len(text.split()), 1800)

    def test_every_key_of_json_output_is_in_the_page(self):
        """Keys of the verbs that need no cluster."""
        if not {"mc-prefill", "mc-decode", "mc-cache"} <= set(tools()):
            self.skipTest("not all tools are built")
        prompt = ["--prompt-ids", "5,17,9"]
        stream = cluster.run("mc-prefill", "once", *prompt, "--kv-out", "-")[1]
        outputs = {
            "mc-prefill": cluster.run("mc-prefill", "once", *prompt, "-n", 2, "--logprobs", 1, "--json")[1],
            "mc-decode": cluster.run(
                "mc-decode", "once", "--kv-in", "-", "-n", 2, "--logprobs", 1, "--json", stdin=stream
            )[1],
            "mc-cache": cluster.run("mc-cache", "inspect", "-", "--json", stdin=stream)[1],
        }
        for tool, out in outputs.items():
            self.assertLessEqual(set(keys(json.loads(out.splitlines()[-1]))), output_words(tool), tool)

    def test_every_key_of_a_running_cluster_is_in_the_page_and_its_examples_run(self):
        if not {"mc-prefill", "mc-decode", "mc-cache", "mc-conductor"} <= set(tools()):
            self.skipTest("not all tools are built")
        with cluster.Cluster("2p2d1c") as c:
            url = f"http://127.0.0.1:{c.url_port}"
            own = dict(env=c.env)
            request = json.dumps({"prompt": "Once upon a time " * 60})
            outputs = [json.dumps(c.processes["conductor"].ready)]
            outputs += text_of("mc-conductor", "ps", "--json", **own).splitlines()
            outputs.append(text_of("mc-conductor", "top", "--once", "--interval", "100ms", "--json", **own))
            for verb in (["drain", "p1"], ["undrain", "p1"]):
                outputs.append(text_of("mc-conductor", *verb, "--json", **own))
            explain = ["mc-conductor", "explain", "--json", "-f", "-"]
            outputs.append(text_of(*explain, stdin=request.encode(), **own))
            with open(os.path.join(ROOT, "LICENSE"), encoding="utf-8") as file:
                shown = json.dumps({"prompt": file.read(4000).rstrip("\n"), "max_tokens": 4})
            self.assertEqual(c.request("POST", "/v1/completions", json.loads(shown))[0], 200)
            told = text_of("mc-conductor", "explain", "-f", "-", stdin=shown.encode(), **own).splitlines()
            printed = readme_output("mc-conductor explain").splitlines()
            self.assertEqual(told[0], printed[0])
            self.assertEqual(told[1].split(), printed[1].split())
            outputs.append(json.dumps(c.complete("Once upon", max_tokens=2)["mc"]))
            body = {"prompt": "Once upon", "max_tokens": 2}
            self.assertEqual(c.request("POST", "/v1/completions", body, {"x-request-id": "why-1"})[0], 200)
            outputs.append(text_of("mc-conductor", "why", "why-1", "--json", **own))
            answer_node = {"p0", "p1", "d0", "d1", "c0"}  # cached_from and ready lines have names for keys
            for out in outputs:
                self.assertLessEqual(set(keys(json.loads(out))) - answer_node, output_words("mc-conductor"), out)
            environment = dict(c.env, PATH=os.path.abspath(cluster.BUILD) + os.pathsep + os.environ["PATH"])
            ran = 0
            for line in examples(page("mc-conductor.1")):
                if not re.search(r"mc-conductor (wait|ps|top|explain)|localhost:8000", line):
                    continue
                line = line.replace("localhost:8000", url)
                done = subprocess.run(
                    ["bash", "-o", "pipefail", "-c", line],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=100,
                )
                self.assertEqual(done.returncode, 0, f"{line}\n{done.stderr}")
                self.assertNotIn('"error"', done.stdout, line)
                ran += 1
            self.assertGreaterEqual(ran, 4)

    def test_examples_without_a_cluster_run(self):
        """Every example line that needs no daemon, in a shell, with the built tools first in the path."""
        if not {"mc-prefill", "mc-decode", "mc-cache", "mc-conductor"} <= set(tools()):
            self.skipTest("not all tools are built")
        directory = tempfile.mkdtemp(prefix="mct-man-")
        environment = dict(os.environ, PATH=os.path.abspath(cluster.BUILD) + os.pathsep + os.environ["PATH"])
        ran = 0
        try:
            for tool in ["mc-prefill", "mc-decode", "mc-cache", "mc-conductor"]:
                for line in examples(page(tool + ".1")):
                    if not re.search(r" once | inspect | keygen|--print-config|--print-commands|--check", line):
                        continue
                    done = subprocess.run(
                        ["bash", "-o", "pipefail", "-c", line],
                        cwd=directory,
                        env=environment,
                        capture_output=True,
                        text=True,
                        timeout=100,
                    )
                    self.assertEqual(done.returncode, 0, f"man/{tool}.1: {line}\n{done.stderr}")
                    ran += 1
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        self.assertGreaterEqual(ran, 12)


def write():
    for name, tool, words in pasted():
        path = os.path.join(MAN, name + ".1")
        table = options(Table(tool), words, name == tool)
        text = OPTIONS.sub(lambda _: table, page(name + ".1"), count=1)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    text = ERRORS.sub(lambda _: text_of("mc-prefill", "help", "mdoc-errors"), page("mc.7"), count=1)
    text = METRICS.sub(lambda _: text_of("mc-conductor", "help", "mdoc-metrics"), text, count=1)
    with open(os.path.join(MAN, "mc.7"), "w", encoding="utf-8") as file:
        file.write(text)
    text = REASONS.sub(lambda _: text_of("mc-conductor", "help", "mdoc-reasons"), page("mc-conductor.1"), count=1)
    with open(os.path.join(MAN, "mc-conductor.1"), "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
        sys.exit(0)
    if not shutil.which("groff"):
        print("groff is not installed", file=sys.stderr)
        sys.exit(cluster.SKIP)
    unittest.main()

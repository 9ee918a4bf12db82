"""Daemons of this toolkit and replays of traces against them, for bench-http, sim-cliff and sim-vs-live."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile

NAME = os.path.basename(sys.argv[0])
STOP_S = 60  # a daemon that does not end within this time is killed


def give_up(text):
    sys.exit(f"{NAME}: {text}")


def program(build, name):
    path = os.path.join(os.path.abspath(build), name)
    if not os.access(path, os.X_OK):
        give_up(f"{path} is not there; build it first (scripts/test), or say where it is: --build DIR")
    return path


def lines(path):
    """The objects of a file of JSON lines."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError) as error:
        give_up(f"{path}: {error}")


def bench(build, *words):
    """The standard output of mc-bench."""
    words = [program(build, "mc-bench"), *map(str, words)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        give_up(f"mc-bench {words[1]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class LiveRun:
    """Daemons that share a new run folder below `folder`. They are ended when the `with` is left."""

    def __init__(self, build, folder, **environment):
        self.build = build
        self.folder = tempfile.mkdtemp(dir=folder)
        self.env = dict(os.environ, MCT_RUN_DIR=self.folder, **environment)
        self.processes = []
        self.url = None  # of the conductor's front door

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log_of(self, name):
        return os.path.join(self.folder, name + ".log")

    def start(self, name, *words, stdout=subprocess.DEVNULL):
        words = [program(self.build, name), *words]
        with open(self.log_of(name), "wb") as log:
            self.processes.append(subprocess.Popen(words, env=self.env, stdout=stdout, stderr=log))
        return self.processes[-1]

    def report(self, process):
        """Gives up with the last lines that a daemon wrote before it ended."""
        name = os.path.basename(process.args[0])
        with open(self.log_of(name), encoding="utf-8", errors="replace") as log:
            give_up(f"{name} ended with {process.wait(STOP_S)} before it was ready: {log.read()[-2000:].strip()}")

    def start_conductor(self, *words):
        """Waits until the conductor is ready. Returns its process."""
        words = [*words, "--http", "127.0.0.1:0", "--json"]
        conductor = self.start("mc-conductor", *words, stdout=subprocess.PIPE)
        line = conductor.stdout.readline()
        if not line:
            self.report(conductor)
        self.url = json.loads(line)["http"]
        return conductor

    def await_nodes(self, prefill, decode):
        words = ["wait", "--prefill", str(prefill), "--decode", str(decode), "--timeout", "60s"]
        if not os.path.exists(os.path.join(self.folder, "conductor.http")):
            words += ["--url", self.url]  # a release from before the operators' socket
        words = [program(self.build, "mc-conductor"), *words]
        wait = subprocess.Popen(words, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.processes.append(wait)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if wait.wait(0.2) == 0:
                    return
                give_up(f"the nodes are not ready: {wait.stderr.read().strip()}")
            for process in self.processes:
                if process.poll() is not None:
                    self.report(process)

    def replay(self, trace, result, *words):
        """The completed requests, as mc-bench replay saves them in the file `result`.requests.jsonl."""
        folder, name = os.path.split(result)
        words = [program(self.build, "mc-bench"), "replay", trace, "--base-url", self.url, *words]
        words += ["--num-warmups", "0", "--save-result", "--save-detailed", "--result-dir", folder]
        words += ["--result-filename", name, "--json", "--progress", "never", "--late-max", "1s"]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False)
        path = result + ".requests.jsonl"
        if not os.path.exists(path):
            give_up(f"mc-bench replay ended with {done.returncode}: {done.stderr.strip()}")
        return [request for request in lines(path) if request["outcome"] == "completed"]

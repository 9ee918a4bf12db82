"""Parts that the attack suite shares: a second user of this host, counts for each tier, and a stranger's sockets.

A test that needs a second user runs where the tests run as root, and skips with that reason elsewhere. Counts are
small in the quick tier and large with MC_TEST_FULL=1. Random inputs come from a seed that is printed and that
MC_ATTACK_SEED sets.
"""

import functools
import glob
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

from cluster import FULL, count, is_sanitized  # noqa: F401  (tests take them from here)

OTHER_UID = 65534  # "nobody" on Debian: any user that is neither root nor the one that runs the cluster
PATIENT = ["--connect-timeout", "30s"]  # of both sides of mc-bench xfer: a crowded machine may need more than 5 s

def seeded(name):
    """A random generator whose seed is printed, so that a failure can be run again."""
    seed = int(os.environ.get("MC_ATTACK_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"{name}: MC_ATTACK_SEED={seed}", file=sys.stderr)
    return random.Random(seed)


def needs_second_user(test):
    """Decorator: skips where this process may not become another user."""
    return unittest.skipUnless(os.geteuid() == 0, "a second user needs root")(test)


def private_file(test, name, text):
    """The path of a new file that only this user may read, and that goes with the test."""
    folder = tempfile.mkdtemp(prefix="mct-test-")
    test.addCleanup(shutil.rmtree, folder)
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        file.write(text)
    return path


def start_store(test, c, key, *flags):
    """Starts the cache node c0, whose store of values takes the key of one tenant. FOLDER in a flag: the cluster's."""
    keys = private_file(test, "keys.toml", f'[tenant.one]\nkeys = ["{key}"]\n')
    return c.start("c0", *(flag.replace("FOLDER", c.dir) for flag in flags), "--api-keys", keys)


def counts_memory(test):
    """Decorator: skips where a sanitizer's shadow and quarantine would be counted too, and end a process at a limit."""
    return unittest.skipIf(is_sanitized(), "a sanitizer has memory of its own")(test)


@functools.cache
def others_python():
    """A Python that another user may run: this one may lie below a home directory that is closed to others."""
    for path in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run([path, "-c", ""], cwd="/", user=OTHER_UID, check=True, timeout=60)
            return path
        except OSError:
            continue
    raise unittest.SkipTest("no Python that another user may run")


def as_other_user(script, *arguments, timeout=300):
    """Runs Python source as OTHER_UID with no groups: (exit code, stdout, stderr)."""
    done = subprocess.run(
        [others_python(), "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd="/",
        user=OTHER_UID,
        group=OTHER_UID,
        extra_groups=[],
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return done.returncode, done.stdout, done.stderr


def in_one(program, *modules):
    """The source of a program of this folder with the modules of this folder that it imports, as one text: another user
    cannot open the files."""
    here = os.path.dirname(os.path.abspath(__file__))
    sources = {}
    for name in (*modules, program):
        with open(os.path.join(here, name + ".py")) as file:
            sources[name] = file.read()
    lines = ["import sys, types"]
    for name in modules:
        lines.append(f"sys.modules[{name!r}] = types.ModuleType({name!r})")
        lines.append(f"exec({sources[name]!r}, sys.modules[{name!r}].__dict__)")
    return "\n".join([*lines, sources[program]])


def dial(port, host="127.0.0.1", timeout=60):
    """A connected TCP socket whose calls end after `timeout` seconds."""
    return socket.create_connection((host, port), timeout)


def preload(test, c, source):
    """The programs that the cluster starts from now on run with this C file of this folder before their libraries."""
    compiler = shutil.which("cc")
    if not compiler:
        test.skipTest("no C compiler for " + source)
    shim = os.path.join(c.dir, source + ".so")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), source)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True, timeout=60)
    # AddressSanitizer would refuse a library that is loaded before its own.
    options = os.environ.get("ASAN_OPTIONS", "")
    c.env.update(LD_PRELOAD=shim, ASAN_OPTIONS=(options + ":" if options else "") + "verify_asan_link_order=0")


def resident(pid):
    """Bytes of memory of its own that a process has in use."""
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def leave_memory(pid, room):
    """Lowers the limit on a process's address space to what it has now and `room` bytes."""
    with open(f"/proc/{pid}/status") as lines:
        size = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize"))
    resource.prlimit(pid, resource.RLIMIT_AS, (size + room, size + room))


def listeners(pid):
    """TCP ports that a process listens on: [(address as in /proc, port)]."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as lines:
            for line in list(lines)[1:]:
                field = line.split()
                if field[3] == "0A" and field[9] in inodes:
                    address, port = field[1].rsplit(":", 1)
                    found.append((address, int(port, 16)))
    return found


def children(pid):
    """Processes whose parent is `pid`."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.split("/")[2]))
    return found

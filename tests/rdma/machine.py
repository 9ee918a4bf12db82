"""Runs shell lines with the real programs in the machine with soft-RoCE (scripts/rdma-vm)."""

import os
import subprocess
import sys
import tempfile

import cluster

VM = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "rdma-vm"))

# The machine is an emulator, which takes some 200 ns for one multiplication: a model of two layers as narrow as they
# can be with the smallest vocabulary there is, and a cost profile so that nobody measures one.
SHAPE = "--layers 2 --hidden 32 --intermediate 32 --heads 1 --kv-heads 1 --head-dim 32 --vocab 264".split()
VOCAB = 256  # ids that a prompt draws from
COST = """
[node]
layers = 2
kv_bytes_per_token = 256
kv_capacity_tokens = 65536
[paths.net]
bytes_per_s = 50e6
[prefill]
fixed_s = 0.01
s_per_token = 0.002
[decode]
fixed_s = 0.02
s_per_row = 0.01
"""

START = "MC-START"  # the line that a machine prints before anything else
FOUND = {}  # what the machine of a test program printed, for all of its cases


def run(line, scripts):
    """Runs `line` in one machine, where /mc has the model (/mc/model), a cost profile (/mc/cost) and the `scripts`,
    texts by file name. Returns found() of what it printed. Without a machine the test program ends as skipped."""
    with tempfile.TemporaryDirectory() as folder:
        code, _, err = cluster.run("mc-bench", "mkmodel", *SHAPE, "-o", os.path.join(folder, "model"))
        assert code == 0, err
        for name, text in {"cost": COST, **scripts}.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        words = [VM, "--cpus", str(cluster.count(1, 2)), "--timeout", "1500", "--build", cluster.BUILD]
        for name in ("model", "cost", *scripts):
            words += ["--add", f"{os.path.join(folder, name)}:/mc/{name}"]
        for program in ("mc-conductor", "mc-prefill", "mc-decode", "mc-cache", "mc-bench"):
            words += ["--add", cluster.program(program)]
        done = subprocess.run([*words, "--", f"echo {START}; {line}"], capture_output=True, text=True)
    if done.returncode == cluster.SKIP:
        print(done.stderr, file=sys.stderr)
        sys.exit(cluster.SKIP)
    return found(done.stdout, done.stderr)


def found(printed, complaints):
    """Sorts what a machine printed: the rests of the lines by their first word, and the end of all output as "said".
    rdma-vm prints the output of two machines where the first one had a soft lockup; only the last one counts."""
    printed = printed.rpartition(START + "\n")[2]
    # The doctor's lines are long, and its checks show them: the log of a failed start must not fall out of the end.
    served = printed.partition("MC-DOCTOR")[0]
    out = {"said": served[-6000:] + complaints[-3000:]}
    for text in printed.split("\n"):  # not splitlines: a text may have a separator of Unicode
        word, _, rest = text.partition(" ")
        out.setdefault(word, []).append(rest)
    return out

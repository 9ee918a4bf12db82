#!/usr/bin/env python3
"""The serving path over rdma://: in the machine with soft-RoCE, a prefill and a decode node exchange KV by
RDMA READ, and the text is that of the single process in the same machine; also that of a prefill node whose
reads take longer than the lease on what they read."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))

from cluster import BUILD, SKIP, Random, run

VM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "rdma-vm")

# The machine is an emulator: a model of two narrow layers, and a cost profile so that nobody measures one.
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

SCRIPT = r"""
set -eu
export MCT_RUN_DIR=/tmp/run
mkdir -m 700 /tmp/run
FLAGS="-m /mc/model --dtype f32"
WORKER="$FLAGS --cost /mc/cost --transport rdma --connect-timeout 30s --kv-mem 16MiB --lease-time 1s"
mc-conductor -m /mc/model --fetch-rule threshold --http 127.0.0.1:8000 >/dev/null 2>>/tmp/log &
mc-prefill $WORKER --name p0 --http 127.0.0.1:8001 >/dev/null 2>>/tmp/log &
mc-decode $WORKER --name d0 --http 127.0.0.1:8002 >/dev/null 2>>/tmp/log &
mc-conductor wait --prefill 1 --decode 1 --timeout 60s >&2 || { cat /tmp/log; exit 1; }
for ids in $1; do
  [ "$ids" = "${last:-}" ] ||
    oracle=$(mc-prefill once $FLAGS --prompt-ids $ids -n 6 --temperature 0 --ignore-eos --json | tail -n 1)
  last=$ids
  echo "MC-ORACLE $oracle"
  body="{\"prompt\": [$ids], \"max_tokens\": 6, \"temperature\": 0, \"ignore_eos\": true, \"return_token_ids\": true}"
  answer=$(wget -q -O - --post-data "$body" http://127.0.0.1:8000/v1/completions) || { cat /tmp/log; exit 1; }
  echo "MC-ANSWER $answer"
done
mc-prefill $WORKER --name p1 --http 127.0.0.1:8003 --transfer-faults delay=1:3s >/dev/null 2>>/tmp/log &
mc-conductor wait --prefill 2 --timeout 60s >&2 || { cat /tmp/log; exit 1; }
body="${body%?}, \"mc\": {\"explain\": true, \"pin\": {\"prefill\": \"p1\", \"decode\": \"d0\"}}}"
late=$(wget -q -O - --post-data "$body" http://127.0.0.1:8000/v1/completions) || cat /tmp/log >&2
echo "MC-LATE $late"
sed -n 's/^/MC-LOG /p' /tmp/log | grep 'data connection up'
wget -q -O - http://127.0.0.1:8002/metrics | sed -n 's/^mc_xfer_bytes_total/MC-METRIC &/p'
"""


class Serve(unittest.TestCase):
    def test_text_served_over_rdma_is_the_text_of_one_process(self):
        prompts = [Random(seed).ids(length, vocab=2000) for seed, length in ((1, 40), (2, 140), (2, 140))]
        with tempfile.TemporaryDirectory() as folder:
            model, cost, script = (os.path.join(folder, name) for name in ("model", "cost", "serve.sh"))
            code, _, err = run("mc-bench", "mkmodel", "--layers", 2, "--hidden", 64, "-o", model)
            self.assertEqual(code, 0, err)
            for path, text in ((cost, COST), (script, SCRIPT)):
                with open(path, "w") as file:
                    file.write(text)
            words = [VM, "--timeout", "800", "--build", BUILD]
            words += ["--add", f"{model}:/mc/model", "--add", f"{cost}:/mc/cost", "--add", f"{script}:/mc/serve.sh"]
            for program in ("mc-conductor", "mc-prefill", "mc-decode"):
                words += ["--add", os.path.join(BUILD, program)]
            lists = " ".join(",".join(map(str, ids)) for ids in prompts)
            done = subprocess.run([*words, "--", f"sh /mc/serve.sh '{lists}'"], capture_output=True, text=True)
        if done.returncode == SKIP:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        found = {}
        for line in done.stdout.splitlines():
            word, _, rest = line.partition(" ")
            found.setdefault(word, []).append(rest)
        oracles = [json.loads(text)["output_ids"] for text in found["MC-ORACLE"]]
        answers = [json.loads(text)["choices"][0]["token_ids"] for text in found["MC-ANSWER"]]
        self.assertEqual(len(oracles), len(prompts))
        self.assertEqual(answers, oracles)
        self.assertTrue(found["MC-LATE"][0], "no answer while p1's reads were late: " + done.stdout + done.stderr)
        late = json.loads(found["MC-LATE"][0])
        self.assertEqual(late["choices"][0]["token_ids"], oracles[-1])
        self.assertTrue(late["mc"]["fallback"].startswith("fetch:"), late["mc"])
        self.assertEqual(late["mc"]["cached_remote_tokens"], 0, late["mc"])
        self.assertTrue(all("rdma" in line for line in found["MC-LOG"]), found["MC-LOG"])
        read = [line for line in found["MC-METRIC"] if 'direction="in"' in line and 'transport="rdma"' in line]
        self.assertGreater(sum(float(line.rsplit(" ", 1)[1]) for line in read), 0, found["MC-METRIC"])


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""Parts that the tests of other people's clients share: their packages by pip, and a cluster with mc-tiny for them.

The packages are fetched once into the build folder. Without a package registry the test is skipped with its reason. The
model mc-tiny was never trained on tools or JSON, so masks alone decide whether an answer parses.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import cluster

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "lib", "model", "mc-tiny")
SECONDS_MAX = 600
KEYS = """
[tenant.all]
keys = ["sk-all-1"]
[tenant.few]
keys = ["sk-few-1"]
tokens_per_s = 1
burst_tokens = 40
[tenant.soon]
keys = ["sk-soon-1"]
tokens_per_s = 8
burst_tokens = 40
"""
TEMPLATE = """{{ bos_token }}{%- if tools %}<|system|>{% for t in tools %}{{ t.function | tojson }}
{% endfor %}Write <tool_call>.<|end|>{% endif %}
{%- for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>{{ m.content or '' }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
USER = [{"role": "user", "content": "Tell me a story."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Adds.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "integer", "minimum": 0, "maximum": 9} for key in keys},
                "required": keys,
                "additionalProperties": False,
            },
        },
    }
    for name, keys in (("sum", ["x", "y"]), ("double", ["x"]))
]


def skip(reason):
    print("skipped: " + reason, file=sys.stderr)
    sys.exit(cluster.SKIP)


def read(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def install(name, *packages):
    """Put packages on Python's path; fetch them once into the folder `name` of the build."""
    folder = os.path.join(cluster.BUILD, name)
    marker, wanted = os.path.join(folder, "installed"), " ".join([*packages, sys.version])
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, ".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run at once install once
        if read(marker) != wanted:
            fetch(folder, packages)
            with open(marker, "w", encoding="utf-8") as file:
                file.write(wanted)
    sys.path.insert(0, folder)


def fetch(folder, packages):
    words = ["install", "--quiet", "--no-input", "--only-binary", ":all:", "--upgrade", "--target", folder, *packages]
    names = " ".join(packages)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        skip(f"pip took more than {SECONDS_MAX} s to install {names}")
    if done.returncode != 0:
        skip(f"pip could not install {names}: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")


def model(template=TEMPLATE):
    """A folder with mc-tiny, another chat template and API keys."""
    folder = os.path.join(tempfile.mkdtemp(prefix="mc-clients-"), "mc-tiny")
    os.mkdir(folder)
    for name in os.listdir(TINY):
        shutil.copy(os.path.join(TINY, name), folder)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(template)
    with open(os.path.join(folder, "keys.toml"), "w", encoding="utf-8") as file:
        file.write(KEYS)
    os.chmod(file.name, 0o600)
    unittest.addModuleCleanup(shutil.rmtree, os.path.dirname(folder))
    return folder


def start(folder):
    """A cluster for the tests of the module, with the model and the API keys of a folder."""
    for tool in ("mc-conductor", "mc-prefill", "mc-decode"):
        cluster.program(tool)
    out = cluster.Cluster("1p1d", conductor=["-m", folder, "--api-keys", os.path.join(folder, "keys.toml")])
    unittest.addModuleCleanup(out.close)
    return out

#!/usr/bin/env python3
"""JSON schemas and tools made to cost: deep, wide, recursive, with huge enumerations, patterns that blow up, long names
and bytes that are no UTF-8. Each is refused with a 400 that names a place, or served; health beside them is answered,
and memory does not grow with their number."""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
import unittest

import attack
from cluster import Cluster, is_sanitized
from exhaust_test import Client
from liar import GROWTH, Attacked

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "..", "..", "lib", "model", "mc-tiny")
TEMPLATE = """{{ bos_token }}{%- if tools %}<|system|>{% for t in tools %}{{ t.function | tojson }}
{% endfor %}Write <tool_call>.<|end|>{% endif %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
KEPT = 320 << 20  # grammars that a worker may keep for later requests, and what the allocator keeps of large bodies
DEEPEST = "10,000 objects"  # deeper than Python writes
GRACE_S = 120  # a bound for hangs; what came is printed


def nested(depth, wrap):
    """A schema inside itself: wrap() around wrap() around ..."""
    schema = {"type": "string"}
    for _ in range(depth):
        schema = wrap(schema)
    return schema


def thing(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def defined(count, make, start="#/$defs/d0"):
    """A schema of `count` definitions, each made from the reference to the next."""
    defs = {f"d{i}": make({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$defs": {**defs, f"d{count}": {"type": "null"}}, "$ref": start}


def deep():
    for depth in (12, 13, 60, 300):
        yield nested(depth, lambda inner: thing(a=inner))
        yield nested(depth, lambda inner: {"type": "array", "items": inner})
        yield nested(depth, lambda inner: {"anyOf": [inner, {"type": "null"}]})
    yield DEEPEST


def wide():
    for count in (256, 257, 2_000):
        yield thing(**{f"p{i}": {"type": "integer"} for i in range(count)})
        yield {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}}
        yield {"anyOf": [{"const": i} for i in range(count)]}
        yield {"anyOf": [{"type": "string"}] * count}
    # Each level doubles what one that copies would make.
    yield nested(12, lambda inner: thing(a=inner, b=inner))
    yield nested(6, lambda inner: {"anyOf": [inner] * 8})


def recursive():
    yield {"$ref": "#"}
    yield {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    yield thing(a={"$ref": "#"})  # no document is finite
    yield {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}, "additionalProperties": False}
    yield {"type": "array", "items": {"$ref": "#"}}
    yield {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    for pointer in ("#/none", "#/$defs/~", "#/%ff", "#" + "/a" * 100_000, "http://localhost/", "file:///etc", ""):
        yield {"$ref": pointer}
    for count in (20, 31, 33, 2000):
        yield defined(count, lambda inner: inner)
        yield defined(count, lambda inner: thing(a=inner, b=inner))
        yield defined(count, lambda inner: {"anyOf": [inner, inner, {"type": "integer"}]})
        yield defined(count, lambda inner: {"type": "array", "items": inner, "minItems": 1000})


def listed():
    for count, size in ((1000, 60), (1001, 1), (900, 250), (5_000, 4), (2, 100_000), (1, 262_144)):
        yield {"enum": [f"{i}" + "v" * size for i in range(count)]}
        yield {"enum": ["v" * size + f"{i}" for i in range(count)]}
    yield {"const": "c" * 250_000}
    yield {"enum": []}
    yield {"enum": [[[]], {}, {"a": [1e300]}]}


def strings():
    patterns = ["(a*)*b", "(a|a)*c", "(a|aa)+$", "^(([a-z])+.)+[A-Z]([a-z])+$", "a{1000}{1000}", "(a{0,1000}){0,1000}"]
    patterns += ["(.{1,1000}){1,1000}", "(x?){1000}x{1000}", "((a?){30}){30}", "(" * 3000, "(" * 33 + "a" + ")" * 33]
    patterns += ["[", "a{", "a{9999999999}", "\\", "(?=a)b", "(a)\\1", "\\p{L}*", "[^\\u0000-\\uffff]", "[a-\\d]"]
    patterns += ["(|)*", "(a|b|c|d)*" * 200, "\u4e2d*\U0001f600+", ".*" * 900, "(.*a){20}", "x" * 2000, "x" * 2001]
    patterns += ["\x00", "\ud800"]
    for pattern in patterns:
        yield {"type": "string", "pattern": pattern}
        yield thing(**{f"p{i}": {"type": "string", "pattern": pattern} for i in range(40)})
    for bounds in ((1_000_000, 1_000_000), (2**53, 2**63), (-1, 0), (5, 4), (0, 1e308), (1.5, 2)):
        yield {"type": "string", "minLength": bounds[0], "maxLength": bounds[1]}
        yield {"type": "array", "minItems": bounds[0], "maxItems": bounds[1], "items": {"enum": ["a" * 1000]}}
        yield {"type": "integer", "minimum": bounds[0], "maximum": bounds[1]}
    yield {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


def odd():
    keys = ["k" * 1024, "k" * 1025, "k" * 200_000, "\x00", "\ud800", "\udfff\ud800", '"\\', "<|end|>", "\U0001f600" * 9]
    for key in keys:
        yield thing(**{key: {"type": "null"}})
        yield {"enum": [key]}
    yield from (None, True, [], "x", 5, {}, {"type": []}, {"type": ["x"]}, {"type": 5}, {"properties": []}, {"x": 1})
    yield from ({"allOf": [{}] * 999}, {"not": {}}, {"if": {}, "then": {}}, {"patternProperties": {"(a*)*": {}}})
    yield {"type": "object", "required": ["a"] * 5000}
    yield {"type": "object", "additionalProperties": {"$ref": "#"}}
    yield {"description": "d" * 300_000, "type": "null"}
    yield {"title": ["x"] * 100_000, "type": "null"}


def tool(name="t", parameters=None, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters or {}, **more}}


def tools():
    """(tools, tool_choice)"""
    large = {"enum": [f"{'v' * 20}{i}" for i in range(300)]}
    for choice in ("required", "auto", {"type": "function", "function": {"name": "t0"}}):
        for count in (1, 128, 129, 5000):
            yield [tool(f"t{i}", thing(a={"type": "integer"})) for i in range(count)], choice
        yield [tool(f"t{i}", thing(a=large, b=large)) for i in range(20)], choice
        yield [tool("t0")] * 100, choice
    # One look-up a name, not one for each tool: this would take minutes. The last tool is the one that is named.
    many = 170_000
    named = [{"function": {"name": "z"}}] * many
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    yield [{"function": {"name": "a"}}] * (many - 1) + named[:1], allowed
    names = [{"type": "function", "function": {"name": f"t{i}"}} for i in range(129)]
    for mode in ("auto", "required", "none", 5):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}}
        yield [tool(f"t{i}", thing(a={"type": "integer"})) for i in range(129)], choice
    for name in ("", "n" * 65, "n" * 100_000, "\x00", "<|end|>", '"', "\ud800", 5, None):
        yield [tool(name)], "required"
    for parameters in (deep(), recursive()):
        yield from (([tool("t0", thing(a=schema))], "required") for schema in list(parameters)[:8])
    yield [tool("t0", {"type": "array"})], "required"
    yield [tool("t0", description="d" * (1 << 20))], "auto"
    yield [5, None, [], {}], "required"


class Health(threading.Thread):
    """Asks for health until it is closed; keeps the times that the answers took."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.client, self.end, self.took, self.wrong = Client(port), threading.Event(), [], None
        self.start()

    def run(self):
        while not self.end.wait(0.01):
            began = time.monotonic()
            try:
                status = self.client.status()
            except OSError as error:
                status = error
            self.took.append(time.monotonic() - began)
            if status != 200:
                self.wrong = status
                return

    def close(self):
        self.end.set()
        self.join()
        self.client.close()


class Schemas(Attacked):
    ROUNDS = attack.count(1, 20)

    def make_cluster(self):
        folder = tempfile.mkdtemp(prefix="mct-test-")
        self.addCleanup(shutil.rmtree, folder)
        model = os.path.join(folder, "model")
        shutil.copytree(TINY, model)
        with open(os.path.join(model, "chat_template.jinja"), "w", encoding="utf-8") as file:
            file.write(TEMPLATE)
        c = Cluster()
        c.env["MALLOC_ARENA_MAX"] = "1"  # each arena keeps memory, and chance decides which threads use which
        try:
            c.start("conductor", "-m", model)
            c.start("p0", "-m", model)
            c.start("d0", "-m", model)
            c.wait_nodes()
        except BaseException:
            c.close()
            raise
        return c

    def setUp(self):
        super().setUp()
        self.health = Health(self.cluster.url_port)
        self.addCleanup(self.health.close)
        self.ends = {}

    def requests(self, **fields):
        """A chat whose answer must have a form; lone surrogates also go as bytes that are no UTF-8."""
        body = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 3, **fields}
        for data in {json.dumps(body).encode(), json.dumps(body, ensure_ascii=False).encode(errors="surrogatepass")}:
            yield data.replace(json.dumps(DEEPEST).encode(), b'{"not":' * 10_000 + b"{}" + b"}" * 10_000)

    def forms(self, *kinds):
        """The requests whose answers must have the schemas of these kinds."""
        for kind in kinds:
            for schema in kind():
                form = {"name": "s", "strict": self.random.random() < 0.5, "schema": schema}
                yield from self.requests(response_format={"type": "json_schema", "json_schema": form})

    def ask(self, data):
        began = time.monotonic()
        status, _, answer = self.cluster.request("POST", "/v1/chat/completions", data)
        took = time.monotonic() - began
        self.ends[status] = max(self.ends.get(status, 0), took)
        self.alive(None, data)
        self.assertIsNone(self.health.wrong, data[:300])
        self.assertIn(status, (200, 400, 413), (answer[:500], data[:500]))
        self.assertLess(took, GRACE_S, data[:500])
        if status != 200:
            error = json.loads(answer)["error"]
            self.assertTrue(error["message"], data[:500])
            self.assertLess(len(error["message"]), 2000, data[:500])

    def check_rounds(self, requests):
        """Asks all of it several times. From then on no process grows."""
        requests = list(requests)

        def one_round():
            for data in requests:
                self.ask(data)

        one_round()  # then the allocator keeps what the largest request took
        self.cluster.wait_quiet()
        after = {name: attack.resident(p.popen.pid) for name, p in self.cluster.processes.items()}
        for name, bytes_then in after.items():
            if not is_sanitized():  # whose own memory is counted too
                self.assertLess(bytes_then - self.before[name], GROWTH + KEPT, name)
        self.before = after
        for _ in range(self.ROUNDS):
            one_round()
        for status, took in sorted(self.ends.items()):
            print(f"{status}: at most {took * 1e3:.0f} ms", file=sys.stderr)
        took = self.health.took
        print(f"livez beside them: at most {max(took) * 1e3:.1f} ms of {len(took)}", file=sys.stderr)
        self.assertLess(max(took), GRACE_S)
        self.check_after()

    def test_hostile_schemas_are_refused_or_served_within_their_bound(self):
        self.check_rounds(self.forms(deep, wide, recursive, listed, odd))

    def test_hostile_patterns_and_bounds_are_refused_or_served_within_their_bound(self):
        self.check_rounds(self.forms(strings))

    def test_hostile_tools_are_refused_or_served_within_their_bound(self):
        self.check_rounds(d for declared, choice in tools() for d in self.requests(tools=declared, tool_choice=choice))


if __name__ == "__main__":
    unittest.main(verbosity=2)

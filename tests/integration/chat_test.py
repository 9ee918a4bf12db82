#!/usr/bin/env python3
"""Answers in a form: JSON, JSON schemas, tool calls, reasoning and embeddings, over real programs with mc-tiny. The
model was never trained on any of it, so the masks alone decide whether an answer parses."""

import base64
import json
import os
import shutil
import struct
import tempfile
import unittest

import cluster
from cluster import Cluster

TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "lib", "model", "mc-tiny")
TEMPLATE = """{{ bos_token }}{%- if tools %}<|system|>{% for t in tools %}{{ t.function | tojson }}
{% endfor %}Write <tool_call>.<|end|>{% endif %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% if think %}<think>
{% endif %}{% endif %}"""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {
            "name": "sum",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    },
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}


def setUpModule():
    global c, folder
    folder = tempfile.mkdtemp(prefix="mc-chat-")
    for name in os.listdir(TINY):
        shutil.copy(os.path.join(TINY, name), folder)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
        file.write(TEMPLATE)
    model = ["-m", folder]
    c = Cluster(roles=("conductor", "p0", "d0", "d1"), conductor=model, worker=model)


def tearDownModule():
    c.close()
    shutil.rmtree(folder)


def ask(text, expect=200, **fields):
    # The whole answer is bound to its form, so that an untrained model does not reason until it is cut.
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 300, "mc": {"split_reasoning": False}}
    body.update(fields)
    status, _, answer = c.post("/v1/chat/completions", body)
    assert status == expect, answer
    return answer["choices"][0] if expect == 200 else answer["error"]


def check_person(test, person):
    test.assertIsInstance(person, dict)
    test.assertLessEqual(set(person), set(SCHEMA["properties"]))
    test.assertGreaterEqual(set(person), set(SCHEMA["required"]))
    test.assertLessEqual(len(person["name"]), 12)
    test.assertTrue(type(person["age"]) is int and 0 <= person["age"] <= 150)
    test.assertIn(person["kind"], ("a", "b"))
    test.assertLessEqual(len(person.get("tags", [])), 2)


class Forms(unittest.TestCase):
    def test_answers_follow_their_schema_at_every_temperature_and_seed(self):
        for seed in range(cluster.count(6, 60)):
            choice = ask("Who?", response_format=FORMAT, temperature=seed % 3, seed=seed)
            self.assertEqual(choice["finish_reason"], "stop", choice)
            check_person(self, json.loads(choice["message"]["content"]))

    def test_a_json_object_that_was_cut_is_the_beginning_of_one(self):
        choice = ask("Anything?", response_format={"type": "json_object"}, temperature=1, seed=3, max_tokens=40)
        self.assertTrue(choice["message"]["content"].lstrip().startswith("{"))
        if choice["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(choice["message"]["content"]), dict)

    def test_completions_follow_a_schema_too_and_choices_apart(self):
        body = {"prompt": "x", "max_tokens": 300, "n": 3, "temperature": 1.5, "seed": 5, "response_format": FORMAT}
        status, _, answer = c.post("/v1/completions", body)
        self.assertEqual(status, 200, answer)
        for choice in answer["choices"]:
            check_person(self, json.loads(choice["text"]))

    def test_a_schema_that_is_not_supported_is_refused_by_its_place(self):
        bad = {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"multipleOf": 3}}}}}
        error = ask("x", expect=400, response_format=bad)
        self.assertEqual(error["code"], "unsupported_schema")
        self.assertEqual(error["param"], "response_format")
        self.assertIn("#/properties/a/multipleOf", error["message"])


class Calls(unittest.TestCase):
    def test_a_required_call_names_a_tool_and_its_arguments_follow_the_schema(self):
        for seed in range(4):
            choice = ask("?", tools=TOOLS, tool_choice="required", temperature=1, seed=seed)
            self.assertEqual(choice["finish_reason"], "tool_calls")
            self.assertIsNone(choice["message"]["content"])
            (call,) = choice["message"]["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "weather":
                check_person(self, arguments)
            else:
                self.assertTrue(call["function"]["name"] == "sum" and 0 <= arguments["x"] <= 9)

    def test_a_named_call_streams_its_id_name_and_arguments(self):
        body = {
            "messages": [{"role": "user", "content": "?"}],
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "sum"}},
            "temperature": 0,
            "max_tokens": 100,
            "mc": {"split_reasoning": False},
        }
        events = [json.loads(e) for e in c.stream("/v1/chat/completions", body) if e != "[DONE]"]
        deltas = [e["choices"][0]["delta"] for e in events if e["choices"]]
        calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
        self.assertEqual([x["index"] for x in calls], [0] * len(calls))
        self.assertEqual(calls[0]["function"]["name"], "sum")
        self.assertTrue(calls[0]["id"].startswith("call_"))
        arguments = json.loads("".join(x["function"].get("arguments", "") for x in calls))
        self.assertEqual(list(arguments), ["x"])
        self.assertEqual("".join(d.get("content") or "" for d in deltas), "")
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")

    def test_a_tool_that_is_not_there_cannot_be_named(self):
        error = ask("?", expect=400, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nope"}})
        self.assertEqual(error["param"], "tool_choice")


class Reasoning(unittest.TestCase):
    def test_reasoning_that_the_prompt_opens_is_split_unless_the_request_says_no(self):
        fields = {"chat_template_kwargs": {"think": True}, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        choice = ask("?", mc={}, **fields)
        self.assertEqual(choice["message"]["content"], "")
        self.assertTrue(choice["message"]["reasoning_content"])
        whole = ask("?", **fields)
        self.assertNotIn("reasoning_content", whole["message"])
        self.assertEqual(whole["message"]["content"].strip(), choice["message"]["reasoning_content"].strip())


class Embeddings(unittest.TestCase):
    def embed(self, **fields):
        status, _, answer = c.post("/v1/embeddings", fields)
        self.assertEqual(status, 200, answer)
        return answer

    def test_vectors_have_length_one_and_do_not_depend_on_company_or_form(self):
        texts = ["One text.", "Another text, which is longer."]
        both = self.embed(input=texts)
        self.assertEqual([d["index"] for d in both["data"]], [0, 1])
        self.assertEqual(both["usage"]["prompt_tokens"], both["usage"]["total_tokens"])
        vectors = [d["embedding"] for d in both["data"]]
        self.assertNotEqual(vectors[0], vectors[1])
        for text, vector in zip(texts, vectors):
            self.assertEqual(len(vector), 256)
            self.assertAlmostEqual(sum(x * x for x in vector), 1, places=5)
            packed = self.embed(input=text, encoding_format="base64")["data"][0]["embedding"]
            alone = struct.unpack("<256f", base64.b64decode(packed))
            for a, b in zip(vector, alone):
                self.assertAlmostEqual(a, b, places=6)

    def test_dimensions_are_refused_by_name(self):
        status, _, answer = c.post("/v1/embeddings", {"input": "x", "dimensions": 8})
        self.assertEqual((status, answer["error"]["param"]), (400, "dimensions"))


class ZLoss(unittest.TestCase):
    """Last, because it kills a node."""

    def test_an_answer_goes_on_in_its_form_after_its_decode_node_died(self):
        for seed in range(1, 11):  # on a busy machine an answer may be complete before its node is killed
            text, finish, attempts = self.ask_and_kill(seed)
            if attempts > 1:
                break
        self.assertGreater(attempts, 1)
        if finish == "stop":
            numbers = json.loads(text)
            self.assertTrue(len(numbers) >= 400 and all(0 <= n <= 99 for n in numbers))
        else:
            self.assertEqual(finish, "length")
            numbers = json.loads(text[: text.rindex(",")] + "]")
            self.assertTrue(all(0 <= n <= 99 for n in numbers))

    def ask_and_kill(self, seed):
        """(text, finish reason, attempts) of an answer. Its decode node is killed in the middle, and starts again."""
        wide = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 400}
        body = {
            "prompt": "x",
            "temperature": 1,
            "seed": seed,
            "max_tokens": 1500,
            "response_format": {"type": "json_schema", "json_schema": {"schema": wide}},
        }
        text, finish, killed = "", None, None
        for event in c.stream("/v1/completions", body):
            if event == "[DONE]":
                break
            choice = json.loads(event)["choices"][0]
            text += choice["text"]
            finish = choice["finish_reason"] or finish
            if len(text) > 60 and not killed:
                running = [r for r in c.operate("GET", "/requests")["requests"] if r["outcome"] == "running"]
                if running:
                    killed = running[0]
                    c.processes[killed["decode_node"]].kill()
        if not killed:
            return text, finish, 1
        c.processes[killed["decode_node"]].close()
        c.start(killed["decode_node"], "-m", folder)
        return text, finish, c.operate("GET", f"/requests/{killed['id']}")["attempts"]


if __name__ == "__main__":
    unittest.main()

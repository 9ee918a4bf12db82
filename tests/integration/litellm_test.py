#!/usr/bin/env python3
"""LiteLLM drives a cluster as an OpenAI-compatible server: chat, streams, tools, schemas, embeddings and errors.

The package is fetched once into the build folder with pip; without a package registry the test is skipped. Its import
takes seconds, so all its tests are here.
"""

import asyncio
import json
import os
import unittest

import clients
import cluster
from clients import TOOLS, USER

PACKAGE = "litellm==1.95.0"
MODEL = "openai/mc-tiny"


def setUpModule():
    global litellm, c, free
    # LiteLLM would fetch its list of models and prices.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    clients.install("python-litellm", PACKAGE)
    import litellm

    litellm.suppress_debug_info = True
    c = clients.start(clients.model())
    free = chat()


def where(key="sk-all-1"):
    return {"api_base": f"http://127.0.0.1:{c.url_port}/v1", "api_key": key, "num_retries": 0}


def fields_of(**fields):
    common = {"model": MODEL, "messages": USER, "temperature": 0, "max_tokens": 12, "timeout": cluster.ANSWER_S}
    return {**where(), **common, "extra_body": {"ignore_eos": True}, **fields}


def chat(**fields):
    return litellm.completion(**fields_of(**fields))


class Chat(unittest.TestCase):
    def test_a_stream_joins_to_the_whole_answer_and_has_its_usage(self):
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(k.choices[0].delta.content or "" for k in chunks)
        self.assertEqual(text, free.choices[0].message.content)
        self.assertEqual(free.choices[0].finish_reason, "length")
        self.assertEqual([k.choices[0].finish_reason for k in chunks if k.choices[0].finish_reason], ["length"])
        (usage,) = [k.usage for k in chunks if getattr(k, "usage", None)]
        self.assertEqual(usage.completion_tokens, 12)
        self.assertEqual(usage.total_tokens, free.usage.total_tokens)

    def test_the_package_builds_the_whole_answer_from_a_stream(self):
        chunks = list(chat(stream=True, stream_options={"include_usage": True}))
        built = litellm.stream_chunk_builder(chunks, messages=USER)
        self.assertEqual(built.choices[0].message.content, free.choices[0].message.content)
        self.assertEqual(built.choices[0].finish_reason, "length")
        self.assertEqual(built.usage.prompt_tokens, free.usage.prompt_tokens)

    def test_a_repeated_prompt_reports_its_cached_tokens(self):
        prompt = [{"role": "user", "content": "A long story. " * 60}]
        chat(messages=prompt)
        again = chat(messages=prompt).usage
        self.assertGreater(again.prompt_tokens_details.cached_tokens, 0)
        self.assertLess(again.prompt_tokens_details.cached_tokens, again.prompt_tokens)

    def test_requests_at_once_get_the_answers_they_get_alone(self):
        async def ask_all():
            answers = await asyncio.gather(*(litellm.acompletion(**fields_of()) for _ in range(4)))
            stream = await litellm.acompletion(**fields_of(stream=True))
            text = "".join([k.choices[0].delta.content or "" async for k in stream])
            return [*(answer.choices[0].message.content for answer in answers), text]

        self.assertEqual(set(asyncio.run(ask_all())), {free.choices[0].message.content})

    def test_a_text_completion_and_its_stream_are_equal(self):
        fields = {**where(), "model": "text-completion-openai/mc-tiny", "prompt": "Once upon a time", "temperature": 0}
        fields = {**fields, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
        whole = litellm.text_completion(**fields)
        self.assertEqual(whole.choices[0].finish_reason, "length")
        chunks = list(litellm.text_completion(**fields, stream=True))
        self.assertEqual("".join(k.choices[0].text or "" for k in chunks), whole.choices[0].text)


class Forms(unittest.TestCase):
    def check_calls(self, calls):
        self.assertGreaterEqual(len(calls), 1)
        for call in calls:
            numbers = json.loads(call.function.arguments)
            self.assertEqual(list(numbers), {"sum": ["x", "y"], "double": ["x"]}[call.function.name])
            self.assertTrue(all(type(n) is int and 0 <= n <= 9 for n in numbers.values()))

    def test_a_required_tool_is_called_whole_and_streamed_and_its_answer_goes_back(self):
        fields = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 200, "extra_body": {}}
        whole = chat(**fields).choices[0]
        self.assertEqual(whole.finish_reason, "tool_calls")
        self.check_calls(whole.message.tool_calls)
        built = litellm.stream_chunk_builder(list(chat(stream=True, **fields))).choices[0]
        self.assertEqual(built.finish_reason, "tool_calls")
        self.assertEqual(
            [(k.function.name, k.function.arguments) for k in built.message.tool_calls],
            [(k.function.name, k.function.arguments) for k in whole.message.tool_calls],
        )
        results = [{"role": "tool", "tool_call_id": k.id, "content": "9"} for k in whole.message.tool_calls]
        answer = chat(messages=[*USER, whole.message, *results], tools=TOOLS)
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_a_named_tool_is_the_one_that_is_called(self):
        choice = {"type": "function", "function": {"name": "double"}}
        calls = chat(tools=TOOLS, tool_choice=choice, max_tokens=200, extra_body={}).choices[0].message.tool_calls
        self.check_calls(calls)
        self.assertEqual({call.function.name for call in calls}, {"double"})

    def test_an_answer_has_the_form_of_a_pydantic_model(self):
        import pydantic

        class Point(pydantic.BaseModel):
            x: bool
            kind: pydantic.constr(pattern="^(a|b)$")

        answer = chat(response_format=Point, max_tokens=200, extra_body={})
        self.assertIsInstance(Point.model_validate_json(answer.choices[0].message.content), Point)

    def test_embeddings_are_one_a_text_and_equal_packed(self):
        fields = {**where(), "model": MODEL, "input": ["one", "two"]}
        plain = litellm.embedding(**fields, encoding_format="float")
        self.assertEqual(len(plain.data), 2)
        self.assertEqual(len(plain.data[0]["embedding"]), len(plain.data[1]["embedding"]))
        again = litellm.embedding(**fields)  # the package chooses the form
        self.assertEqual(len(again.data), 2)
        self.assertGreater(plain.usage.prompt_tokens, 0)


class Errors(unittest.TestCase):
    def check(self, error, status, **fields):
        with self.assertRaises(error) as caught:
            answer = chat(**fields)
            if fields.get("stream"):
                list(answer)
        self.assertEqual(caught.exception.status_code, status)
        return str(caught.exception)

    def test_a_bad_field_is_a_bad_request_that_names_the_field(self):
        self.assertIn("temperature", self.check(litellm.BadRequestError, 400, temperature=-1))
        self.assertIn("temperature", self.check(litellm.BadRequestError, 400, temperature=-1, stream=True))

    def test_a_prompt_that_is_too_long_is_a_context_window_error(self):
        # More than the context, more than twice the context, and with its answer more than the context.
        for words, answer in ((5_000, 12), (20_000, 12), (2_000, 8_000)):
            prompt = [{"role": "user", "content": "x " * words}]
            with self.subTest(words=words):
                self.check(litellm.ContextWindowExceededError, 400, messages=prompt, max_tokens=answer)

    def test_an_unknown_model_is_not_found(self):
        self.assertIn("gpt-9", self.check(litellm.NotFoundError, 404, model="openai/gpt-9"))

    def test_an_unknown_key_is_an_authentication_error(self):
        self.check(litellm.AuthenticationError, 401, **where("sk-wrong"))

    def test_a_quota_is_a_rate_limit_error(self):
        with self.assertRaises(litellm.RateLimitError) as caught:
            for _ in range(20):
                chat(**where("sk-few-1"))
        self.assertEqual(caught.exception.status_code, 429)

    def test_a_deadline_is_a_time_out_and_inside_a_stream_an_error_that_names_it(self):
        late = lambda ms: {"max_tokens": 6000, "extra_body": {"ignore_eos": True, "mc": {"deadline_ms": ms}}}
        self.assertIn("deadline", self.check(litellm.Timeout, 504, **late(300)))
        # A stream whose first token is late gets status 504, and no stream begins.
        for deadline_ms in (300, 600, 1200):
            with self.assertRaises((litellm.Timeout, litellm.APIConnectionError, litellm.ServiceUnavailableError)) as e:
                list(chat(stream=True, **late(deadline_ms)))
            self.assertIn("deadline", str(e.exception))
            if not isinstance(e.exception, litellm.Timeout):
                return
        self.fail("no stream of three had its first token before its deadline")

    def test_a_client_that_times_out_leaves_nothing_behind(self):
        with self.assertRaises(litellm.Timeout):
            chat(max_tokens=8000, timeout=0.3)
        c.wait_quiet()


if __name__ == "__main__":
    unittest.main()
